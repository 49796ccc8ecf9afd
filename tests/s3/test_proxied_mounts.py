"""Mounts of stores that only a proxy can reach."""

from __future__ import annotations

import random
import ssl
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.forward_proxy import AWAY, forward_proxy
from tests.harness import Growfs, until
from tests.remote.places import new_store
from tests.servers import QuietFiles, WebFolder, serving

PASSWORD = "me:p4ss"
LARGE = 2_000_000
"""In bytes: fetched in parts."""


@pytest.mark.promise(1)
@pytest.mark.parametrize(
    "kind",
    ["moto", "azure", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("http", "google", "hub", "webdav"))],
)
def test_every_store_is_reached_through_the_proxy(growfs: Growfs, request: pytest.FixtureRequest, kind: str) -> None:
    store = new_store(kind, request)
    tree = {"d/large": random.Random(1).randbytes(LARGE), "d/small": b"small"}
    for path, data in tree.items():
        store.put(path, data)
    away = store.reached_at(AWAY)
    with forward_proxy(store.server, PASSWORD) as proxy:
        growfs.env |= away.env | proxy.env()
        growfs.mount(f"{away.url}/", *away.flags)
        until(lambda: growfs.names() == tree.keys())
        assert growfs.content() == tree
        parts = [headers["Range"] for url, headers in proxy.requests if "large" in url and headers["Range"]]
        assert len(set(parts)) > (kind != "http"), "in parts, if the server has them"
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
