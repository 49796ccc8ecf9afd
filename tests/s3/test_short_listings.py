"""Listings that lack files: of a server that has lost them, and of one that only does not list them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from uuid import uuid4

import pytest

from tests.harness import Growfs, until
from tests.s3.proxy import Exchange, Fault, proxy_to
from tests.servers import S3Server

FILES = [f"{number:02}" for number in range(20)]


def put(server: S3Server, folder: str) -> str:
    """Put FILES; returns the URL of their folder."""
    for name in FILES:
        server.put(f"{folder}/{name}", name.encode())
    return f"s3://{server.bucket}/{folder}"


def lists_only(names: list[str]) -> Fault:
    """A listing that says that it is complete, but has only the keys that end with one of these."""

    def play(exchange: Exchange) -> None:
        response = exchange.forward()

        def kept(entry: re.Match[bytes]) -> bytes:
            return entry[0] if any(f"/{name}</Key>".encode() in entry[0] for name in names) else b""

        exchange.send(
            replace(response, body=re.sub(rb"<Contents>.*?</Contents>", kept, response.body, flags=re.DOTALL))
        )

    return play


@pytest.mark.promise(3, 16, 17)
@pytest.mark.parametrize(("listed", "deleted"), [(FILES[1:], []), (FILES[:2], FILES[3:])])
def test_a_listing_that_lacks_a_file_which_the_store_still_has_is_not_believed(
    growfs: Growfs, moto: S3Server, listed: list[str], deleted: list[str]
) -> None:
    """One of the files, or most and all but one of them are gone indeed. Programs hold all of them."""
    url = put(moto, folder := uuid4().hex)
    with proxy_to(moto.endpoint_url) as proxy:
        growfs.mount(url, "--endpoint-url", proxy.url, "--refresh", "0.2s", "--wait-files", str(len(FILES)))
        assert growfs.names() == set(FILES)
        proxy.fault = lambda request: lists_only(listed) if request.is_listing else None
        until(lambda: growfs.status()["last_error"])  # a listing that had begun before would lack the deleted ones
        for name in deleted:
            moto.delete(f"{folder}/{name}")
        doubts = tuple(
            f"{url}: its listing lacks {len(FILES) - len(listed)} files, but {name}, one of them, is still there"
            for name in FILES
            if name not in {*listed, *deleted}
        )
        doubt = until(lambda: (error := growfs.status()["last_error"] or "").startswith(doubts) and error)
        assert growfs.content() == {name: name.encode() for name in FILES}
        assert growfs.status()["cache"]["files"] == growfs.status()["remote"]["files"] == len(FILES)
        assert (
            f"WARNING the remote could not be listed, continuing with the files known so far: {doubt}" in growfs.log()
        )
        proxy.fault = lambda _: None
        until(lambda: growfs.status()["last_error"] is None)
        until(lambda: growfs.status()["remote"]["files"] == len(FILES) - len(deleted))
        assert growfs.names() == set(FILES) - set(deleted)


@pytest.mark.promise(1, 16)
def test_a_file_that_was_stored_again_gets_the_newer_time_and_is_not_fetched(growfs: Growfs, moto: S3Server) -> None:
    url = put(moto, uuid4().hex)
    with proxy_to(moto.endpoint_url) as proxy:
        growfs.mount(url, "--endpoint-url", proxy.url, "--refresh", "0.2s", "--wait-files", str(len(FILES)))

        def stored_in(year: int) -> Fault:
            def play(exchange: Exchange) -> None:
                response = exchange.forward()
                time = f"<LastModified>{year}-01-02T03:04:05.000Z<".encode()
                exchange.send(replace(response, body=re.sub(rb"<LastModified>[^<]*<", time, response.body)))

            return play

        for year in (2099, 2098):
            fault = stored_in(year)
            proxy.fault = lambda request, fault=fault: fault if request.is_listing else None  # type: ignore[misc]
            seen = len(proxy.requests)
            until(lambda: sum(request.is_listing for request in proxy.requests[seen:]) > 1)  # noqa: B023
        assert datetime.fromtimestamp((growfs.mountpoint / FILES[0]).stat().st_mtime, timezone.utc).year == 2099
        assert sum(request.is_fetch for request in proxy.requests) == len(FILES)


@pytest.mark.promise(16)
def test_files_that_are_gone_are_asked_for_once(growfs: Growfs, moto: S3Server) -> None:
    url = put(moto, folder := uuid4().hex)
    with proxy_to(moto.endpoint_url) as proxy:
        growfs.mount(url, "--endpoint-url", proxy.url, "--refresh", "0.2s", "--wait-files", str(len(FILES)))
        for name in FILES[::2]:
            moto.delete(f"{folder}/{name}")
        until(lambda: growfs.status()["cache"]["files"] == len(FILES) / 2)
        listed = len(proxy.requests)
        until(lambda: len(proxy.requests) > listed + 1)
        asked = [request.target.rpartition("/")[2] for request in proxy.requests if request.method == "HEAD"]
    assert growfs.names() == set(FILES[1::2])
    assert sorted(asked) == FILES[::2]
