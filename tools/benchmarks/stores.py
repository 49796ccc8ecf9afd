"""Shards from other stores than S3, on loopback, to the local disk: each compared with S3 by the same run.

`rclone serve` plays S3 and WebDAV, nginx is the web server. The emulators of Azure and Google Cloud Storage are other
programs, so their ratios say as much of them as of growfs. A store whose server is not installed is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from tools.benchmarks import shards
from tools.benchmarks.bucket_copy import NAME, Source, compare, growfs_mount, ratios
from tools.benchmarks.measure import Figure, Setting, at_least, figure, need_space, wait_until
from tools.benchmarks.servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    NGINX,
    Server,
    azurite_command,
    free_port,
    rclone_server,
    rclone_webdav_server,
    running,
)

SHARDS = 8
TARGET = 0.7


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Measure all stores that are installed, one after the other in each round."""
    mib = 1 if setting.quick else 64
    remote = setting.folder / "remote"
    need_space(setting.folder, 8 * setting.rounds * SHARDS * mib << 20)
    bytes = shards.make(remote, SHARDS, mib)
    with contextlib.ExitStack() as stack:
        sources = {}
        for kind in (_s3, _http, _webdav, _azure, _google):
            if (found := stack.enter_context(kind(setting.folder))) is not None:
                server, url, flags = found
                sources[url.partition("://")[0]] = Source(server, SHARDS, bytes, url=url, flags=flags)
        rates: dict[str, list[float]] = {name: [] for name in sources}
        for number in range(setting.rounds):
            for name, source in sources.items():
                copy = {"growfs": growfs_mount(setting.contenders[0])}
                results = compare(source, setting.folder / f"{number}-{name}", 1, copy)
                rates[name] += results.per_s("growfs", bytes / 1e6)
    figures = [figure(f"{name}://", values, "MB/s") for name, values in rates.items()]
    for name, values in rates.items():
        if name != "s3":
            figures.append(at_least(f"{name}://, of s3://", ratios(values, rates["s3"]), "", TARGET))
    return f"{SHARDS} shards of {mib} MiB from stores on loopback", figures


Place = tuple[Server, str, Sequence[object]]
"""A server, the URL of what it has, and the flags with which growfs reaches it."""


@contextlib.contextmanager
def _s3(folder: Path) -> Iterator[Place]:
    with rclone_server(folder / "remote", folder / "s3.log", hashes=False) as server:
        yield server, f"s3://{NAME}", ["--endpoint-url", server.endpoint]


@contextlib.contextmanager
def _http(folder: Path) -> Iterator[Place | None]:
    """nginx. `rclone serve http` is half as fast as its S3 server, whoever reads from it."""
    if NGINX is None:
        print("nginx is not installed: http:// is left out")
        yield None
        return
    port, settings = free_port(), folder / "nginx.conf"
    temporary = "".join(
        f" {name}_temp_path {folder}/nginx;" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    settings.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; {'user root;' if os.geteuid() == 0 else ''}"
        f" events {{ }} http {{ access_log off; sendfile on; {temporary}"
        f" server {{ listen 127.0.0.1:{port}; location / {{ root {folder}/remote; autoindex on; }} }} }}"
    )
    with _listening([NGINX, "-e", "stderr", "-c", settings], port, folder / "nginx.log") as server:
        yield server, f"http://127.0.0.1:{port}/{NAME}/", []


@contextlib.contextmanager
def _webdav(folder: Path) -> Iterator[Place]:
    with rclone_webdav_server(folder / "remote", folder / "webdav.log") as server:
        yield server, f"webdav://{NAME}", ["--storage-option", f"base_url={server.endpoint}/"]


@contextlib.contextmanager
def _azure(folder: Path) -> Iterator[Place | None]:
    port = free_port()
    command = azurite_command(port)
    if not all(Path(word).exists() for word in command[:2]):
        print("Azurite is not installed: az:// is left out")
        yield None
        return
    from azure.storage.blob import BlobServiceClient

    with _listening(command, port, folder / "azurite.log") as server:
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        connection = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
        with BlobServiceClient.from_connection_string(connection) as service:
            container = service.create_container(NAME)
            for path in (folder / "remote" / NAME).iterdir():
                container.upload_blob(path.name, path.read_bytes())
        yield server, f"az://{NAME}", ["--storage-option", f"connection_string={connection}"]


@contextlib.contextmanager
def _google(folder: Path) -> Iterator[Place | None]:
    try:
        import gcp_storage_emulator  # noqa: F401
        import gcsfs  # noqa: F401
    except ImportError as error:
        print(f"{error.name} is not installed: gs:// is left out")
        yield None
        return
    port = free_port()
    command = [sys.executable, "-m", "tests.gcs_emulator", port]
    with _listening(command, port, folder / "google.log") as server:
        endpoint = f"http://127.0.0.1:{port}"
        _post(f"{endpoint}/storage/v1/b", json.dumps({"name": NAME}).encode(), "application/json")
        for path in (folder / "remote" / NAME).iterdir():
            url = f"{endpoint}/upload/storage/v1/b/{NAME}/o?uploadType=media&name={path.name}"
            _post(url, path.read_bytes(), "application/octet-stream")
        yield server, f"gs://{NAME}", ["--endpoint-url", endpoint, "--anon"]


def _post(url: str, body: bytes, kind: str) -> None:
    with urlopen(Request(url, body, {"Content-Type": kind})) as response:
        response.read()


@contextlib.contextmanager
def _listening(command: Sequence[object], port: int, log: Path) -> Iterator[Server]:
    """Run a server that does not print when it has started, and wait until its port is open."""

    def is_open() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with running(command, log, "()") as server:
        wait_until(is_open, f"{command[0]} did not start", timeout_s=60)
        yield server
