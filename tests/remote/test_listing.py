"""A bucket that is listed by several readers side by side: against real servers, and against one that misbehaves."""

from __future__ import annotations

import http.server
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

import pytest

from growfs.errors import RemoteBusy, RemoteDenied, RemoteMissing
from growfs.remote.http.download import FALLBACKS_MAX
from growfs.remote.protocol import Page, Remote, RemoteFile
from growfs.remote.stores.s3.store import S3Remote
from growfs.remote.wrappers.retry import RetryingRemote
from tests.remote.store import s3
from tests.s3.proxy import before
from tests.servers import S3Server, serving

PAGE = 5
NAMES = [f"d{number // 40}/f{number % 40:02}" for number in range(400)]
ODD_NAMES = ["a b", "a+b", "a%2Bb", "a&amp;b", "tab\there", "x\x01y", "ü/日本", "<tag>", "\U0001f600"]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.stores.s3.store.PAGE_FILES_MAX", PAGE)


def paths(pages: Iterator[Page]) -> list[str]:
    return [file.path for page in pages for file in page.files]


@dataclass
class Bucket:
    """A server that lists `names` in their own order, a page at a time. fault: the status of a request, None if good.

    heeds: whether it begins where it is asked to; refuses: it answers 400 instead.
    busiest: how many requests were under way at once.
    """

    names: list[str]
    heeds: bool = True
    refuses: bool = False
    delay_s: float = 0.0
    fault: Callable[[int], int | None] = lambda _: None
    asked: list[dict[str, str]] = field(default_factory=list)
    under_way: int = 0
    busiest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, query: dict[str, str]) -> tuple[int, str]:
        with self.lock:
            number = len(self.asked)
            self.asked.append(query)
            self.under_way += 1
            self.busiest = max(self.busiest, self.under_way)
        time.sleep(self.delay_s)
        with self.lock:
            self.under_way -= 1
        if status := self.fault(number) or (400 if self.refuses and "start-after" in query else None):
            return status, "<Error><Code>Odd</Code></Error>"
        begin = 0
        if token := query.get("continuation-token"):
            begin = int(token)
        elif self.heeds and (after := query.get("start-after")):
            begin = next((at for at, name in enumerate(self.names) if name > after), len(self.names))
        end = begin + int(query["max-keys"])
        told = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag></Contents>"
            for name in self.names[begin:end]
        )
        more = end < len(self.names)
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        return 200, f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{told}</ListBucketResult>"


@pytest.fixture
def shown() -> Iterator[Callable[[Bucket], S3Remote]]:
    """Shows a Bucket; gives the remote."""
    bucket: Bucket

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: value for name, (value, *_) in parse_qs(urlsplit(self.path).query).items()}
            status, text = bucket.answer(query)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as url:

        def show(one: Bucket) -> S3Remote:
            nonlocal bucket
            bucket = one
            return s3(url)

        yield show


Shown = Callable[[Bucket], S3Remote]


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_real_servers_are_read_side_by_side(request: pytest.FixtureRequest, kind: str) -> None:
    server: S3Server = request.getfixturevalue(f"{kind}_s3")
    prefix = uuid4().hex
    for name in NAMES:
        server.put(f"{prefix}/{name}", b"x")
    with before(server.endpoint_url) as proxy:
        remote = S3Remote(server.spec(prefix, endpoint_url=proxy.url))
        assert sorted(paths(remote.pages())) == sorted(NAMES)
        targets = [asked.target for asked in proxy.asked]
    assert any("start-after" in target for target in targets)
    assert len(targets) < len(NAMES) / PAGE * 1.6


def test_a_page_costs_one_request(shown: Shown) -> None:
    remote = shown(bucket := Bucket(NAMES[:PAGE]))
    assert paths(remote.pages()) == NAMES[:PAGE]
    assert len(bucket.asked) == 1


def test_requests_are_under_way_at_once_but_not_from_the_beginning(shown: Shown) -> None:
    remote = shown(bucket := Bucket(NAMES, delay_s=0.02))
    assert sorted(paths(remote.pages())) == NAMES
    assert bucket.busiest > 1
    assert not [asked for asked in bucket.asked[:4] if "start-after" in asked]


def test_the_first_page_waits_for_no_other(rclone_s3: S3Server) -> None:
    prefix = uuid4().hex
    for name in NAMES[:50]:
        rclone_s3.put(f"{prefix}/{name}", b"x")
    with before(rclone_s3.endpoint_url) as proxy:
        proxy.hold(lambda asked: len(proxy.asked) > 1)
        pages = S3Remote(rclone_s3.spec(prefix, endpoint_url=proxy.url)).pages()
        assert len(next(pages).files) == PAGE
        proxy.let_go()
        assert len(paths(pages)) == 45


def test_a_reader_that_goes_away_ends_all_threads(shown: Shown) -> None:
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "_read_ranges" in thread.name]

    remote = shown(Bucket(NAMES, delay_s=0.02))
    pages = remote.pages()
    for _ in range(20):
        next(pages)
    assert len(ours()) > 1
    pages.close()  # type: ignore[attr-defined]
    for thread in ours():
        thread.join(20)
    assert not ours()


def test_what_nobody_takes_is_not_read(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.stores.s3.parallel_lister.PAGES_MAX", 8)
    remote = shown(bucket := Bucket(NAMES))
    pages = remote.pages()
    told = paths(itertools.islice(pages, 12))
    time.sleep(0.3)
    assert len(bucket.asked) <= (12 + 8) * 1.6
    assert sorted(told + paths(pages)) == NAMES


@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_server_is_asked_by_fewer_and_loses_nothing(shown: Shown, status: int) -> None:
    remote = shown(bucket := Bucket(NAMES, delay_s=0.01))
    bucket.fault = lambda _: status if bucket.under_way >= 3 else None
    delays: list[float] = []
    assert sorted(paths(RetryingRemote(remote, sleep=delays.append).pages())) == NAMES
    assert remote._concurrency.limit < 8


def test_errors_in_between_lose_nothing(shown: Shown) -> None:
    chance = random.Random(3)
    remote = shown(Bucket(NAMES, fault=lambda _: 503 if chance.random() < 0.3 else None))
    told = paths(RetryingRemote(remote, sleep=lambda _: None).pages())
    assert sorted(told) == NAMES


def test_what_was_under_way_is_told_before_an_error(shown: Shown) -> None:
    remote = shown(bucket := Bucket(NAMES, delay_s=0.01, fault=lambda number: 403 if number >= 40 else None))
    remote._listing_fallbacks = FALLBACKS_MAX  # the library does not ask again
    seen: list[Page] = []
    with pytest.raises(RemoteDenied):
        seen.extend(remote.pages())
    told = paths(iter(seen))
    assert len(told) >= 20 * PAGE
    bucket.fault = lambda _: None
    assert sorted(told + paths(remote.pages(seen[-1].cursor))) == NAMES


def test_a_server_that_stays_busy_is_told(shown: Shown) -> None:
    with pytest.raises(RemoteBusy):
        paths(shown(Bucket(NAMES, fault=lambda number: 503 if number > 20 else None)).pages())


@pytest.mark.parametrize("refuses", [True, False])
def test_a_server_that_begins_elsewhere_than_asked(shown: Shown, refuses: bool) -> None:
    remote = shown(bucket := Bucket(NAMES, heeds=False, refuses=refuses))
    assert paths(remote.pages()) == NAMES
    assert any("start-after" in asked for asked in bucket.asked), "or nothing was tried"


@pytest.mark.parametrize("heeds", [True, False])
def test_a_server_with_an_order_of_its_own(shown: Shown, heeds: bool) -> None:
    names = random.Random(5).sample(NAMES, len(NAMES))
    remote = shown(bucket := Bucket(names, heeds))
    assert paths(remote.pages()) == names
    assert len(bucket.asked) == len(NAMES) / PAGE + 1


def test_a_server_whose_order_shows_late_loses_nothing(shown: Shown) -> None:
    """As if it went through folders: what lies in one comes before names that go on with a lesser character than /."""
    names = sorted([*NAMES, *(f"d3-{number}" for number in range(20))], key=lambda name: name.split("/"))
    assert set(paths(shown(Bucket(names)).pages())) == set(names)


@pytest.mark.parametrize("by_library", [False, True])
def test_names_that_xml_cannot_carry(moto_s3: S3Server, by_library: bool) -> None:
    prefix = f"odd names & more+{by_library}"
    for name in ODD_NAMES:
        moto_s3.put(f"{prefix}/{name}", b"x")
    remote = S3Remote(moto_s3.spec(prefix))
    remote._listing_fallbacks = FALLBACKS_MAX if by_library else 0
    assert sorted(paths(remote.pages())) == sorted(ODD_NAMES)
    assert remote._listing_fallbacks == (FALLBACKS_MAX if by_library else 0)


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_the_library_tells_the_same(request: pytest.FixtureRequest, kind: str) -> None:
    server: S3Server = request.getfixturevalue(f"{kind}_s3")
    prefix = uuid4().hex
    for name in NAMES[:20]:
        server.put(f"{prefix}/{name}", name.encode())

    def listed(remote: Remote) -> list[RemoteFile]:
        return sorted((file for page in remote.pages() for file in page.files), key=lambda file: file.path)

    plain, other = S3Remote(server.spec(prefix)), S3Remote(server.spec(prefix))
    other._listing_fallbacks = FALLBACKS_MAX
    assert listed(plain) == listed(other)
    assert plain._listing_fallbacks == 0


@pytest.mark.parametrize("body", ["", "<html>", "<html></html>", "<ListBucketResult><Contents/></ListBucketResult>"])
def test_what_is_no_listing_is_left_to_the_library(shown: Shown, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    remote = shown(bucket := Bucket(NAMES))
    real = bucket.answer
    monkeypatch.setattr(bucket, "answer", lambda query: (200, body) if "X-Amz-Signature" in query else real(query))
    assert sorted(paths(remote.pages())) == NAMES
    assert remote._listing_fallbacks == FALLBACKS_MAX


def test_a_process_that_may_start_no_more_threads(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def one(self: threading.Thread) -> None:
        if "_read_ranges" in self.name:
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", one)
    assert sorted(paths(shown(Bucket(NAMES)).pages())) == NAMES


def test_an_empty_prefix_is_missing(moto_s3: S3Server) -> None:
    with pytest.raises(RemoteMissing):
        paths(S3Remote(moto_s3.spec(uuid4().hex)).pages())
