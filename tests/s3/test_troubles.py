"""A remote that changes, is slow, throttles, refuses or loses objects while it is mounted."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable
from uuid import uuid4

import pytest

from growfs.fuse.mounting import mounted_at
from tests.harness import Growfs, until
from tests.s3.proxy import Asked, Fault, before
from tests.servers import S3Server


@pytest.fixture
def moto(moto_s3: S3Server, growfs: Growfs) -> S3Server:
    growfs.env.update(moto_s3.env)
    return moto_s3


@pytest.fixture
def prefix() -> str:
    return f"troubles-{uuid4().hex[:8]}"


def put(server: S3Server, prefix: str, *paths: str) -> str:
    """Objects whose content is their path; returns the URL."""
    for path in paths:
        server.put(f"{prefix}/{path}", path.encode())
    return f"s3://{server.bucket}/{prefix}"


def is_fetch_of(path: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.is_fetch and asked.target.split("?")[0].endswith(f"/{path}")


def is_later_page(asked: Asked) -> bool:
    return asked.is_listing and ("continuation-token" in asked.target or "start-after" in asked.target)


@pytest.mark.promise(2, 16)
@pytest.mark.parametrize("how", ["option", "set"])
def test_changes_of_the_remote_show(growfs: Growfs, moto: S3Server, prefix: str, how: str) -> None:
    url = put(moto, prefix, "d/changes", "d/goes", "d/stays")
    growfs.mount(url, "--settle", "0", "--refresh", "0.2s" if how == "option" else "0")
    assert growfs.names() == {"d/changes", "d/goes", "d/stays"}
    changing = growfs.mountpoint / "d/changes"
    inode, steady = changing.stat().st_ino, (growfs.mountpoint / "d/stays").stat().st_ino
    with changing.open("rb", buffering=0) as old:
        assert old.read(4) == b"d/ch"
        moto.put(f"{prefix}/d/changes", b"D/CHANGES")  # of the same size
        moto.put(f"{prefix}/e/new", b"new")
        moto.delete(f"{prefix}/d/goes")
        if how == "set":
            growfs.run("set", growfs.mountpoint, "refresh=0.2s")
        until(lambda: growfs.names() == {"d/changes", "d/stays", "e/new"})
        until(lambda: changing.read_bytes() == b"D/CHANGES")
        assert old.read() == b"anges", "an open file changed"
    assert changing.stat().st_ino != inode
    assert (growfs.mountpoint / "d/stays").stat().st_ino == steady
    assert (growfs.mountpoint / "e/new").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        (growfs.mountpoint / "d/goes").stat()


@pytest.mark.promise(16)
def test_changes_while_nothing_was_mounted_show(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "changes", "goes", "stays")
    growfs.mount(url)
    until(lambda: growfs.status()["state"] == "complete")
    growfs.umount()
    moto.put(f"{prefix}/changes", b"CHANGES")
    moto.put(f"{prefix}/new", b"new")
    moto.delete(f"{prefix}/goes")
    growfs.mount(url, "--settle", "0")
    until(lambda: growfs.names() == {"changes", "new", "stays"})
    until(lambda: (growfs.mountpoint / "changes").read_bytes() == b"CHANGES")


@pytest.mark.promise(16)
def test_a_remote_that_lists_nothing_any_more_keeps_what_is_known(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    """An empty answer is likelier a mistake out there than the wish to lose the cache."""
    url = put(moto, prefix, "a", "b")
    growfs.mount(url, "--refresh", "0.2s", "--settle", "0", "--wait-files", "2")
    for path in ("a", "b"):
        moto.delete(f"{prefix}/{path}")
    assert url in until(lambda: growfs.status()["last_error"])
    assert growfs.names() == {"a", "b"}
    assert (growfs.mountpoint / "a").read_bytes() == b"a"


@pytest.mark.promise(3, 14)
def test_a_listing_in_pages_is_of_use_from_the_first_one(growfs: Growfs, rclone_s3: S3Server, prefix: str) -> None:
    growfs.env.update(rclone_s3.env)
    url = put(rclone_s3, prefix, *(f"{number:05}" for number in range(2500)))
    with before(rclone_s3.endpoint_url) as proxy:
        proxy.hold(is_later_page)
        growfs.mount(url, "--endpoint-url", proxy.url, "--wait-files", "1")
        until(lambda: any(is_later_page(asked) for asked in proxy.asked))
        status = growfs.status()
        assert (status["state"], status["remote"]["listed"], status["remote"]["files"]) == ("listing", False, 1000)
        (first, *_) = growfs.names()
        assert (growfs.mountpoint / first).read_text() == first
        growfs.run("pause", growfs.mountpoint)
        proxy.let_go()
        until(lambda: growfs.status()["remote"]["listed"])
        assert growfs.status()["remote"]["files"] == 2500
        assert (growfs.mountpoint / "02499").read_bytes() == b"02499", "a name of the last page is there"
        assert len([asked for asked in proxy.asked if asked.is_listing]) == 3


def test_throttling_ends_with_everything_local(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    paths = [f"d/{number}" for number in range(8)]
    url = put(moto, prefix, *paths)
    with before(moto.endpoint_url) as proxy:
        count = itertools.count()
        proxy.fault = lambda asked: Fault(503, "SlowDown") if asked.is_fetch and next(count) < 8 else None
        growfs.mount(url, "--endpoint-url", proxy.url)
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
        status = growfs.status()
    assert next(count) >= 16
    assert (status["cache"]["files"], status["fetch"]["failed"], status["last_error"]) == (8, 0, None)
    assert {path: (growfs.mountpoint / path).read_text() for path in growfs.names()} == {path: path for path in paths}


def test_throttling_of_the_listing(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "a")
    with before(moto.endpoint_url) as proxy:
        count = itertools.count()
        proxy.fault = lambda asked: Fault(503, "SlowDown") if asked.is_listing and next(count) < 2 else None
        growfs.mount(url, "--endpoint-url", proxy.url)
        assert growfs.names() == {"a"}


@pytest.mark.promise(3)
def test_an_object_that_always_fails(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    paths = [f"d/{number}" for number in range(6)]
    url = put(moto, prefix, *paths)
    with before(moto.endpoint_url) as proxy:
        bad = is_fetch_of("d/3")
        proxy.fault = lambda asked: Fault(500, "InternalError") if bad(asked) else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--wait-files", "1")
        with pytest.raises(OSError, match="Input/output error") as caught:
            (growfs.mountpoint / "d/3").read_bytes()
        assert caught.value.errno == errno.EIO
        until(lambda: growfs.status()["cache"]["files"] == 5)
        until(lambda: growfs.names() == set(paths) - {"d/3"})
        status = growfs.status()
        assert status["fetch"]["failed"] >= 1
        assert f"{url}/d/3: the server is busy or failing (500" in status["last_error"]
        assert "last error" in growfs.run("status", growfs.mountpoint).stdout
        assert f"{url}/d/3: the server is busy or failing (500" in (growfs.mountpoint / ".growfs/log").read_text()
        proxy.fault = lambda _: None
        assert (growfs.mountpoint / "d/3").read_bytes() == b"d/3", "an open tries again"


@pytest.mark.promise(3, 16)
def test_an_object_deleted_between_listing_and_fetch(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/0", "d/1", "d/goes")
    with before(moto.endpoint_url) as proxy:
        goes = is_fetch_of("d/goes")
        proxy.hold(goes)
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--no-wait")
        until(lambda: any(goes(asked) for asked in proxy.asked))
        moto.delete(f"{prefix}/d/goes")
        proxy.let_go()
        until(lambda: growfs.names() == {"d/0", "d/1"})
        until(lambda: growfs.status()["remote"]["files"] == 2)
        with pytest.raises(FileNotFoundError):
            (growfs.mountpoint / "d/goes").read_bytes()


@pytest.mark.promise(16, 33)
def test_an_object_changed_between_listing_and_fetch(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/0", "d/changes")
    with before(moto.endpoint_url) as proxy:
        changes = is_fetch_of("d/changes")
        proxy.hold(changes)
        growfs.mount(url, "--endpoint-url", proxy.url, "--settle", "0", "--no-wait")
        until(lambda: any(changes(asked) for asked in proxy.asked))
        moto.put(f"{prefix}/d/changes", b"new and longer")
        proxy.let_go()
        until(lambda: growfs.names() == {"d/0", "d/changes"})
        assert (growfs.mountpoint / "d/changes").read_bytes() == b"new and longer"
        assert (growfs.mountpoint / "d/changes").stat().st_size == len(b"new and longer")


@pytest.mark.promise(16)
def test_an_open_of_an_object_that_changed_since_it_was_listed(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/0", "d/changes")
    growfs.mount(url, "--settle", "0")
    until(lambda: growfs.status()["state"] == "complete")
    growfs.run("pause", growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "changes")
    moto.put(f"{prefix}/d/changes", b"new and longer")
    assert (growfs.mountpoint / "d/changes").read_bytes() == b"new and longer"


def test_access_denied_on_objects_only(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    url = put(moto, prefix, "d/0", "d/1", "d/2", "d/3")
    with before(moto.endpoint_url) as proxy:
        proxy.fault = lambda asked: Fault(403, "AccessDenied") if asked.is_fetch else None
        done = growfs.mount(url, "--endpoint-url", proxy.url, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("growfs: ")
    assert done.stderr.count("\n") == 1
    assert "no file could be fetched" in done.stderr
    assert "access denied" in done.stderr
    assert f"{url}/d/" in done.stderr
    assert not mounted_at(growfs.mountpoint)
    assert [path for path in growfs.cache_dir.iterdir() if path.is_dir()] == []


@pytest.mark.promise(1, 33)
def test_a_server_that_cuts_objects_short_gives_no_partial_file(growfs: Growfs, moto: S3Server, prefix: str) -> None:
    data = random.Random(1).randbytes(300_000)
    moto.put(f"{prefix}/d/whole", data)
    with before(moto.endpoint_url) as proxy:
        count = itertools.count()
        proxy.cut = lambda asked: asked.is_fetch and next(count) < 2
        growfs.mount(f"s3://{moto.bucket}/{prefix}", "--endpoint-url", proxy.url)
        assert next(count) >= 3
    assert (growfs.mountpoint / "d/whole").read_bytes() == data
