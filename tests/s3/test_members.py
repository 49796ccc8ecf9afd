"""Mounts with --members: the members of archives in a bucket are the files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.archives import by_tarfile, samples, tar_of
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, until
from tests.s3.proxy import Proxy, proxy_to, s3_error, stall
from tests.servers import S3Server

SHARDS = {f"train-{number}.tar": tar_of(samples(number)) for number in range(4)}


def members(shards: dict[str, bytes]) -> dict[str, bytes]:
    """What tarfile finds in shards, by path in the mount."""
    return {
        f"{shard.removesuffix('.tar')}/{name}": data
        for shard, archive in shards.items()
        for name, data in by_tarfile(archive).items()
    }


class ShardBucket:
    """Shards below a prefix of a bucket, behind a proxy that records the requests."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy
        self.prefix = f"shards-{uuid4().hex[:8]}"
        self.url = f"s3://{server.bucket}/{self.prefix}"
        self.flags = ("--endpoint-url", proxy.url, "--members")

    def put(self, shards: dict[str, bytes]) -> None:
        for name, data in shards.items():
            self.server.put(f"{self.prefix}/{name}", data)

    @property
    def gets(self) -> list[str]:
        """The name of the shard that each GET was for."""
        return [request.target.split("?")[0].rpartition("/")[2] for request in self.proxy.requests if request.is_fetch]


@pytest.fixture
def bucket(moto_s3: S3Server, growfs: Growfs) -> Iterator[ShardBucket]:
    growfs.env.update(moto_s3.env)
    with proxy_to(moto_s3.endpoint_url) as proxy:
        bucket = ShardBucket(moto_s3, proxy)
        bucket.put(SHARDS)
        yield bucket


def wait(growfs: Growfs) -> None:
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")


@pytest.mark.promise(35)
def test_each_member_is_a_file_that_takes_one_request_and_a_restart_takes_none(
    growfs: Growfs, bucket: ShardBucket
) -> None:
    bucket.put({"broken.tar": b"x" * 1000})
    growfs.mount(bucket.url, *bucket.flags, "tar")
    wait(growfs)
    expected = members(SHARDS)
    assert growfs.content() == expected
    assert all((growfs.mountpoint / path).stat().st_size == len(data) for path, data in expected.items())
    ranges = [request.headers["Range"] for request in bucket.proxy.requests if request.is_fetch]
    shards = len(SHARDS) + 1
    assert ranges.count(None) == shards, "each shard is read whole once"
    assert len(ranges) == shards + sum(bool(data) for data in expected.values())
    growfs.umount()
    bucket.proxy.requests.clear()
    growfs.mount(bucket.url, *bucket.flags, "tar")
    until(lambda: any(request.is_listing for request in bucket.proxy.requests))
    until(lambda: not growfs.status()["remote"]["listing"])
    assert growfs.content() == expected
    assert bucket.gets == []
    assert growfs.status()["skipped"] != []


def test_a_store_that_falls_silent_in_each_shard_is_named_and_given_up(growfs: Growfs, bucket: ShardBucket) -> None:
    growfs.env[SETUP_VARIABLE] = (
        "from growfs.extensions.members import members; from growfs.scheduler import refresh\n"
        "from growfs.workers import messages\n"
        "members.KEEPALIVE_S, messages.HEARTBEAT_S, refresh.FIRST_PAGE_S_MAX = 0.05, 0.2, 1.0"
    )
    bucket.proxy.fault = lambda request: stall(1000) if request.is_fetch else None
    refused = growfs.mount(bucket.url, *bucket.flags, "tar", "--list-timeout", "20s", check=False)
    assert re.search(rf"{bucket.url}: its server has not answered the listing request for \d+ s", refused.stderr)


@pytest.mark.promise(36)
def test_a_shard_that_cannot_be_read_keeps_its_members(growfs: Growfs, bucket: ShardBucket) -> None:
    growfs.mount(bucket.url, *bucket.flags, "tar", "--refresh", "0.3s")
    wait(growfs)
    before = growfs.content()
    bucket.proxy.fault = lambda request: (
        s3_error(403, "AccessDenied") if request.is_fetch and "train-1.tar" in request.target else None
    )
    bucket.put({"train-1.tar": tar_of(samples(99)), "train-9.tar": tar_of(samples(9))})
    until(lambda: any(skip["example"] == "train-1.tar" for skip in growfs.status()["skipped"]))
    growfs.until_cached(len(before) * 5 // 4)
    assert before.keys() <= set(growfs.names())
    assert {path: (growfs.mountpoint / path).read_bytes() for path in before} == before
    bucket.proxy.fault = lambda _: None
    changed = members({"train-1.tar": tar_of(samples(99))})
    until(lambda: all((growfs.mountpoint / path).exists() for path in changed))
    assert {path: (growfs.mountpoint / path).read_bytes() for path in changed} == changed


@pytest.mark.promise(36)
def test_only_the_members_of_a_changed_shard_are_updated(growfs: Growfs, bucket: ShardBucket) -> None:
    growfs.mount(bucket.url, *bucket.flags, "tar", "--settle", "0", "--refresh", "0")
    wait(growfs)
    inodes = {path: (growfs.mountpoint / path).stat().st_ino for path in growfs.names()}
    changed_shards = {"train-2.tar": tar_of(samples(2) | {"0020000.cls": b"2", "new": b"new"})}
    bucket.put(changed_shards)
    bucket.proxy.requests.clear()
    growfs.run("set", growfs.mountpoint, "refresh=0.2s")
    now = members(SHARDS | changed_shards)
    changed_paths = {path for path in inodes if path.startswith("train-2/")}

    def unchanged() -> set[str]:
        return {path for path, inode in inodes.items() if (growfs.mountpoint / path).stat().st_ino == inode}

    until(lambda: growfs.names() == now.keys() and not unchanged() & changed_paths)
    assert unchanged() == inodes.keys() - changed_paths
    assert growfs.content() == now
    assert set(bucket.gets) == {"train-2.tar"}
    growfs.run("set", growfs.mountpoint, "refresh=0")
    growfs.run("pause", growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "train-1/", "train-3/")
    bucket.put({"train-1.tar": tar_of({"0010003.bin": b"is here now"})})
    bucket.server.delete(f"{bucket.prefix}/train-3.tar")
    assert (growfs.mountpoint / "train-1/0010003.bin").read_bytes() == b"is here now", "a miss finds the present ones"
    for deleted in ("train-1/0010000.bin", "train-3/0030000.bin"):
        with pytest.raises(FileNotFoundError):
            (growfs.mountpoint / deleted).read_bytes()


@pytest.mark.promise(35, 37)
def test_broken_shards_and_odd_names_are_reported_and_the_others_served(growfs: Growfs, bucket: ShardBucket) -> None:
    odd = tar_of({"../x": b"x", "fine.bin": b"fine", "twice.bin": b"first", "./twice.bin": b"second"})
    bucket.put({"odd.tar": odd, "cut.tar": SHARDS["train-0.tar"][:1600], "notes.txt": b"no archive"})
    growfs.mount(bucket.url, *bucket.flags, "tar", "--include", "*.bin")
    wait(growfs)
    good = {path: data for path, data in members(SHARDS).items() if path.endswith(".bin")}
    assert growfs.content() == {**good, "odd/fine.bin": b"fine", "odd/twice.bin": b"first"}
    skipped = {skip["reason"]: skip["example"] for skip in growfs.status()["skipped"]}
    assert skipped == {
        "not readable by growfs.producers:tar: 0000000.bin extends past the end of the file": "cut.tar",
        "not readable by growfs.producers:tar: truncated header": "notes.txt",
        "name occurs twice": "odd/twice.bin",
    }
    assert "cut.tar: not readable" in growfs.log()
    assert not [path for path in growfs.cache_dir.rglob("x") if path.is_file()]


@pytest.mark.promise(37)
def test_a_bucket_of_only_compressed_shards_is_refused(growfs: Growfs, moto_s3: S3Server) -> None:
    growfs.env.update(moto_s3.env)
    moto_s3.put("compressed/a.tar.gz", b"\x1f\x8b" + b"x" * 1000)
    done = growfs.mount(f"s3://{moto_s3.bucket}/compressed", "--members", "tar", check=False)
    assert done.returncode == 1
    assert "there are no files" in done.stderr
    assert "a.tar.gz was skipped: not readable by growfs.producers:tar: compressed with gzip" in done.stderr


@pytest.mark.promise(38)
def test_a_function_that_crashes_does_not_end_the_daemon(
    growfs: Growfs, bucket: ShardBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashing.py").write_text(
        "import os\nfrom growfs.producers import tar\n\n"
        "def find(source):\n"
        "    for member in tar(source):\n"
        "        if member.name == 'crash':\n"
        "            os.abort()\n"
        "        yield member\n"
    )
    monkeypatch.chdir(tmp_path)
    growfs.mount(bucket.url, *bucket.flags, "crashing:find", "--refresh", "0.2s")
    wait(growfs)
    bucket.put({"train-9.tar": tar_of({"crash": b""})})
    until(lambda: "the process that lists the remote died" in str(growfs.status()["last_error"]))
    assert growfs.content() == members(SHARDS)
