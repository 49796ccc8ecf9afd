"""Shards from stores other than S3, on loopback, to the local disk: each compared with S3 in the same run.

`rclone serve` plays S3 and WebDAV, nginx is the web server. The emulators of Azure and Google Cloud Storage are other
programs, so their ratios say as much about them as about growfs. A store whose server is not installed is left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.servers import free_port, running
from tests.store_servers import (
    AZURE_ACCOUNT,
    AZURITE,
    NODE,
    Store,
    azure_container,
    azurite_command,
    google_bucket,
    has_nginx,
    nginx_server,
)
from tools.benchmarks.filling import NAME, Source, compare, growfs_mount, make_shards
from tools.benchmarks.measure import BenchError, Figures, Setting, need_modules, need_space, ratios
from tools.benchmarks.servers import Server, rclone_binary, rclone_server

SHARDS = 8
Place = tuple[Server, str, Sequence[object]]
"""A server, the URL of its data, and the flags with which growfs reaches it."""


def stores(setting: Setting, found: Figures) -> str:
    """Measure all stores that are installed, one after the other in each round."""
    mib = 1 if setting.quick else 64
    need_space(setting.folder, 8 * setting.rounds * SHARDS * mib << 20)
    bytes = make_shards(setting.folder / "remote", SHARDS, mib)
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        sources = {}
        for kind in (_s3, _http, _webdav, _azure, _google):
            try:
                server, url, flags = stack.enter_context(kind(setting.folder))
            except BenchError as error:
                print(f"left out: {error}")
            else:
                sources[f"{url.partition('://')[0]}://"] = Source(server, SHARDS, bytes, url=url, flags=flags)
        for number in range(setting.rounds):
            for name, source in sources.items():
                copy = {"growfs": growfs_mount(setting.engines[0])}
                runs = compare(source, setting.folder / f"{number}-{name[:-3]}", 1, copy)
                rates.setdefault(name, []).append(bytes / 1e6 / runs["growfs"][0].seconds)
    for name, values in rates.items():
        found.add(name, *values, unit="MB/s")
    for name, values in rates.items():
        if name != "s3://":
            found.add(f"{name}, of s3://", *ratios(values, rates["s3://"]), at_least=0.7)
    return f"{SHARDS} shards of {mib} MiB from stores on loopback"


@contextlib.contextmanager
def _s3(folder: Path) -> Iterator[Place]:
    with rclone_server(folder / "remote", hashes=False) as server:
        yield server, f"s3://{NAME}", ["--endpoint-url", server.endpoint]


@contextlib.contextmanager
def _http(folder: Path) -> Iterator[Place]:
    """nginx. `rclone serve http` is half as fast as its S3 server, whatever reads from it."""
    if not has_nginx():
        raise BenchError("nginx is not installed")
    (base := folder / "nginx").mkdir()
    with nginx_server(folder / "remote", base) as server:
        yield Server(server.pid, server.url), f"{server.url}/{NAME}/", []


@contextlib.contextmanager
def _webdav(folder: Path) -> Iterator[Place]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    options = ["--addr", f"127.0.0.1:{port}", "--config", os.devnull]
    with running([rclone_binary(), "serve", "webdav", *options, folder / "remote"], port) as process:
        yield Server(process.pid, endpoint), f"webdav://{NAME}", ["--storage-option", f"base_url={endpoint}/"]


@contextlib.contextmanager
def _azure(folder: Path) -> Iterator[Place]:
    if not (AZURITE.exists() and NODE.exists()):
        raise BenchError("Azurite is not installed")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    with running(azurite_command(port), port) as process:
        with azure_container(endpoint, NAME) as store:
            _upload(folder, store)
        option = f"connection_string={store.options['connection_string']}"
        yield Server(process.pid, endpoint), store.url, ["--storage-option", option]


@contextlib.contextmanager
def _google(folder: Path) -> Iterator[Place]:
    need_modules("gcp_storage_emulator", "gcsfs")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "tests.gcs_emulator", port], port) as process:
        store = google_bucket(endpoint, NAME)
        _upload(folder, store)
        yield Server(process.pid, endpoint), store.url, store.flags


def _upload(folder: Path, store: Store) -> None:
    for path in (folder / "remote" / NAME).iterdir():
        store.put(path.name, path.read_bytes())
