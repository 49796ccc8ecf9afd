"""Files to which a web server redirects: parts, what another server is not told, and URLs that expire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from growfs.errors import GrowfsError, RemoteBusy
from growfs.remote.http.connection import REDIRECTS_MAX
from growfs.remote.http.threads import THREADS_DEFAULT
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.retries import Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.gs import GoogleRemote
from growfs.remote.stores.web import HttpRemote
from tests.forward_proxy import AWAY
from tests.remote.fake_store import DATA, FILE, SMALL, FakeStore, Request, Scene, Serve, part_starts

pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.fixture
def there() -> FakeStore:
    """The server that has the file."""
    return FakeStore(DATA)


@pytest.fixture
def here(serve: Serve, there: FakeStore) -> FakeStore:
    """A server that redirects to it, to another URL each time."""
    store, url = FakeStore(b""), serve(there)
    store.headers_for = lambda _: {"Location": f"{url}there?token={len(store.requests)}"}
    store.status = lambda _: 302
    return store


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("size", [None, len(DATA)])
def test_parts_come_from_where_the_server_redirects(
    scene: Scene, here: FakeStore, there: FakeStore, status: int, size: int | None
) -> None:
    here.status = lambda _: status
    url = scene.serve(here).replace("://", "://me:secret@")
    remote = HttpRemote(RemoteSpec(url, {"headers": {"X-Key": "secret"}}))
    assert scene.fetched(remote, RemoteFile("x", size, None, "")) == DATA
    assert scene.by_library == []
    assert len(there.gets) > 10
    if size is None:  # else some parts are requested before the first is redirected
        assert len(here.gets) == 1
        assert {request.target for request in there.gets} == {"/there?token=1"}
    assert {(request.target, request.headers["X-Key"]) for request in here.gets} == {("/x", "secret")}
    assert all(request.headers["Authorization"] for request in here.gets)
    assert "secret" not in "".join(str(request.headers) for request in there.gets)


def test_the_same_server_gets_the_password_again(scene: Scene) -> None:
    store = FakeStore(SMALL, location="elsewhere")
    assert scene.fetched(HttpRemote(RemoteSpec(scene.serve(store).replace("://", "://me:secret@")))) == SMALL
    assert scene.by_library == []
    assert [request.target for request in store.gets] == ["/x", "/elsewhere"]
    assert len({request.headers["Authorization"] for request in store.gets}) == 1
    assert len({request.port for request in store.gets}) == 1, "the connection is kept"


@pytest.mark.parametrize("status", [302, 307])
def test_an_object_of_s3_comes_from_where_the_store_redirects(
    scene: Scene, here: FakeStore, there: FakeStore, status: int
) -> None:
    here.status = lambda _: status
    remote = scene.s3(here, token="secret")
    for _ in range(2):
        assert scene.fetched(remote, RemoteFile("x", len(DATA), None, "v1")) == DATA
    assert scene.by_library == []
    assert all(request.headers["Authorization"] for request in here.gets)
    sent = [name.lower() for request in there.gets for name in request.headers]
    assert "authorization" not in sent
    assert "x-amz-security-token" not in sent


def test_an_object_of_s3_whose_redirect_needs_credentials_is_left_to_the_library(
    scene: Scene, here: FakeStore, there: FakeStore
) -> None:
    there.status = lambda request: None if request.headers["Authorization"] else 403
    remote = scene.s3(here)
    with pytest.raises(GrowfsError):
        scene.fetched(remote, RemoteFile("x", len(DATA), None, "v1"))
    assert scene.by_library == ["x"]


def test_the_connections_to_both_servers_are_kept(scene: Scene, here: FakeStore, there: FakeStore) -> None:
    there.data = SMALL[:10]
    remote = scene.web(here)
    for _ in range(3):
        assert scene.fetched(remote) == SMALL[:10]
    for store in (here, there):
        assert (len(store.gets), len({request.port for request in store.gets})) == (3, 1)


def test_a_part_that_is_cut_goes_on_from_its_last_byte(
    scene: Scene, here: FakeStore, there: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.remote.http.connection.PIECE_BYTES", 100)
    there.on_get = lambda _: setattr(there, "body", "cut" if len(there.gets) == 4 else "plain")
    remote = RetryingRemote(partial(HttpRemote, RemoteSpec(scene.serve(here))), Retries(lambda _: None))
    assert scene.fetched(remote) == DATA
    assert (len(here.gets), scene.by_library) == (1, [])
    starts = [request.start or 0 for request in there.gets]
    assert len(starts) == len(set(starts)), "nothing that arrived is requested again"


def test_a_url_that_has_expired_is_asked_for_anew(scene: Scene, here: FakeStore, there: FakeStore) -> None:
    there.status = lambda request: 403 if len(there.gets) > 5 and request.target.endswith("token=1") else None
    assert scene.fetched(scene.web(here)) == DATA
    assert scene.by_library == []
    refused = len(there.gets) - len(part_starts(len(DATA)))
    assert 0 < refused <= THREADS_DEFAULT + 1, "only the parts that were under way"
    assert 1 < len(here.gets) <= len(part_starts(len(DATA)))


def test_a_stream_is_redirected(scene: Scene, here: FakeStore, there: FakeStore) -> None:
    there.ranges = "ignored"
    stream = scene.web(here).open(FILE, start=len(DATA) - 10)
    buffer = memoryview(bytearray(20))
    assert (stream.readinto(buffer), bytes(buffer[:10])) == (10, DATA[-10:])
    stream.close()
    assert {request.method for request in here.requests + there.requests} == {"GET"}


@pytest.mark.parametrize("location", ["x", "http://[::1", "ftp://host/x", "http://host:port/x", f"http://a:b@{AWAY}/x"])
def test_other_redirects_are_left_to_the_library(scene: Scene, location: str) -> None:
    store = FakeStore(b"", extra_headers={"Location": location}, status=lambda _: 302)
    gets: list[int] = []
    remote = scene.web(store)
    store.on_get = lambda _: gets.append(len(scene.by_library))
    with pytest.raises(GrowfsError):
        remote.fetch(FetchTask(FILE, scene.folder / "target"))
    assert scene.by_library == ["x"]
    assert gets.count(0) == (1 + REDIRECTS_MAX if location == "x" else 1)


# How long the libraries wait.


@pytest.fixture
def silent(serve: Serve) -> Iterator[str]:
    """The URL of a server that does not answer."""
    released = threading.Event()

    def wait(_: Request) -> dict[str, str]:
        released.wait()
        return {}

    yield serve(FakeStore(SMALL, headers_for=wait))
    released.set()


@pytest.mark.parametrize("kind", [HttpRemote, GoogleRemote])
def test_a_library_waits_for_each_read(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FsspecRemote]
) -> None:
    monkeypatch.setattr("growfs.remote.stores.fsspec.PAGE_READ_S", 0.2)
    spec = RemoteSpec(silent) if kind is HttpRemote else RemoteSpec("gs://bucket", endpoint_url=silent, anon=True)
    with pytest.raises(RemoteBusy):
        kind(spec).read_folder("")


def test_a_download_by_the_library_may_take_any_time(scene: Scene) -> None:
    remote = scene.web(FakeStore(SMALL))
    assert remote.fs.client_kwargs["timeout"].total is None
