"""Files behind a proxy: what it is asked for, what a refusal of it says, and which proxies are left to the library."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied, UsageError
from growfs.extensions.peers.client import PeerClient
from growfs.remote.digest import Digest
from growfs.remote.http.proxy import proxy_for
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.web import HttpRemote
from tests.forward_proxy import AWAY, ForwardProxy, forward_proxy
from tests.remote.fake_store import DATA, FILE, PART, SMALL, FakeStore, Scene, Serve, s3

pytestmark = pytest.mark.usefixtures("small_parts")

PASSWORD = "me:p@ss"
ENCODED = "me:p%40ss"


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(DATA)


@pytest.fixture
def proxy(
    scheme: str, store: FakeStore, serve: Serve, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ForwardProxy]:
    """The only way to a store at AWAY, with a password that the environment names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with forward_proxy(serve(store, context if scheme == "https" else None), PASSWORD) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("://", f"://{ENCODED}@"))
        yield proxy


def test_files_come_through_the_proxy(scene: Scene, proxy: ForwardProxy, scheme: str, store: FakeStore) -> None:
    url = f"{scheme}://{AWAY}/"
    assert scene.fetched(HttpRemote(RemoteSpec(url))) == DATA
    assert scene.fetched(s3(url)) == DATA
    assert scene.by_library == []
    assert len(store.gets) > 2 * len(DATA) // PART, "both came in parts"
    if scheme == "https":
        assert set(proxy.tunnels) == {AWAY}
        assert len(proxy.tunnels) < len(store.gets), "connections are kept"
    else:
        assert {url.partition("?")[0] for url, _ in proxy.requests} == {f"{url}x", f"{url}bucket/x"}
        assert {headers["Host"] for _, headers in proxy.requests} == {AWAY}
    assert not [request for request in store.requests if request.headers["Proxy-Authorization"]]


@pytest.mark.parametrize(
    ("scheme", "status", "kind", "says"),
    [
        ("https", 407, RemoteDenied, "407 Proxy Authentication Required"),
        ("https", 403, RemoteDenied, "403 Forbidden"),
        ("https", 502, RemoteBusy, "502 Bad Gateway"),
        ("https", 503, RemoteBusy, "503 Service Unavailable"),
        ("https", 0, RemoteBusy, "refused"),
        ("http", 407, RemoteDenied, "407 Proxy Authentication Required"),  # others may be the server's own
        ("http", 0, RemoteBusy, "refused"),
    ],
)
def test_a_proxy_that_refuses_is_named_without_its_password(
    scene: Scene,
    proxy: ForwardProxy,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: type[GrowfsError],
    says: str,
) -> None:
    proxy.status = status
    if status == 0:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{ENCODED}@{AWAY}")
    for remote in (HttpRemote(RemoteSpec(f"{scheme}://{AWAY}/")), s3(f"{scheme}://{AWAY}/")):
        with pytest.raises(GrowfsError) as caught:
            scene.fetched(remote)
        assert type(caught.value) is kind
        message = str(caught.value)
        assert f"through the proxy (http://{AWAY if status == 0 else proxy.url[7:]}: " in message
        assert says in message
        assert "check HTTPS_PROXY and HTTP_PROXY" in message
        assert "p@ss" not in message
        assert "p%40ss" not in message
    assert scene.by_library == []


@pytest.mark.parametrize("scheme", ["http"])
def test_the_library_says_the_same_of_the_proxy(proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    remote = HttpRemote(RemoteSpec(f"http://{AWAY}/"))
    with pytest.raises(RemoteDenied, match=r"cannot be reached through the proxy .*Proxy Authentication Required"):
        remote.read_folder("")
    monkeypatch.setenv("http_proxy", f"http://{AWAY}")
    remote = HttpRemote(RemoteSpec(f"http://{AWAY}/"))
    with pytest.raises(RemoteBusy, match=f"cannot be reached through the proxy .*{AWAY}"):
        remote.read_folder("")


def test_variables_are_read_as_by_urllib(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(url: str) -> str:
        return str(proxy_for(url) or "none")

    assert found("https://host/x") == "none"
    monkeypatch.setenv("ALL_PROXY", "http://all:1")
    monkeypatch.setenv("HTTPS_PROXY", "secure:2")
    assert (found("http://host/x"), found("https://host/x")) == ("http://all:1", "http://secure:2")
    monkeypatch.setenv("https_proxy", "http://[::1]")
    assert found("https://user:password@host/x") == "http://[::1]:80"
    monkeypatch.setenv("NO_PROXY", ".example.com, host:8080")
    assert found("https://user@a.example.com/") == found("https://host:8080/") == "none"
    assert found("https://host/") == "http://[::1]:80"
    for wrong in ("http://", "http://host:port", "http://[::1", "http://u:secret@"):
        monkeypatch.setenv("https_proxy", wrong)
        with pytest.raises(UsageError, match=r"^HTTPS_PROXY is not the URL of a proxy") as caught:
            found("https://host/")
        assert "secret" not in str(caught.value)


def test_a_proxy_that_speaks_no_http_is_left_to_the_library_unless_no_proxy_names_the_server(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", f"socks5://{AWAY}")
    store = FakeStore(SMALL)
    assert scene.fetched(scene.web(store)) == SMALL
    assert scene.by_library == ["x"]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert scene.fetched(scene.web(store)) == SMALL
    assert scene.by_library == ["x"]


def test_peers_are_reached_directly(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{AWAY}")
    store = FakeStore(SMALL)
    peer = scene.serve(store).removeprefix("http://").rstrip("/")
    task = FetchTask(RemoteFile(FILE.path, len(SMALL), None, "v1"), scene.folder / "target", digest=Digest())
    PeerClient("token", TransferThreads()).fetch(task, [peer])
    assert [request.target for request in store.requests] == ["/files/x"]
