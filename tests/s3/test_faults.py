"""Mounts of a remote that misbehaves, fault by fault: nothing wrong is admitted, and nothing listed is lost.

Filling goes on by itself once the remote is well, and status and log say what is wrong and what to do.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, starting_with, until
from tests.s3.credentials import KINDS, MENDS, Issuer, only_credentials_of
from tests.s3.proxy import FAULTS, REFUSED, Fault, Proxy, Request, none, proxy_to, repeat_page, stall, wrong_region
from tests.servers import S3Server

WELL_S = 60.0
"""How long the mount may need for the rest once the remote is well: 30 s as promised, and a slow machine."""
SILENT_S = 100.0
"""How long it may take until a remote that falls silent is known to be away: 30 s for a read, and a slow machine."""
CHECK_NETWORK = "check the network"


@dataclass
class Bucket:
    """Objects below a prefix of a server, with a proxy in front of it. truth: the content of each, by path."""

    server: S3Server
    proxy: Proxy
    prefix: str
    truth: dict[str, bytes] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"s3://{self.server.bucket}/{self.prefix}"

    def put(self, path: str, size: int = 3_000) -> None:
        self.truth[path] = random.Random(path).randbytes(size)
        self.server.put(f"{self.prefix}/{path}", self.truth[path])

    def path_of(self, request: Request) -> str:
        """Which object a request is for."""
        return request.target.partition("?")[0].partition(f"{self.prefix}/")[2]


@pytest.fixture
def bucket(moto_s3: S3Server, growfs: Growfs) -> Iterator[Bucket]:
    with proxy_to(moto_s3.endpoint_url) as proxy:
        growfs.env.update(moto_s3.env)
        growfs.env["AWS_ENDPOINT_URL"] = proxy.url
        yield Bucket(moto_s3, proxy, f"faults-{uuid4().hex[:8]}")


def outcome(path: Path) -> str:
    """The name of the errno of reading a file; "read" if there is none."""
    try:
        path.read_bytes()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "read"


def fill(growfs: Growfs, bucket: Bucket) -> None:
    """Wait until everything is listed, and verify it."""
    until(lambda: growfs.names() == bucket.truth.keys(), WELL_S)
    assert growfs.content() == bucket.truth


OBJECT_FAULTS = {
    "hang_up": ("cannot reach the server", CHECK_NETWORK),
    "reset": ("cannot reach the server", CHECK_NETWORK),
    "reset_at_once": ("cannot reach the server", CHECK_NETWORK),
    "truncate": ("cannot reach the server", CHECK_NETWORK),
    "damage": ("damaged in transit", "check the network and the disk"),
    "shorten": ("the content differs from the server's description", "look for a proxy in between"),
    "lengthen": ("the content differs from the server's description", "look for a proxy in between"),
    "internal_error": ("the server is busy or failing (500", "try again later"),
    "slow_down": ("the server is busy or failing (503", "try again later"),
    "too_many": ("the server is busy or failing (429", "try again later"),
}
"""Faults of single objects while others are served, and what the log says of each, and what to do."""


@pytest.mark.promise(1, 3, 33)
@pytest.mark.parametrize("gives_up", [False, pytest.param(True, marks=pytest.mark.long)])
def test_faults_of_single_objects_have_nothing_wrong_admitted(growfs: Growfs, bucket: Bucket, gives_up: bool) -> None:
    """Each object has a fault of its own, half of them in a later part. All faults act at the same time.

    gives_up: they last until growfs has given each object up.
    """
    bucket.put("good/0")
    bucket.put("good/1", 1 << 20)
    for name in OBJECT_FAULTS:
        bucket.put(f"{name}/whole")
        bucket.put(f"{name}/parts", 1 << 20)
    whole = [f"{name}/whole" for name in OBJECT_FAULTS]

    def choose(request: Request) -> Fault | None:
        name, _, kind = bucket.path_of(request).partition("/")
        return FAULTS.get(name) if request.is_fetch and (kind == "whole" or request.is_part) else None

    bucket.proxy.fault = choose
    growfs.env[SETUP_VARIABLE] = "from growfs.remote import retries; retries.DELAY_S_MAX, retries.BUDGET_PER_S = 1, 100"
    growfs.mount(bucket.url, "--no-wait", "--settle", "0", "--miss-timeout", "100s" if gives_up else "0.5s")
    until(lambda: {"good/0", "good/1"} <= growfs.names())
    with ThreadPoolExecutor(len(whole)) as pool:
        outcomes = set(pool.map(lambda path: outcome(growfs.mountpoint / path), whole))
    assert outcomes == {"EIO" if gives_up else "ETIMEDOUT"}
    listed = growfs.content()
    assert listed.items() <= bucket.truth.items()
    assert not listed.keys() & set(whole)
    if gives_up:
        lines = growfs.log().splitlines()
        for name, words in OBJECT_FAULTS.items():
            (line, *_) = [each for each in lines if "not fetched: " in each and f"{name}/whole" in each]
            assert all(each in line for each in words), line
    bucket.proxy.fault = none
    fill(growfs, bucket)


@dataclass(frozen=True)
class Outage:
    """A fault of the whole remote: what causes it, and what the status says of it, and what to do."""

    fault: str
    why: str
    advice: str


OUTAGES = [
    Outage("refused", "cannot reach the server", CHECK_NETWORK),
    Outage("hang_up", "cannot reach the server", CHECK_NETWORK),
    Outage("reset_at_once", "cannot reach the server", CHECK_NETWORK),
    Outage("truncate", "cut short", CHECK_NETWORK),
    Outage("shorten", "the content differs from the server's description", "look for a proxy in between"),
    Outage("internal_error", "the server is busy or failing (500", "try again later"),
    Outage("slow_down", "the server is busy or failing (503", "try again later"),
    Outage("too_many", "the server is busy or failing (429", "try again later"),
    Outage("expired", "the credentials are wrong or have expired", "AWS_ACCESS_KEY_ID"),
    Outage("stall", "nothing has arrived for 10 s", CHECK_NETWORK),
    Outage("denied", "access denied", "check its permissions"),
]


@pytest.mark.long
@pytest.mark.promise(1, 3, 14)
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.fault)
def test_a_fault_of_the_whole_remote_is_waited_out(growfs: Growfs, bucket: Bucket, outage: Outage) -> None:
    """Files are listed while all is well, and fetched while nothing is."""
    for number in range(9):
        bucket.put(f"d{number % 3}/{number}")
    growfs.mount(bucket.url, "--refresh", "0.3s", "--miss-timeout", "1s", "--settle", "0")
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    before = dict(bucket.truth)
    growfs.run("pause", growfs.mountpoint)
    for number in range(9, 15):
        bucket.put(f"d{number % 3}/{number}")
    until(lambda: growfs.status()["remote"]["files"] == len(bucket.truth))
    if outage.fault == REFUSED:
        bucket.proxy.is_away = True
    else:
        bucket.proxy.fault = lambda request: FAULTS[outage.fault] if request.is_fetch else None
    growfs.run("resume", growfs.mountpoint)
    found = until(lambda: growfs.status()["outage"], SILENT_S)
    page, log = growfs.run("status", growfs.mountpoint).stdout, growfs.log()
    (line,) = [each for each in page.splitlines() if "waiting for the remote: " in each]
    for words in (outage.why, outage.advice):
        assert words in found["why"]
        assert words in line
        assert any(words in each for each in log.splitlines() if "waiting for the remote: " in each)
    assert outcome(growfs.mountpoint / "d2/14") == "ETIMEDOUT"
    assert growfs.content() == before, "what is cached is served, and nothing else is listed"
    bucket.proxy.is_away, bucket.proxy.fault = False, none
    fill(growfs, bucket)
    status = until(lambda: (status := growfs.status())["last_error"] is None and status)  # the next listing clears it
    assert (status["outage"], status["fetch"]["failed"]) == (None, 0)


@pytest.mark.promise(3, 16)
def test_a_bucket_or_its_objects_that_are_gone_for_a_moment_lose_no_file(growfs: Growfs, bucket: Bucket) -> None:
    """Neither a fetch nor a listing takes NoSuchBucket for the end of a file; NoSuchKey ends it until it is listed."""
    bucket.put("d/cached")
    growfs.mount(bucket.url, "--refresh", "0.3s", "--settle", "0", "--miss-timeout", "1s")
    until(lambda: growfs.names() == {"d/cached"})
    growfs.run("pause", growfs.mountpoint)
    bucket.put("d/missing")
    until(lambda: growfs.status()["remote"]["files"] == 2)
    bucket.proxy.fault = lambda _: FAULTS["no_bucket"]
    assert outcome(growfs.mountpoint / "d/missing") == "ETIMEDOUT"
    assert "no such bucket; check the name" in until(lambda: growfs.status()["outage"])["why"]
    assert growfs.status()["remote"]["files"] == 2
    bucket.proxy.fault = lambda request: None if request.is_listing else FAULTS["missing"]
    until(lambda: outcome(growfs.mountpoint / "d/missing") == "ENOENT")
    assert (growfs.mountpoint / "d/cached").read_bytes() == bucket.truth["d/cached"]
    bucket.proxy.fault = none
    growfs.run("resume", growfs.mountpoint)
    fill(growfs, bucket)


@pytest.mark.promise(1, 2, 16)
def test_an_object_that_changes_between_its_parts_is_no_mix(growfs: Growfs, bucket: Bucket) -> None:
    bucket.put("d/changes", 1 << 20)
    bucket.proxy.hold(lambda request: request.is_part)
    growfs.mount(bucket.url, "--no-wait", "--settle", "0")
    until(lambda: any(request.is_part for request in bucket.proxy.requests))
    old = bucket.truth["d/changes"]
    bucket.truth["d/changes"] = random.Random("new").randbytes(len(old))
    bucket.server.put(f"{bucket.prefix}/d/changes", bucket.truth["d/changes"])
    bucket.proxy.release()
    assert (growfs.mountpoint / "d/changes").read_bytes() == bucket.truth["d/changes"]


@pytest.mark.promise(3)
@pytest.mark.parametrize("status", [pytest.param(301, marks=pytest.mark.long), 307, 400])
def test_a_bucket_in_another_region_is_mounted(growfs: Growfs, bucket: Bucket, status: int) -> None:
    """The store refuses, and names the region (x-amz-bucket-region). The library is not needed for it."""
    for number in range(12):
        bucket.put(f"d{number % 3}/{number}")
    bucket.put("d0/large", 1 << 20)
    redirect = wrong_region("eu-west-1", status)
    bucket.proxy.fault = lambda _: redirect
    growfs.env["AWS_DEFAULT_REGION"] = "us-east-1"
    growfs.mount(bucket.url, "--settle", "0")
    fill(growfs, bucket)
    assert any(request.scope[2:3] == ["us-east-1"] for request in bucket.proxy.requests)
    assert not [request for request in bucket.proxy.requests if "Botocore" in request.headers.get("User-Agent", "")]


LISTING_FAULTS: dict[str, Fault] = {
    "out-of-order": FAULTS["shuffle_page"],
    "page-twice": repeat_page(),
    "page-reset": FAULTS["reset"],
    "page-truncated": FAULTS["truncate"],
    "page-slow-down": FAULTS["slow_down"],
    "page-missing": FAULTS["missing"],
    "page-late": stall(180, before_head=True),
}


@pytest.mark.long
@pytest.mark.promise(16)
@pytest.mark.parametrize("name", LISTING_FAULTS)
def test_a_listing_with_a_bad_page_loses_no_file(growfs: Growfs, rclone_s3: S3Server, name: str) -> None:
    """A first listing whose later pages have the fault, for a while if it keeps them from being read."""
    with proxy_to(rclone_s3.endpoint_url) as proxy:
        growfs.env.update({**rclone_s3.env, "AWS_ENDPOINT_URL": proxy.url})
        bucket = Bucket(rclone_s3, proxy, f"faults-{uuid4().hex[:8]}")
        for number in range(2500):
            bucket.put(f"{number:05}", 10)
        fault, bad = LISTING_FAULTS[name], 0

        def choose(request: Request) -> Fault | None:
            nonlocal bad
            lasts = name in ("out-of-order", "page-twice") or bad < 3
            if not request.is_listing or not lasts or (name != "page-twice" and not request.is_later_page):
                return None
            bad += 1
            return fault

        proxy.fault = choose
        growfs.mount(bucket.url, "--no-wait", "--refresh", "0.3s")
        growfs.run("pause", growfs.mountpoint)
        until(lambda: growfs.status()["remote"]["listed"], 400)
        status = growfs.status()
        assert bad
        assert (status["remote"]["files"], status["last_error"]) == (2500, None)
        assert (growfs.mountpoint / "02499").read_bytes() == bucket.truth["02499"]
        listings = proxy.received
        until(lambda: proxy.received >= listings + 6)
        assert growfs.status()["remote"]["files"] == 2500, "and a later listing loses none"


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize(
    ("kind", "expires"),
    [
        pytest.param(kind, expires, marks=[] if (kind, expires) == ("imds", "early") else pytest.mark.long)
        for kind in KINDS
        for expires in ("early", "as-announced")
    ],
)
def test_credentials_that_expire_are_renewed(
    growfs: Growfs, bucket: Bucket, tmp_path: Path, kind: str, expires: str
) -> None:
    """Nobody has to do anything, also where the store refuses credentials that should have lasted longer."""
    issuer = Issuer(lasts_s=5 if expires == "as-announced" else 3600)
    for number in range(6):
        bucket.put(f"d/{number}")
    with only_credentials_of(issuer, kind, growfs, bucket.proxy, tmp_path):
        growfs.mount(bucket.url, "--refresh", "0.3s", "--settle", "0")
        fill(growfs, bucket)
        issued = issuer.issued
        issuer.revoke()
        for number in range(6, 12):
            bucket.put(f"d/{number}")
        fill(growfs, bucket)
        assert issuer.issued > issued


@pytest.mark.promise(14)
def test_the_processes_of_a_mount_ask_for_credentials_once(growfs: Growfs, bucket: Bucket, tmp_path: Path) -> None:
    issuer = Issuer()
    with only_credentials_of(issuer, "process", growfs, bucket.proxy, tmp_path):
        bucket.put("0")
        growfs.env[SETUP_VARIABLE] = starting_with(4)
        growfs.mount(bucket.url, "--refresh", "0.3s", "--settle", "0", "--workers", 4)
        for issued in (1, 2):
            for number in range(12):
                bucket.put(f"{issued}/{number}")
            fill(growfs, bucket)
            assert issuer.issued == issued
            assert growfs.status()["fetch"]["client"] == "growfs", "the library would have been refused as well"
            issuer.revoke()


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "sso" else pytest.mark.long) for kind in MENDS]
)
def test_credentials_that_cannot_be_renewed_are_waited_for(
    growfs: Growfs, bucket: Bucket, tmp_path: Path, kind: str
) -> None:
    """Whatever the service says. Status and log say once what mends it, and only probes ask the service meanwhile."""
    issuer = Issuer()
    with only_credentials_of(issuer, kind, growfs, bucket.proxy, tmp_path), ThreadPoolExecutor() as pool:
        # The fork server imported botocore, which looks then where its tokens are, with another HOME.
        growfs.env[SETUP_VARIABLE] = (
            "from growfs.remote import retries; retries.DELAY_S_MIN = 0.01\n"
            "import os.path; from botocore.credentials import SSOProvider\n"
            "SSOProvider._SSO_TOKEN_CACHE_DIR = os.path.expanduser('~/.aws/sso/cache')"
        )
        bucket.put("cached")
        growfs.mount(bucket.url, "--refresh", "0.3s", "--settle", "0")
        until(lambda: growfs.names() == {"cached"})
        growfs.run("pause", growfs.mountpoint)
        for number in range(20):
            bucket.put(f"missing/{number}")
        until(lambda: growfs.status()["remote"]["files"] == len(bucket.truth))
        growfs.run("set", growfs.mountpoint, "refresh=1h")
        until(lambda: not growfs.status()["remote"]["listing"])  # one under way would tell of the refusal as well
        issuer.refuses = True
        issuer.revoke()
        growfs.run("resume", growfs.mountpoint)
        outage = until(lambda: growfs.status()["outage"])
        assert MENDS[kind] in outage["why"]
        reading = pool.submit((growfs.mountpoint / "missing/19").read_bytes)
        until(lambda: growfs.status()["miss"]["waiting"])
        probed = issuer.refused
        assert probed < 40
        until(lambda: issuer.refused > probed + 1)
        assert growfs.log().count(MENDS[kind]) == 1
        assert growfs.status()["fetch"]["failed"] == 0
        issuer.refuses = False
        assert reading.result(60) == bucket.truth["missing/19"]
        fill(growfs, bucket)
