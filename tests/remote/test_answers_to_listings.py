"""Answers to a request for a listing that are none, though their status is 200: the listing fails, and does not end.

A proxy before the server of each store answers so from the second page, or the second folder, on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from growfs.errors import RemoteBusy, RemoteError
from growfs.remote import open_remote
from growfs.remote.interface import RemoteSpec
from tests.needs import need
from tests.s3.proxy import Choice, Fault, Proxy, Request, Response, proxy_to, shorten
from tests.servers import S3Server, WebFolder
from tests.store_servers import Hub, Nginx, Store, hub_data_set, hub_server, nginx_folder

PATHS = ["a/1", "a/2", "a/3", "b/1", "b/2", "c/1"]
LOG_IN = b"<!DOCTYPE html><html><title>Sign in</title><a href='/help'>Help</a><form></form></html>"


def send(body: bytes, kind: str = "text/html") -> Fault:
    return lambda exchange: exchange.send(Response(200, {"Content-Type": kind}, body))


ANSWERS = {
    "log-in page": send(LOG_IN),
    "XHTML": send(b"<html xmlns='http://www.w3.org/1999/xhtml'><body><p>Sign in</p></body></html>"),
    "empty": send(b""),
    "{}": send(b"{}", "application/json"),
    "other XML": send(b"<?xml version='1.0'?><ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>", "text/xml"),
    "cut": shorten,
}


@dataclass
class Listed:
    """A folder with PATHS that is reached through a proxy. repeated: a page with the token of itself."""

    spec: RemoteSpec
    proxy: Proxy
    is_listing: Callable[[Request], bool]
    repeated: Fault | None = None
    done: list[Request] = field(default_factory=list)

    def from_the_second_on(self, fault: Fault) -> Choice:
        """The fault for each listing request but the first."""

        def choose(request: Request) -> Fault | None:
            if not self.is_listing(request):
                return None
            self.done.append(request)
            return fault if len(self.done) > 1 else None

        return choose

    def paths(self) -> list[str]:
        return [file.path for page in open_remote(self.spec).pages() for file in page.files]


def at(url: str, proxy: Proxy) -> str:
    """The URL with the proxy in place of its server."""
    return urlsplit(url)._replace(netloc=urlsplit(proxy.url).netloc).geturl()


def fill(store: Store) -> Store:
    for path in PATHS:
        store.put(path, b"x")
    return store


def repeat_first() -> Fault:
    first: list[Response] = []

    def play(exchange: Any) -> None:
        first.extend([] if first else [exchange.forward()])
        exchange.send(first[0])

    return play


def s3(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy], client: str = "auto") -> Listed:
    server: S3Server = request.getfixturevalue("moto_s3")
    prefix = uuid4().hex
    for path in PATHS:
        server.put(f"{prefix}/{path}", b"x")
    proxy = proxy_of(server.endpoint_url)
    spec = server.spec(prefix, endpoint_url=proxy.url, client=client)
    return Listed(spec, proxy, lambda each: each.is_listing, repeat_first())


def s3_by_library(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    return s3(request, proxy_of, "library")


def gs(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    store = fill(request.getfixturevalue("google_store").below(uuid4().hex))
    proxy = proxy_of(str(store.endpoint_url))
    item = b'{"name": "%s/a/1", "size": "1", "generation": "1"}' % store.url.rpartition("/")[2].encode()
    page = b'{"kind": "storage#objects", "nextPageToken": "t", "items": [%s]}' % item
    spec = replace(store.spec(), endpoint_url=proxy.url)
    return Listed(spec, proxy, lambda each: "/o?" in each.target, send(page, "application/json"))


def az(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    store = fill(request.getfixturevalue("azure_store").below(uuid4().hex))
    proxy = proxy_of(request.getfixturevalue("azurite"))
    connection = store.options["connection_string"].replace(f"http://{proxy.server}", proxy.url)
    page = b"<EnumerationResults><Blobs/><NextMarker>t</NextMarker></EnumerationResults>"
    spec = replace(store.spec(), storage_options={"connection_string": connection})
    return Listed(spec, proxy, lambda each: "comp=list" in each.target, send(page, "application/xml"))


def hf(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    hub: Hub = request.getfixturevalue("hub")
    fill(hub_data_set(hub))
    proxy = proxy_of(hub.url)
    hub.url = proxy.url  # in the links to the next page
    return Listed(hub_data_set(hub).spec(), proxy, lambda each: "/tree/" in each.target, repeat_first())


def http(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    web: WebFolder = request.getfixturevalue("http_folder")
    name = uuid4().hex
    for path in PATHS:
        (web.folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (web.folder / name / path).write_bytes(b"x")
    proxy = proxy_of(web.url)
    return Listed(RemoteSpec(at(web.url + name, proxy)), proxy, lambda each: each.target.endswith("/"))


def webdav(request: pytest.FixtureRequest, proxy_of: Callable[[str], Proxy]) -> Listed:
    nginx: Nginx = request.getfixturevalue("nginx")
    store = fill(nginx_folder(nginx, uuid4().hex, webdav=True))
    proxy = proxy_of(nginx.url)
    spec = replace(store.spec(), storage_options={"base_url": at(store.options["base_url"], proxy)})
    return Listed(spec, proxy, lambda each: each.method == "PROPFIND")


STORES = (s3, s3_by_library, gs, az, hf, http, webdav)


@pytest.fixture
def hub() -> Any:
    need("huggingface_hub")
    with hub_server() as server:
        yield server


@pytest.fixture(params=STORES, ids=lambda store: str(store.__name__))
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in ("s3.bucket", "hf"):
        monkeypatch.setattr(f"growfs.remote.stores.{module}.PAGE_FILES_MAX", 2)
    proxies: list[Any] = []

    def proxy_of(url: str) -> Proxy:
        proxies.append(proxy_to(url))
        proxy: Proxy = proxies[0].__enter__()
        return proxy

    yield request.param(request, proxy_of)
    proxies[0].__exit__(None, None, None)


def test_through_the_proxy_each_store_is_listed_in_several_requests(listed: Listed) -> None:
    assert sorted(listed.paths()) == PATHS
    assert sum(map(listed.is_listing, listed.proxy.requests)) > 1


@pytest.mark.promise(16)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_no_listing_is_an_error(listed: Listed, answer: str) -> None:
    listed.proxy.fault = listed.from_the_second_on(ANSWERS[answer])
    with pytest.raises(RemoteBusy):
        listed.paths()
    assert len(listed.done) > 1


@pytest.mark.promise(16)
def test_a_page_that_names_itself_as_the_next_one_is_an_error(listed: Listed) -> None:
    if listed.repeated is None:
        pytest.skip("its listings have no pages")
    listed.proxy.fault = listed.from_the_second_on(listed.repeated)
    with pytest.raises(RemoteError, match="again and again"):
        listed.paths()
    assert len(listed.done) < 4 * len(PATHS)
