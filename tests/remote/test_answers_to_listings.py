"""Answers to a request for a listing that are none, though their status is 200: the listing fails, and does not end.

A proxy before the server of each store answers so from the second page, or the second folder, on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import pytest

from growfs.errors import RemoteBusy, RemoteError
from growfs.remote import open_remote
from growfs.remote.interface import RemoteSpec
from tests.needs import need
from tests.remote.places import BY_LIBRARY, new_store
from tests.s3.proxy import Choice, Exchange, Fault, Proxy, Request, Response, proxy_to, shorten
from tests.store_servers import Store, hub_data_set, hub_server

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


def repeat_first(_: Store) -> Fault:
    first: list[Response] = []

    def play(exchange: Exchange) -> None:
        first.extend([] if first else [exchange.forward()])
        exchange.send(first[0])

    return play


def repeat_token(store: Store) -> Fault:
    item = b'{"name": "%s/a/1", "size": "1", "generation": "1"}' % store.url.rpartition("/")[2].encode()
    page = b'{"kind": "storage#objects", "nextPageToken": "t", "items": [%s]}' % item
    return send(page, "application/json")


def repeat_marker(_: Store) -> Fault:
    return send(b"<EnumerationResults><Blobs/><NextMarker>t</NextMarker></EnumerationResults>", "application/xml")


STORES: dict[str, tuple[Callable[[Request], bool], Callable[[Store], Fault] | None]] = {
    "moto": (lambda request: request.is_listing, repeat_first),
    "moto by library": (lambda request: request.is_listing, repeat_first),
    "google": (lambda request: "/o?" in request.target, repeat_token),
    "azure": (lambda request: "comp=list" in request.target, repeat_marker),
    "hub": (lambda request: "/tree/" in request.target, repeat_first),
    "http": (lambda request: request.target.endswith("/"), None),
    "webdav": (lambda request: request.method == "PROPFIND", None),
}
"""By kind: which of its requests are for a listing, and its page that names itself as the next one, if it has pages."""


@pytest.fixture(params=STORES)
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listed]:
    for module in ("s3.bucket", "hf"):
        monkeypatch.setattr(f"growfs.remote.stores.{module}.PAGE_FILES_MAX", 2)
    is_listing, repeated = STORES[request.param]
    kind, by_library = request.param.removesuffix(BY_LIBRARY), request.param.endswith(BY_LIBRARY)
    with ExitStack() as stack:
        if kind == "hub":
            need("huggingface_hub")
            hub = stack.enter_context(hub_server())
            store = hub_data_set(hub)
        else:
            store = new_store(kind, request)
        for path in PATHS:
            store.put(path, b"x")
        proxy = stack.enter_context(proxy_to(f"http://{store.server}"))
        if kind == "hub":
            hub.url = proxy.url  # in the links to the next page
        spec = store.reached_at(urlsplit(proxy.url).netloc).spec()
        client = "library" if by_library else "auto"
        yield Listed(replace(spec, client=client), proxy, is_listing, repeated and repeated(store))


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
