"""Mounts of stores that only a proxy can reach."""

from __future__ import annotations

import random
import ssl
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.forward_proxy import AWAY, forward_proxy
from tests.harness import Growfs, until
from tests.servers import QuietFiles, S3Server, WebFolder, serving
from tests.store_servers import Nginx, Store, nginx_folder

PASSWORD = "me:p4ss"
LARGE = 2_000_000
"""In bytes: fetched in parts."""


def new_store(kind: str, request: pytest.FixtureRequest) -> Store:
    """A store of this kind with nothing in it."""
    name = f"proxied-{uuid4().hex[:8]}"
    if kind == "s3":
        moto: S3Server = request.getfixturevalue("moto_s3")
        store = Store(f"s3://{moto.bucket}", moto.put, moto.delete, endpoint_url=moto.endpoint_url, env=moto.env)
    elif kind == "http":
        web: WebFolder = request.getfixturevalue("http_folder")

        def put(path: str, data: bytes) -> None:
            (web.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (web.folder / path).write_bytes(data)

        store = Store(web.url.rstrip("/"), put, lambda path: (web.folder / path).unlink())
    elif kind == "webdav":
        nginx: Nginx = request.getfixturevalue("nginx")
        return nginx_folder(nginx, name, webdav=True)
    else:
        store = request.getfixturevalue(f"{kind}_store")
    return store.below(name)


@pytest.mark.promise(1)
@pytest.mark.parametrize(
    "kind",
    ["s3", "azure", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("http", "google", "hub", "webdav"))],
)
def test_every_store_is_reached_through_the_proxy(growfs: Growfs, request: pytest.FixtureRequest, kind: str) -> None:
    store = new_store(kind, request)
    tree = {"d/large": random.Random(1).randbytes(LARGE), "d/small": b"small"}
    for path, data in tree.items():
        store.put(path, data)
    connection = store.env.get("AZURE_STORAGE_CONNECTION_STRING", "").partition("BlobEndpoint=")[2]
    server = urlsplit(store.endpoint_url or store.options.get("base_url") or connection or store.url).netloc
    with forward_proxy(server, PASSWORD) as proxy:

        def away(text: str) -> str:
            return text.replace(server, AWAY)

        growfs.env |= {name: away(value) for name, value in store.env.items()} | proxy.env()
        options = [] if store.env else [f"{name}={away(value)}" for name, value in store.options.items()]
        flags = [*map(away, store.flags), *(word for option in options for word in ("--storage-option", option))]
        growfs.mount(away(f"{store.url}/"), *flags)
        until(lambda: growfs.names() == tree.keys())
        assert growfs.content() == tree
        parts = [headers["Range"] for url, headers in proxy.requests if "large" in url and headers["Range"]]
        assert len(set(parts)) > (kind != "http"), "in parts, where the server has them"
        assert PASSWORD.partition(":")[2] not in growfs.log()


def test_https_comes_through_a_tunnel(
    growfs: Growfs, http_folder: WebFolder, certificate: Path, request: pytest.FixtureRequest
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    store = new_store("http", request)
    store.put("large", data := random.Random(1).randbytes(LARGE))
    growfs.env |= {"SSL_CERT_FILE": str(certificate)}
    growfs.starts_python = True  # aiohttp reads the certificates when it is imported
    with (
        serving(partial(QuietFiles, directory=str(http_folder.folder)), context) as url,
        forward_proxy(url, PASSWORD) as proxy,
    ):
        growfs.env |= proxy.env()
        growfs.mount(f"https://{AWAY}/{urlsplit(store.url).path[1:]}/")
        assert growfs.content() == {"large": data}
        assert set(proxy.tunnels) == {AWAY}
