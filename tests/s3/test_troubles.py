"""Mounts of a remote that changes, throttles, denies, fails or loses objects."""

from __future__ import annotations

import errno
import itertools
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.daemon.status_text import render
from growfs.fuse.mounting import mounted_at
from growfs.remote.retries import TRIES_MAX
from growfs.remote.stores.s3.key_ranges import BAD_GUESSES_MAX
from growfs.status_and_metrics import MountStatus
from tests.cli.support import start_growfs
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, until
from tests.s3.credentials import Issuer, only_credentials_of
from tests.s3.proxy import Exchange, Fault, Request, none, proxy_to, s3_error, stall
from tests.servers import S3Server

QUICK_RETRIES = """
from growfs.remote import retries
retries.DELAY_S_MIN, retries.DELAY_S_MAX, retries.BUDGET_PER_S = 0.01, 0.1, 100
"""
"""What a worker tries again, it tries again almost at once."""


@pytest.fixture
def prefix() -> str:
    return f"troubles-{uuid4().hex[:8]}"


def put(server: S3Server, prefix: str, *paths: str) -> str:
    """Put objects whose content is their path; returns the URL."""
    for path in paths:
        server.put(f"{prefix}/{path}", path.encode())
    return f"s3://{server.bucket}/{prefix}"


def is_fetch_of(path: str) -> Callable[[Request], bool]:
    return lambda request: request.is_fetch and request.target.split("?")[0].endswith(f"/{path}")


def metrics(growfs: Growfs) -> str:
    return (growfs.mountpoint / ".growfs/metrics").read_text()


@pytest.mark.promise(2, 16)
def test_changes_of_the_remote_appear_in_this_mount_and_the_next(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/changes", "d/deleted", "d/stays")
    growfs.mount(url, "--settle", "0", "--refresh", "0")
    assert growfs.names() == {"d/changes", "d/deleted", "d/stays"}
    changing = growfs.mountpoint / "d/changes"
    inode, steady = changing.stat().st_ino, (growfs.mountpoint / "d/stays").stat().st_ino
    with changing.open("rb", buffering=0) as old:
        assert old.read(4) == b"d/ch"
        moto.put(f"{prefix}/d/changes", b"D/CHANGES")  # of the same size
        moto.put(f"{prefix}/e/new", b"new")
        moto.delete(f"{prefix}/d/deleted")
        growfs.run("set", growfs.mountpoint, "refresh=0.2s")
        until(lambda: growfs.names() == {"d/changes", "d/stays", "e/new"})
        until(lambda: changing.read_bytes() == b"D/CHANGES")
        assert old.read() == b"anges", "an open file keeps its content"
    assert changing.stat().st_ino != inode
    assert (growfs.mountpoint / "d/stays").stat().st_ino == steady
    assert (growfs.mountpoint / "e/new").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        (growfs.mountpoint / "d/deleted").stat()
    growfs.umount()
    moto.put(f"{prefix}/d/changes", b"changed while unmounted")
    moto.put(f"{prefix}/e/newer", b"newer")
    moto.delete(f"{prefix}/e/new")
    growfs.mount(url, "--settle", "0")
    until(lambda: growfs.names() == {"d/changes", "d/stays", "e/newer"})
    until(lambda: changing.read_bytes() == b"changed while unmounted")


@pytest.mark.promise(2, 16)
@pytest.mark.parametrize("listed", [b"", b"<ETag>&quot;other-\\1&quot;</ETag>"], ids=["no", "another"])
def test_a_store_that_lists_other_etags_than_it_sends_changes_no_file(
    growfs: Growfs, moto: S3Server, prefix: str, listed: bytes
) -> None:
    """Not even one that is answered before it is known, and handled after that."""
    url = put(moto, prefix, *"abcd")
    looking: list[str] = []

    def looks_after_the_first(request: Request) -> bool:
        """Whether a file is requested in another manner, as each is at first, and is not the first one of them."""
        if looks := request.headers["Range"] == "bytes=0-0":
            looking.append(request.target)
        return looks and request.target != looking[0]

    def is_first_known() -> bool:
        whole = [request.target for request in proxy.requests if request.is_fetch and not request.headers["Range"]]
        return whole.count(looking[0]) == 2 if looking else bool(growfs.names())

    def list_otherwise(exchange: Exchange) -> None:
        response = exchange.forward()
        exchange.send(replace(response, body=re.sub(rb"<ETag>\W*(?:quot;)?(\w+).*?</ETag>", listed, response.body)))

    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: list_otherwise if request.is_listing else None
        proxy.hold(looks_after_the_first)
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--refresh", "0.2s", "--no-wait")
        until(is_first_known)
        proxy.release()
        until(lambda: growfs.names() == set("abcd"))
        until(lambda: growfs.log().count(", 0 of them new, changed or gone") > 3)
        assert growfs.status()["fetch"]["files_total"] == 4
        log = growfs.log()
        assert log.count("of them new, changed or gone") == log.count(", 0 of them new, ") + 1
        moto.put(f"{prefix}/b", b"another size")
        until(lambda: (growfs.mountpoint / "b").read_bytes() == b"another size")


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize(
    "why",
    [
        "cannot reach the server",
        pytest.param("the credentials are wrong or have expired", marks=pytest.mark.long),
    ],
)
def test_an_outage_in_the_middle_of_filling_is_waited_out(
    growfs: Growfs, moto: S3Server, prefix: str, why: str
) -> None:
    paths = [f"d{number % 3}/{number}" for number in range(60)]
    url = put(moto, prefix, *paths)
    growfs.env[SETUP_VARIABLE] = QUICK_RETRIES
    with proxy_to(moto.endpoint_url) as proxy:
        count = itertools.count()
        proxy.hold(lambda request: request.is_fetch and next(count) >= 10)
        growfs.mount(url, "--endpoint-url", proxy.url, "--wait-files", "5")
        listed = growfs.names()
        if "credentials" in why:
            proxy.fault = lambda _: s3_error(403, "ExpiredToken")
        else:
            proxy.is_away = True
        proxy.release()
        outage = until(lambda: growfs.status()["outage"])
        assert why in outage["why"]
        page = growfs.run("status", growfs.mountpoint).stdout
        assert "waiting for the remote: s3://" in page
        assert "next try" in page
        (away_s,) = re.findall(r"^growfs_outage_seconds (.*)$", metrics(growfs), re.MULTILINE)
        assert float(away_s) > 0
        assert {path: (growfs.mountpoint / path).read_text() for path in listed} == {path: path for path in listed}
        missing = growfs.mountpoint / next(path for path in reversed(paths) if path not in listed)
        growfs.run("set", growfs.mountpoint, "miss-timeout=0.5s")
        with pytest.raises(TimeoutError):
            missing.read_bytes()
        assert growfs.status()["miss"]["wait_s_total"] >= 0.5
        growfs.run("set", growfs.mountpoint, "miss-timeout=300s")
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(missing.read_bytes)
            until(lambda: growfs.status()["miss"]["files_total"] == 2)
            proxy.is_away, proxy.fault = False, lambda _: None
            assert reading.result(60).decode() == str(missing.relative_to(growfs.mountpoint))
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
        status = growfs.status()
    assert (status["outage"], status["last_error"], status["fetch"]["failed"]) == (None, None, 0)
    assert "the remote answers again" in (growfs.mountpoint / ".growfs/log").read_text()


@pytest.mark.long
@pytest.mark.promise(14)
def test_a_probe_says_that_credentials_have_expired(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    """Also where the outage began for another reason, and the files are empty: a response to HEAD has no reason."""
    url = put(moto, prefix, "a")
    moto.put(f"{prefix}/empty", b"")
    growfs.env[SETUP_VARIABLE] = "from growfs.scheduler import outage; outage.PAUSE_S_MIN = 0.1"
    with proxy_to(moto.endpoint_url) as proxy:
        growfs.mount(url, "--endpoint-url", proxy.url, "--include", "empty", "--refresh", "0.2s")
        proxy.is_away = True
        assert "cannot reach the server" in until(lambda: growfs.status()["outage"])["why"]
        proxy.fault = lambda _: s3_error(403, "ExpiredToken")
        proxy.is_away = False
        until(lambda: "cannot reach the server" not in (growfs.status()["outage"] or {"why": ""})["why"])
        received = proxy.received
        until(lambda: proxy.received > received + 2)
        assert "the credentials are wrong or have expired" in growfs.status()["outage"]["why"]
        proxy.fault = lambda _: None
        until(lambda: growfs.status()["outage"] is None)


@pytest.mark.promise(3, 14)
def test_files_are_served_from_the_first_page_of_a_listing_on(growfs: Growfs, rclone_s3: S3Server, prefix: str) -> None:
    growfs.env.update(rclone_s3.env)
    url = put(rclone_s3, prefix, *(f"{number:05}" for number in range(2500)))
    with proxy_to(rclone_s3.endpoint_url) as proxy:
        proxy.hold(lambda request: request.is_later_page)
        growfs.mount(url, "--endpoint-url", proxy.url, "--wait-files", "1")
        until(lambda: any(request.is_later_page for request in proxy.requests))
        status = growfs.status()
        assert (status["state"], status["remote"]["listed"], status["remote"]["files"]) == ("listing", False, 1000)
        (first, *_) = growfs.names()
        assert (growfs.mountpoint / first).read_text() == first
        growfs.run("pause", growfs.mountpoint)
        proxy.release()
        until(lambda: growfs.status()["remote"]["listed"])
        assert growfs.status()["remote"]["files"] == 2500
        assert (growfs.mountpoint / "02499").read_bytes() == b"02499", "a file of the last page is served"
        pages = [request.target for request in proxy.requests if request.is_listing]
        assert len(pages) == len(set(pages)) <= 3 + BAD_GUESSES_MAX, "no page is requested twice"


SHORT_PAGES = """
from growfs.remote.stores.s3 import bucket
bucket.PAGE_FILES_MAX = 2
"""
SLOW_PAGES = f"""
{SHORT_PAGES}
from growfs.workers import messages
bucket.TIMEOUTS = bucket.TIMEOUTS.__class__(5, 0.6)
messages.HEARTBEAT_S = 0.1
"""


@pytest.mark.promise(16)
def test_a_listing_whose_pages_take_longer_than_a_timeout_is_completed(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    """As minutes for a page, in small: a request that is repeated starts the server's work anew."""
    url = put(moto, prefix, "a", "b", "c", "d")
    growfs.env[SETUP_VARIABLE] = SLOW_PAGES
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: stall(1.0, before_head=True) if request.is_later_page else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        slow = until(lambda: (status := growfs.status())["remote"]["listing_silent_s"] and status)
        assert "2 files, 2 bytes so far; the listing is slow: no page has arrived for " in render(
            MountStatus.parse(slow)
        )
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
        status = growfs.status()
        assert (status["cache"]["files"], status["remote"]["files"]) == (4, 4)
        repeated = Counter(request.target for request in proxy.requests if request.is_later_page)
        assert max(repeated.values()) <= 4
        assert len(repeated) <= 1 + BAD_GUESSES_MAX
    assert (status["remote"]["listing_silent_s"], status["last_error"]) == (None, None)
    assert growfs.log().count(f"the listing of {url} is slow: its server has sent no page for ") == 1


WAITING_PAGES = f"""
{SHORT_PAGES}
{QUICK_RETRIES}
from growfs.workers import messages
messages.HEARTBEAT_S = 0.1
"""
TRIES_OF_HOURS = 20


@pytest.mark.promise(14, 16)
@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        pytest.param(0, "", "cannot reach the server", marks=pytest.mark.long),
        (403, "ExpiredToken", "the credentials are wrong or have expired"),
    ],
)
def test_a_listing_goes_on_where_it_stopped(
    growfs: Growfs, moto: S3Server, prefix: str, tmp_path: Path, status: int, code: str, why: str
) -> None:
    """However long the store was away, and with other credentials than before."""
    url = put(moto, prefix, *"abcdefgh")
    growfs.env[SETUP_VARIABLE] = WAITING_PAGES
    issuer = Issuer()
    with (
        proxy_to(moto.endpoint_url) as proxy,
        only_credentials_of(issuer, "web-identity", growfs, proxy, tmp_path),
    ):
        proxy.hold(lambda request: request.is_later_page)
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        until(lambda: any(request.is_later_page for request in proxy.requests))
        if status:
            proxy.fault = lambda _: s3_error(status, code)
        else:
            proxy.is_away = True
        proxy.release()
        assert why in until(lambda: growfs.status()["last_error"])
        until(lambda: growfs.status()["state"] == "waiting")
        assert mounted_at(growfs.mountpoint)
        if status:
            until(lambda: sum(request.is_later_page for request in proxy.requests) > TRIES_OF_HOURS)
        issuer.revoke()
        proxy.is_away, proxy.fault = False, issuer.choose
        until(lambda: growfs.status()["remote"]["listed"])
        found = growfs.status()
        assert (found["remote"]["files"], found["last_error"]) == (8, None)
        assert sum(request.is_listing and not request.is_later_page for request in proxy.requests) == 1


@pytest.mark.promise(16)
def test_a_listing_that_is_denied_while_files_are_served_fails(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    """It would wait for ever, as for a folder that nobody may read."""
    url = put(moto, prefix, *"abcd")
    growfs.env[SETUP_VARIABLE] = WAITING_PAGES
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: s3_error(403, "AccessDenied") if request.is_later_page else None
        done = growfs.mount(url, "--endpoint-url", proxy.url, check=False)
    assert done.returncode
    assert f"{url}: access denied (403" in done.stderr


@pytest.mark.promise(16)
def test_waiting_for_all_files_includes_those_of_a_listing_under_way(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    """Of the first listing, and of that of a mount whose catalog is from an earlier one."""
    url = put(moto, prefix, "a", "b", "c")
    growfs.env[SETUP_VARIABLE] = SHORT_PAGES
    with proxy_to(moto.endpoint_url) as proxy:
        for name in ("d", "e"):
            moto.put(f"{prefix}/{name}", b"new")
            proxy.hold(lambda request: request.is_later_page)
            growfs.mount(url, "--endpoint-url", proxy.url, "--wait-files", "2")
            done = growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "0.3s", check=False)
            assert "timed out after 0.3s" in done.stderr
            proxy.release()
            growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
            assert growfs.status()["cache"]["files"] == (4 if name == "d" else 5)
            growfs.umount()


@pytest.mark.promise(7, 14)
def test_a_file_of_each_directory_comes_next_once_the_listing_is_complete(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    """However much of what was known before would be drawn."""
    url = put(moto, prefix, *(f"a/{number}" for number in range(6)), "z/0")
    growfs.env[SETUP_VARIABLE] = (
        "from growfs.remote.stores.s3 import bucket; from growfs.scheduler import prefetcher, stream_count\n"
        "bucket.PAGE_FILES_MAX, prefetcher.LISTING_GRACE_S = 6, 0\n"
        "stream_count.AHEAD_FILES, stream_count.IN_FLIGHT_FILES = 0, 1\n"
    )
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.hold(lambda request: request.is_later_page or request.is_fetch)
        with start_growfs(growfs, *growfs.mount_words(url, "--endpoint-url", proxy.url)) as mounting:
            until(lambda: any(request.is_fetch for request in proxy.requests))
            proxy.hold(lambda request: request.is_fetch)
            proxy.fault = none  # has those that are held look again
            until(lambda: growfs.status()["remote"]["listed"])
            proxy.release()
            assert mounting.wait(60) == 0
    fetched = [request.target.split("?")[0][-3:] for request in proxy.requests if request.is_fetch]
    assert fetched.index("z/0") <= 2, fetched


@pytest.mark.promise(7, 15)
@pytest.mark.parametrize(
    ("folders", "flags", "why"),
    [
        ("", ["--list-timeout", "0.2s"], "the listing was not complete after 0.2 s"),
        ("/1/2/3/4/5/6/7/8/9/10/x", [], "more than 100 directories"),
    ],
    ids=["slow", "too many directories"],
)
def test_a_mount_returns_while_a_long_listing_goes_on(
    growfs: Growfs, moto: S3Server, prefix: str, folders: str, flags: list[str], why: str
) -> None:
    """With the first page alone, or at once if that has more directories than are waited for."""
    growfs.env[SETUP_VARIABLE] = (
        "from growfs.remote.stores.s3 import bucket; from growfs.scheduler import prefetcher, readiness\n"
        "bucket.PAGE_FILES_MAX, prefetcher.LISTING_GRACE_S, readiness.SEED_DIRECTORIES_MAX = 20, 0, 100\n"
    )
    for number in range(21):
        moto.put(f"{prefix}/{number:05}{folders}", b"x" * 20_000)
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.hold(lambda request: request.is_later_page)
        growfs.mount(f"s3://{moto.bucket}/{prefix}", "--endpoint-url", proxy.url, "--cache-size", "2MB", *flags)
        status = growfs.status()
        assert (status["state"], status["remote"]["listed"]) == ("listing", False)
        assert why in status["unpromised"]
        assert status["cache"]["content_bytes"] >= 200_000, "a tenth of the cache"
        assert growfs.names()


@pytest.mark.promise(3, 14)
def test_no_file_is_given_up_in_a_storm_of_throttling(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    """A store that refuses most files until one was refused more often than a worker tries it, and serves others."""
    paths = [f"d{number % 3}/{number}" for number in range(60)]
    url = put(moto, prefix, *paths)
    refused = Counter[str]()

    def throttle(request: Request) -> Fault | None:
        if not request.is_fetch or "/d0/" in request.target:
            return None
        refused[request.target] += 1
        return s3_error(503, "SlowDown")

    growfs.env[SETUP_VARIABLE] = QUICK_RETRIES
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = throttle
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        growfs.until_cached(20)
        until(lambda: max(refused.values()) > TRIES_MAX and len(refused) > 10)
        proxy.fault = none
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
        status = growfs.status()
    assert (status["cache"]["files"], status["fetch"]["failed"], status["last_error"]) == (60, 0, None)
    assert "not fetched" not in (growfs.mountpoint / ".growfs/log").read_text()


@pytest.mark.promise(3)
def test_an_object_that_always_fails_is_reported_and_the_rest_served(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    paths = [f"d/{number}" for number in range(6)]
    url = put(moto, prefix, *paths)
    growfs.env[SETUP_VARIABLE] = QUICK_RETRIES
    with proxy_to(moto.endpoint_url) as proxy:
        bad = is_fetch_of("d/3")
        proxy.fault = lambda request: s3_error(500, "InternalError") if bad(request) else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--wait-files", "1")
        with pytest.raises(OSError, match="Input/output error") as caught:
            (growfs.mountpoint / "d/3").read_bytes()
        assert caught.value.errno == errno.EIO
        growfs.until_cached(5)
        until(lambda: growfs.names() == set(paths) - {"d/3"})
        status = growfs.status()
        assert status["fetch"]["failed"] >= 1
        assert f"{url}/d/3: the server is busy or failing (500" in status["last_error"]
        assert "last error" in growfs.run("status", growfs.mountpoint).stdout
        assert f"{url}/d/3: the server is busy or failing (500" in (growfs.mountpoint / ".growfs/log").read_text()
        proxy.fault = lambda _: None
        assert (growfs.mountpoint / "d/3").read_bytes() == b"d/3", "opening it retries the fetch"


@pytest.mark.promise(3, 16, 33)
def test_what_changes_or_is_deleted_after_the_listing_is_not_served_as_listed(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    url = put(moto, prefix, "d/0", "d/changes", "d/deleted")
    new = b"new and longer"
    with proxy_to(moto.endpoint_url) as proxy:
        is_changed, is_deleted = is_fetch_of("d/changes"), is_fetch_of("d/deleted")
        proxy.hold(lambda request: is_changed(request) or is_deleted(request))
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--refresh", "0", "--no-wait")
        until(lambda: any(map(is_changed, proxy.requests)) and any(map(is_deleted, proxy.requests)))
        moto.put(f"{prefix}/d/changes", new)
        moto.delete(f"{prefix}/d/deleted")
        proxy.release()
        until(lambda: growfs.names() == {"d/0", "d/changes"})
        until(lambda: growfs.status()["remote"]["files"] == 2)
        changes = growfs.mountpoint / "d/changes"
        assert (changes.read_bytes(), changes.stat().st_size) == (new, len(new))
        with pytest.raises(FileNotFoundError):
            (growfs.mountpoint / "d/deleted").read_bytes()
        growfs.run("pause", growfs.mountpoint)
        growfs.run("evict", growfs.mountpoint, "d/0")
        moto.put(f"{prefix}/d/0", new)
        assert (growfs.mountpoint / "d/0").read_bytes() == new, "an open reads the present version"


def test_a_mount_fails_when_access_to_all_objects_is_denied(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/0", "d/1", "d/2", "d/3")
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: s3_error(403, "AccessDenied") if request.is_fetch else None
        done = growfs.mount(url, "--endpoint-url", proxy.url, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("growfs: ")
    assert done.stderr.count("\n") == 1
    assert "no file could be fetched" in done.stderr
    assert "access denied" in done.stderr
    assert f"{url}/d/" in done.stderr
    assert not mounted_at(growfs.mountpoint)
    assert [path for path in growfs.cache_dir.iterdir() if path.is_dir()] == []
    (log,) = growfs.cache_dir.glob("*.log")
    assert f"its log is {log}\n" in done.stderr
    assert "access denied" in log.read_text()


@pytest.mark.promise(23)
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (s3_error(403, "AccessDenied"), "access denied"),
        (s3_error(404, "NoSuchKey"), "no such file"),
        (None, "val/1 (archived: "),
    ],
    ids=["denied", "missing", "archived"],
)
def test_a_mount_fails_if_a_frozen_file_cannot_be_fetched(
    growfs: Growfs, moto: S3Server, prefix: str, fault: Fault | None, why: str
) -> None:
    url = put(moto, prefix, "train/0", "train/1", "val/0", "val/1")
    if fault is None:
        with moto.client() as client:
            client.put_object(Bucket=moto.bucket, Key=f"{prefix}/val/1", Body=b"1", StorageClass="DEEP_ARCHIVE")
    bad = is_fetch_of("val/1")
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: fault if bad(request) else None
        done = growfs.mount(url, "--endpoint-url", proxy.url, "--freeze", "val/**", check=False)
    assert done.returncode == 1
    assert "growfs: not all files that --freeze names could be fetched: " in done.stderr
    assert "val/1" in done.stderr
    assert why in done.stderr
    assert not mounted_at(growfs.mountpoint)


def test_a_frozen_file_that_was_not_waited_for_and_fails_is_warned_about(
    growfs: Growfs, moto: S3Server, prefix: str
) -> None:
    url, bad = put(moto, prefix, "train/0", "val/0", "val/1"), is_fetch_of("val/1")
    with proxy_to(moto.endpoint_url) as proxy:
        proxy.fault = lambda request: s3_error(403, "AccessDenied") if bad(request) else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--freeze", "val/**", "--wait-files", "2")
        [warning] = until(lambda: growfs.status()["warnings"])
        assert warning.startswith(f"not all files that --freeze names could be fetched: {url}/val/1: access denied")
        proxy.fault = none
        assert (growfs.mountpoint / "val/1").read_bytes() == b"val/1"
        until(lambda: growfs.status()["warnings"] == [])
