"""Files by plain GETs: what servers do wrong, and that it ends in the right file, the right error, or the library."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from awscrt import checksums

from growfs.errors import RemoteBusy, RemoteChanged, RemoteDenied, RemoteError, RemoteMissing
from growfs.remote import digest
from growfs.remote.digest import Digest
from growfs.remote.http.download import USELESS_HEADS_MAX
from growfs.remote.http.threads import THREADS_DEFAULT
from growfs.remote.protocol import ByteRange, FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3.store import S3Remote
from growfs.remote.stores.web import HttpRemote
from growfs.remote.wrappers.retry import RetryingRemote
from tests.remote.store import DATA, FILE, PART, SMALL, Asked, Show, Store, fetched, s3
from tests.servers import S3Server

OTHER = random.Random(4).randbytes(len(DATA))

pytestmark = pytest.mark.usefixtures("small_parts")


def test_parts_are_asked_for_once_each_of_one_version(show: Show, tmp_path: Path, library: list[str]) -> None:
    store = Store(DATA)
    remote = s3(show(store))
    assert fetched(remote, tmp_path, RemoteFile("x", len(DATA), None, "v1")) == DATA
    assert sorted(asked.start or 0 for asked in store.gets) == list(range(0, len(DATA), PART))
    assert {asked.headers["If-Match"] for asked in store.gets if asked.start} == {'"v1"'}
    assert fetched(remote, tmp_path) == DATA
    assert len({asked.port for asked in store.gets}) <= THREADS_DEFAULT + 1
    assert ({asked.method for asked in store.asked}, library) == ({"GET", "HEAD"}, [])


@pytest.mark.parametrize("size", [len(SMALL), None])
def test_a_small_file_is_one_get(show: Show, tmp_path: Path, library: list[str], size: int | None) -> None:
    store = Store(SMALL)
    remote = s3(show(store))
    for _ in range(3):
        assert fetched(remote, tmp_path, RemoteFile("x", size, None, "v1")) == SMALL
    assert [asked.method for asked in store.asked] == ["GET"] * 3
    assert (len({asked.port for asked in store.asked}), library) == (1, [])
    assert {asked.start for asked in store.asked} == {None if size else 0}


@pytest.mark.parametrize("part", [ByteRange(0, 10), ByteRange(3 * PART + 7, PART), ByteRange(PART - 1, 4 * PART + 3)])
def test_a_part_of_a_file_is_asked_for_alone(show: Show, tmp_path: Path, library: list[str], part: ByteRange) -> None:
    store = Store(DATA)
    passed = Digest()
    found = s3(show(store)).fetch(
        FetchTask(RemoteFile("x", None, None, "v1"), tmp_path / "target", digest=passed, byte_range=part)
    )
    data = DATA[part.offset : part.offset + part.size]
    assert ((tmp_path / "target").read_bytes(), found.size, library) == (data, len(DATA), [])
    assert passed.text() == digest.of(tmp_path / "target")
    starts = range(part.offset, part.offset + part.size, PART)
    assert sorted((asked.method, asked.start or 0) for asked in store.asked) == [("GET", start) for start in starts]


def test_a_server_without_ranges_is_told_of(show: Show, tmp_path: Path, library: list[str]) -> None:
    remote = s3(show(Store(DATA, ranges="ignored")))
    with pytest.raises(RemoteError, match="sends whole files only"):
        remote.fetch(FetchTask(FILE, tmp_path / "target", byte_range=ByteRange(10, 10)))
    assert library == ["x"]


@pytest.mark.parametrize("kind", [s3, lambda url: HttpRemote(RemoteSpec(url))])
@pytest.mark.parametrize("ranges", ["partial", "rclone", "ignored"])
@pytest.mark.parametrize("keeps_alive", [True, False])
@pytest.mark.parametrize("size", [len(DATA), None])
def test_servers_differ(
    show: Show, tmp_path: Path, library: list[str], kind: Any, ranges: str, keeps_alive: bool, size: int | None
) -> None:
    store = Store(DATA, ranges=ranges, keeps_alive=keeps_alive)
    assert fetched(kind(show(store)), tmp_path, RemoteFile("x", size, None, "v1")) == DATA
    assert (len(store.gets), library) == (1 if ranges == "ignored" else 11, [])


def test_a_kept_connection_that_the_server_has_closed(show: Show, tmp_path: Path, library: list[str]) -> None:
    store = Store(SMALL, hangs_up=True)
    remote = s3(show(store))
    for _ in range(3):
        assert fetched(remote, tmp_path) == SMALL
    assert (len({asked.port for asked in store.asked}), library) == (3, [])


@pytest.mark.promise(33)
@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"etag": '"v2"', "data": OTHER},
        {"etag": None, "modified": "Tue, 03 Nov 2020 10:00:01 GMT", "data": OTHER},
        {"etag": None, "data": OTHER + b"x"},
        {"etag": None, "data": OTHER[:-1]},
    ],
)
def test_a_file_that_changes_midway(show: Show, tmp_path: Path, heeds: bool, change: dict[str, Any]) -> None:
    store = Store(DATA, etag='"v1"' if change["etag"] else None, heeds_if_match=heeds)

    def before(_: Asked) -> None:
        if len(store.gets) == 6:
            for name, value in change.items():
                setattr(store, name, value)

    store.before = before
    with pytest.raises(RemoteChanged):
        s3(show(store)).fetch(FetchTask(FILE, tmp_path / "target"))


def test_another_version_than_listed_is_not_read(show: Show, tmp_path: Path) -> None:
    store = Store(DATA)
    for file in (RemoteFile("x", None, None, "v0"), RemoteFile("x", len(DATA) + 1, None, "v1")):
        with pytest.raises(RemoteChanged):
            s3(show(store)).fetch(FetchTask(file, tmp_path / "target"))


@pytest.mark.parametrize(
    "odd",
    [
        {"location": "elsewhere"},
        {"body": "gzip"},
        {"body": "chunked"},
        {"body": "endless"},
        {"etag": None, "modified": None},
        {"etag": 'W/"v1"', "modified": None},
        {"data": b""},
    ],
)
def test_what_is_left_to_the_library(show: Show, tmp_path: Path, library: list[str], odd: dict[str, Any]) -> None:
    store = Store(**{"data": DATA, **odd})
    remote = HttpRemote(RemoteSpec(show(store)))
    for _ in range(5):
        assert fetched(remote, tmp_path) == store.data
    assert library == ["x"] * 5
    ranged = len([asked for asked in store.asked if asked.start == 0])
    assert ranged == (5 if odd == {"data": b""} else 3), "an odd server is not tried for ever"


def test_a_range_that_is_ignored_midway(show: Show, tmp_path: Path, library: list[str]) -> None:
    store = Store(DATA, ranges="first")
    with pytest.raises(RemoteBusy, match="makes no sense"):
        s3(url := show(store)).fetch(FetchTask(FILE, tmp_path / "target"))
    assert fetched(RetryingRemote(s3(url), sleep=lambda _: None), tmp_path) == DATA
    assert library == ["x"]


def test_a_part_that_is_cut_short(show: Show, tmp_path: Path, library: list[str]) -> None:
    store = Store(DATA)

    def before(_: Asked) -> None:
        store.body = "cut" if len(store.gets) == 5 else "plain"

    store.before = before
    assert fetched(RetryingRemote(s3(show(store)), sleep=lambda _: None), tmp_path) == DATA
    assert library == []
    store.before = lambda _: setattr(store, "body", "cut")
    with pytest.raises(RemoteBusy, match="cut short"):
        s3(show(store)).fetch(FetchTask(FILE, tmp_path / "target"))


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize(
    ("status", "kind"), [(503, RemoteBusy), (429, RemoteBusy), (404, RemoteMissing), (403, RemoteDenied)]
)
def test_errors(show: Show, tmp_path: Path, status: int, kind: type[Exception], at: int) -> None:
    store = Store(DATA)
    store.status = lambda _: status if len(store.gets) >= at else None
    with pytest.raises(kind) as caught:
        s3(show(store), token="the-token").fetch(FetchTask(FILE, tmp_path / "target"))
    assert type(caught.value) is kind
    assert "the-token" not in str(caught.value)


MD5 = hashlib.md5(SMALL)
AES = {"x-amz-server-side-encryption": "AES256"}


@pytest.mark.promise(33)
@pytest.mark.parametrize(
    ("etag", "more", "whole"),
    [
        (MD5.hexdigest(), AES, True),
        ("0" * 32, AES, False),
        ("0" * 32, {}, True),
        ("0" * 32, {"x-amz-server-side-encryption": "aws:kms"}, True),
        ("0" * 32 + "-2", AES, True),
        ("v1", {"Content-MD5": b64encode(MD5.digest()).decode()}, True),
        ("v1", {"Content-MD5": b64encode(bytes(16)).decode()}, False),
        ("v1", {"x-goog-hash": f"md5={b64encode(MD5.digest()).decode()}"}, True),
        ("v1", {"x-goog-hash": f"md5={b64encode(bytes(16)).decode()}"}, False),
        ("v1", {"Content-MD5": "no such thing"}, True),
    ],
)
def test_an_md5_that_is_told_is_asserted(
    show: Show, tmp_path: Path, etag: str, more: dict[str, str], whole: bool
) -> None:
    remote = s3(show(Store(SMALL, etag=f'"{etag}"', more=more)))
    if whole:
        assert fetched(remote, tmp_path) == SMALL
    else:
        with pytest.raises(RemoteBusy, match="another MD5"):
            fetched(remote, tmp_path)


@pytest.mark.promise(33)
@pytest.mark.parametrize("name", ["crc32c", "crc64nvme", "crc32"])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("told_by", ["GET", "HEAD"])
def test_the_checksum_of_a_file_that_comes_in_parts(
    show: Show, tmp_path: Path, name: str, right: bool, told_by: str
) -> None:
    crc = getattr(checksums, name)(DATA if right else OTHER)
    told = {f"x-amz-checksum-{name}": b64encode(crc.to_bytes(8 if name == "crc64nvme" else 4, "big")).decode()}
    store = Store(DATA, ranges="partial" if told_by == "HEAD" else "ignored")
    store.more_of = lambda asked: told if asked.method == told_by else {}
    remote = s3(show(store))
    if right:
        assert fetched(remote, tmp_path) == DATA
    else:
        with pytest.raises(RemoteBusy, match=f"damaged on the way.*{name.upper()}"):
            fetched(remote, tmp_path)


def test_a_store_that_tells_no_checksums_is_not_asked_for_ever(show: Show, tmp_path: Path) -> None:
    store = Store(DATA)
    remote = s3(show(store))
    for _ in range(USELESS_HEADS_MAX + 3):
        fetched(remote, tmp_path)
    assert sum(asked.method == "HEAD" for asked in store.asked) == USELESS_HEADS_MAX


def test_the_digest_is_that_of_the_file(show: Show, tmp_path: Path) -> None:
    for data, size in ((DATA, len(DATA)), (DATA, None), (SMALL, len(SMALL))):
        passed = Digest()
        s3(show(Store(data))).fetch(FetchTask(RemoteFile("x", size, None, ""), tmp_path / "target", digest=passed))
        assert (passed.bytes, passed.text()) == (len(data), digest.of(tmp_path / "target"))


def test_what_progress_raises_ends_all_threads(show: Show, tmp_path: Path) -> None:
    store = Store(DATA)
    remote = s3(show(store))
    fetched(remote, tmp_path)
    total = 0

    def progress(count: int) -> None:
        nonlocal total
        total += count
        if total > len(DATA) // 2:
            raise InterruptedError("enough")

    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "help_out" in thread.name]

    with pytest.raises(InterruptedError, match="enough"):
        remote.fetch(FetchTask(FILE, tmp_path / "target", progress))
    assert ours() == []
    assert fetched(remote, tmp_path) == DATA


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_room_is_taken_first(show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fallocate(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    remote = s3(show(Store(DATA)))
    assert fetched(remote, tmp_path) == DATA, "what may not fit is not taken"
    file = remote.stat("x")
    if code == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            fetched(remote, tmp_path, file)
    else:
        assert fetched(remote, tmp_path, file) == DATA


@pytest.mark.parametrize("changed", [False, True])
def test_any_store_that_signs(
    show: Show, tmp_path: Path, library: list[str], monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/signs/x", DATA)
    url = show(Store(DATA))
    remote = FsspecRemote(RemoteSpec("memory://signs"))
    file = remote.stat("x")
    monkeypatch.setattr(type(memory), "sign", lambda *_, **more: f"{url}x?{more['expiration']}")
    if changed:
        memory.pipe_file("/signs/x", DATA)
        with pytest.raises(RemoteChanged):
            fetched(remote, tmp_path, file)
    else:
        assert fetched(remote, tmp_path, file) == DATA
        assert remote.fetch(FetchTask(file, tmp_path / "target")) == file
    assert library == []
    monkeypatch.setattr(type(memory), "sign", lambda *_, **more: "/no/url")
    assert (remote.fetch(FetchTask(remote.stat("x"), tmp_path / "target")).size, library) == (len(DATA), ["x"])


def test_ranges_of_a_real_server_are_used(
    rclone_s3: S3Server, tmp_path: Path, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rclone_s3.put("ranged/first", SMALL)
    remote = S3Remote(rclone_s3.spec("ranged"))
    fetched(remote, tmp_path, RemoteFile("first", len(SMALL), None, ""))  # what takes long is done once
    rclone_s3.put("ranged/x", DATA)
    assert fetched(remote, tmp_path) == DATA
    assert library == ["x"], "of this very second: a change might not show"
    monkeypatch.setattr("growfs.remote.http.download._has_validator", lambda _: True)
    assert fetched(remote, tmp_path, remote.stat("x")) == DATA
    assert library == ["x"]
