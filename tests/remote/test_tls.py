"""Plain GETs over TLS: which certificates are trusted, and the errors for those that are not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp  # noqa: F401 - it reads SSL_CERT_FILE when it is imported: before a test sets that
import pytest

from growfs.errors import RemoteError
from growfs.remote.http.connection import Connection, ConnectionFailed, HttpRequest
from growfs.remote.interface import RemoteSpec
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.web import HttpRemote
from tests.remote.fake_store import DATA, KEYS, FakeStore, fetched

pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    """A FakeStore with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FakeStore(DATA).serving(context) as url:
        yield url


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that falls back to the library fails."""
    for kind in (FsspecRemote, S3Remote):
        monkeypatch.delattr(kind, "_by_library")


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "AWS_CA_BUNDLE", "verify", "verify a folder", "verify nothing"])
def test_configured_certificates_are_trusted(
    url: str, tmp_path: Path, certificate: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(KEYS)
    if name.startswith("verify"):
        folder = tmp_path / "authorities"
        folder.mkdir()
        if name == "verify a folder":
            (folder / f"{_hash_of(certificate)}.0").write_bytes(certificate.read_bytes())
        value = {"verify": str(certificate), "verify a folder": str(folder), "verify nothing": False}[name]
        options["client_kwargs"] = {"verify": value}
    else:
        monkeypatch.setenv(name, str(certificate))
    assert fetched(S3Remote(RemoteSpec("s3://bucket", options, url)), tmp_path) == DATA
    if name == "SSL_CERT_FILE":
        assert fetched(HttpRemote(RemoteSpec(url)), tmp_path) == DATA


def test_a_handshake_that_is_cut_is_a_failed_connection() -> None:
    def cut(client: socket.socket) -> None:
        client.recv(1)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: cut(listener.accept()[0]), daemon=True).start()
        connection = Connection(ssl.create_default_context)
        with pytest.raises(ConnectionFailed, match="during the TLS handshake"):
            connection.send(HttpRequest(f"https://127.0.0.1:{listener.getsockname()[1]}/x"), {})


def _hash_of(certificate: Path) -> str:
    import subprocess

    command = ["openssl", "x509", "-noout", "-hash", "-in", str(certificate)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("kind", ["s3", "http", "s3 with a bundle that is not there"])
def test_an_unknown_certificate_is_refused(
    url: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.endswith("there"):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
    remote = HttpRemote(RemoteSpec(url)) if kind == "http" else S3Remote(RemoteSpec("s3://bucket", KEYS, url))
    with pytest.raises(RemoteError, match="No such file" if kind.endswith("there") else "is not trusted") as caught:
        fetched(remote, tmp_path)
    assert "X-Amz" not in str(caught.value)


@pytest.mark.usefixtures("no_library")
def test_a_host_that_the_certificate_does_not_name_is_left_to_the_library(
    url: str, tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with pytest.raises(AttributeError, match="_by_library"):
        fetched(HttpRemote(RemoteSpec(url.replace("127.0.0.1", "localhost"))), tmp_path)
