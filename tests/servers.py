"""Real servers on loopback, as session fixtures: two S3 servers and a web server.

rclone_s3 answers like a simple store: without ETags, and with times in seconds by HEAD, in milliseconds by listings.
moto_s3 answers like AWS, with ETags and its error codes.
"""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import os
import random
import shutil
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from typing import Any

import pytest

from growfs.remote.interface import RemoteSpec
from tests.needs import SET_UP, need, use
from tools.benchmarks.child import Child

ACCESS_KEY = "growfs-access"  # rclone refuses keys of two or three letters
SECRET_KEY = "growfs-secret-0123456789"
START_S_MAX = 120
_ports = iter(random.SystemRandom().sample(range(20_000, 32_000), 12_000))
"""Below the ports that the kernel gives to clients (net.ipv4.ip_local_port_range)."""


@dataclass
class S3Server:
    """A bucket of a real S3 server. put and delete change it without growfs."""

    endpoint_url: str
    bucket: str
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"key": self.access_key, "secret": self.secret_key}

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a process reaches the server without options."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }

    @contextmanager
    def client(self) -> Iterator[Any]:
        """The client of boto3, for what `put` and `delete` cannot do."""
        boto3 = use("boto3")
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        with closing(boto3.client("s3", endpoint_url=self.endpoint_url, region_name="us-east-1", **keys)) as client:
            yield client

    def spec(self, prefix: str = "", **more: Any) -> RemoteSpec:
        more = {"storage_options": self.storage_options, "endpoint_url": self.endpoint_url, **more}
        return RemoteSpec(f"s3://{self.bucket}/{prefix}".rstrip("/"), **more)


@dataclass
class WebFolder:
    """A folder that http.server serves at url."""

    url: str
    folder: Path


@pytest.fixture(scope="session")
def rclone_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """`rclone serve s3` over a folder, with empty ETags; put and delete write to that folder."""
    binary = shutil.which("rclone") or str(Path(sys.executable).with_name("rclone"))
    if not os.access(binary, os.X_OK):
        pytest.skip(f"rclone is not installed; {SET_UP}")
    folder = tmp_path_factory.mktemp("rclone")
    bucket = folder / "growfs-test"
    bucket.mkdir()

    def put(key: str, data: bytes) -> None:
        path = bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    port = free_port()
    options = ["--config", os.devnull, "--etag-hash", "", "--dir-cache-time", "0s", "--addr", f"127.0.0.1:{port}"]
    with running([binary, "serve", "s3", *options, folder], port, RCLONE_AUTH_KEY=f'"{ACCESS_KEY},{SECRET_KEY}"'):
        yield S3Server(f"http://127.0.0.1:{port}", bucket.name, put, lambda key: (bucket / key).unlink())


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[S3Server]:
    """moto's S3 server, in a separate process because it patches botocore."""
    need("moto.server")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, MOTO_ALLOW_NONEXISTENT_REGION="1"):
        server = S3Server(
            f"http://127.0.0.1:{port}",
            "growfs-test",
            lambda key, data: client.put_object(Bucket="growfs-test", Key=key, Body=data) and None,
            lambda key: client.delete_object(Bucket="growfs-test", Key=key) and None,
        )
        with server.client() as client:
            client.create_bucket(Bucket="growfs-test")
            yield server


@pytest.fixture(scope="session")
def http_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebFolder]:
    folder = tmp_path_factory.mktemp("web")
    with serving(partial(QuietFiles, directory=str(folder))) as url:
        yield WebFolder(url, folder)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a self-signed certificate for 127.0.0.1 and its key."""
    need("cryptography.x509")
    return make_certificate(tmp_path_factory.mktemp("tls") / "certificate.pem")


def make_certificate(path: Path) -> Path:
    """Write a self-signed certificate for 127.0.0.1, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "growfs test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
    return path


class _QuietServer(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    """More connections than growfs opens at once. The kernel tries to make the others again after 1, 3 and 7 s."""

    def get_request(self) -> tuple[socket, Any]:
        """A connection on which head and body of a response are sent at once: else the body waits 40 ms for an ACK."""
        client, address = super().get_request()
        client.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        return client, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: tests close connections early on purpose."""


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, body: bytes | str, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a response."""
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with pages of links, and prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class serving:  # noqa: N801 used as a function
    """Runs a threaded web server on loopback for the block; gives its URL, with a slash at the end."""

    def __init__(
        self,
        handler: Callable[..., http.server.BaseHTTPRequestHandler],
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self._server = _QuietServer(("127.0.0.1", port), handler)
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def running(command: Sequence[object], port: int, **variables: str) -> Iterator[Child]:
    """Run a server process for the block, which begins when the server listens. variables: added to its environment."""
    with Child(command, variables) as child:
        child.wait_until(lambda: listens(port), START_S_MAX, every_s=0.05)
        yield child


def listens(port: int) -> bool:
    try:
        create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port without a listener. Each call returns another one, and no connection of a client gets it meanwhile."""
    for port in _ports:
        with socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
