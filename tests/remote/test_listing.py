"""Parallel listing of a bucket: by real servers, and by one that misbehaves."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, quote_plus, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

import pytest

from growfs.errors import RemoteBusy, RemoteDenied
from growfs.remote.client_choice import LEFT_MAX
from growfs.remote.interface import Page
from growfs.remote.retries import Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.parallel_lister import ConcurrencyLimit
from tests.harness import until
from tests.remote.fake_store import s3
from tests.s3.proxy import proxy_to
from tests.servers import QuietHandler, S3Server, serving

PAGE = 5
NAMES = [f"d{number // 40}/f{number % 40:02}" for number in range(400)]
ODD_NAMES = ["a b", "a+b", "a%2Bb", "a&amp;b", "tab\there", "x\x01y", "ü/日本", "<tag>", "\U0001f600"]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.stores.s3.bucket.PAGE_FILES_MAX", PAGE)


def paths(pages: Iterator[Page]) -> list[str]:
    return [file.path for page in pages for file in page.files]


@dataclass
class FakeBucket:
    """A server that lists `names` in the order given, in pages.

    honors_start_after: whether a listing begins after start-after; rejects_start_after: it answers 400 instead.
    storage: the XML of the storage class, where it is another one. restore_status: whether it tells, if asked, what was
    restored; else it refuses the request.
    encode: how it writes a key, if it encodes keys.
    fault: maps the number of a request to the status of an error, None if there is none.
    queries: the query of each request, in order. peak: the most requests that were in flight at once.
    """

    names: list[str]
    honors_start_after: bool = True
    rejects_start_after: bool = False
    delay_s: float = 0.0
    storage: dict[str, str] = field(default_factory=dict)
    restore_status: bool = True
    encode: Callable[[str], str] | None = None
    fault: Callable[[int], int | None] = lambda _: None
    queries: list[dict[str, str]] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, query: dict[str, str]) -> tuple[int, str]:
        with self.lock:
            number = len(self.queries)
            self.queries.append(query)
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        time.sleep(self.delay_s)
        with self.lock:
            self.in_flight -= 1
        if status := self.fault(number) or (400 if self.rejects_start_after and "start-after" in query else None):
            return status, "<Error><Code>Odd</Code></Error>"
        asks = query["attributes"] == "RestoreStatus"
        if asks and not self.restore_status:
            return 501, "<Error><Code>NotImplemented</Code></Error>"
        begin = 0
        if token := query.get("continuation-token"):
            begin = int(token)
        elif self.honors_start_after and (after := query.get("start-after")):
            begin = next((at for at, name in enumerate(self.names) if name > after), len(self.names))
        end = begin + int(query["max-keys"])
        contents = "".join(
            f"<Contents><Key>{escape((self.encode or str)(name))}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
            f"{self.storage.get(name, '') if asks else self.storage.get(name, '').partition('<Restore')[0]}</Contents>"
            for name in self.names[begin:end]
        )
        more = end < len(self.names)
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        how = (
            f"{'<EncodingType>url</EncodingType>' if self.encode else ''}<IsTruncated>{str(more).lower()}</IsTruncated>"
        )
        return 200, f"<ListBucketResult>{how}{token}{contents}</ListBucketResult>"


@pytest.fixture
def serve() -> Iterator[Callable[[FakeBucket], S3Remote]]:
    """Serves a FakeBucket; returns the remote of it."""
    bucket: FakeBucket

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: value for name, (value, *_) in parse_qs(urlsplit(self.path).query).items()}
            query["agent"] = self.headers.get("User-Agent", "")
            query["attributes"] = self.headers.get("x-amz-optional-object-attributes", "")
            status, text = bucket.answer(query)
            self.reply(text.encode(errors="surrogateescape"), status)

        def do_HEAD(self) -> None:
            self.reply("", 200 if unquote(self.path).removeprefix("/bucket/") in bucket.names else 404)

    with serving(Handler) as url:

        def start(fake: FakeBucket) -> S3Remote:
            nonlocal bucket
            bucket = fake
            return s3(url)

        yield start


Serve = Callable[[FakeBucket], S3Remote]


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_real_servers_are_listed_in_parallel(request: pytest.FixtureRequest, kind: str) -> None:
    server: S3Server = request.getfixturevalue(f"{kind}_s3")
    prefix = uuid4().hex
    names = NAMES[:200]
    for name in names:
        server.put(f"{prefix}/{name}", b"x")
    with proxy_to(server.endpoint_url) as proxy:
        remote = S3Remote(server.spec(prefix, endpoint_url=proxy.url))
        assert sorted(paths(remote.pages())) == sorted(names)
        targets = [sent.target for sent in proxy.requests]
    assert any("start-after" in target for target in targets)
    assert len(targets) < len(names) / PAGE * 2


def test_the_first_page_does_not_wait_for_others(rclone_s3: S3Server) -> None:
    prefix = uuid4().hex
    for name in NAMES[:50]:
        rclone_s3.put(f"{prefix}/{name}", b"x")
    with proxy_to(rclone_s3.endpoint_url) as proxy:
        proxy.hold(lambda _: len(proxy.requests) > 1)
        pages = S3Remote(rclone_s3.spec(prefix, endpoint_url=proxy.url)).pages()
        assert len(next(pages).files) == PAGE
        proxy.release()
        assert len(paths(pages)) == 45


def test_closing_the_listing_ends_all_threads(serve: Serve) -> None:
    def reading_threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "_read_ranges" in thread.name]

    remote = serve(FakeBucket(NAMES, delay_s=0.02))
    pages = remote.pages()
    for _ in range(20):
        next(pages)
    assert len(reading_threads()) > 1
    pages.close()  # type: ignore[attr-defined]
    for thread in reading_threads():
        thread.join(20)
    assert not reading_threads()


def test_pages_are_not_read_far_ahead_of_the_consumer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.stores.s3.parallel_lister.PAGES_MAX", 8)
    remote = serve(bucket := FakeBucket(NAMES))
    pages = remote.pages()
    first = paths(itertools.islice(pages, 12))
    time.sleep(0.3)
    assert len(bucket.queries) <= (12 + 8) * 1.6
    assert sorted(first + paths(pages)) == NAMES


@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_server_gets_fewer_requests_at_once_and_no_key_is_lost(serve: Serve, status: int) -> None:
    remote = serve(bucket := FakeBucket(NAMES, delay_s=0.01))
    bucket.fault = lambda _: status if bucket.in_flight >= 3 else None
    delays: list[float] = []
    assert sorted(paths(RetryingRemote(lambda: remote, Retries(delays.append)).pages())) == NAMES
    assert remote._concurrency.limit < 8


def test_pages_in_flight_are_returned_before_an_error_is_raised(serve: Serve) -> None:
    remote = serve(bucket := FakeBucket(NAMES, delay_s=0.01, fault=lambda number: 403 if number >= 40 else None))
    remote._threads.library.gave_up = "a test"  # no plain GETs: the library would repeat each that is denied
    seen: list[Page] = []
    with pytest.raises(RemoteDenied):
        seen.extend(remote.pages())
    found = paths(iter(seen))
    assert len(found) >= 20 * PAGE
    bucket.fault = lambda _: None
    assert sorted(found + paths(remote.pages(seen[-1].cursor))) == NAMES


def test_a_server_that_stays_busy_raises_busy(serve: Serve) -> None:
    with pytest.raises(RemoteBusy):
        paths(serve(FakeBucket(NAMES, fault=lambda number: 503 if number > 20 else None)).pages())


@pytest.mark.parametrize("rejects", [True, False])
def test_a_server_that_ignores_or_rejects_start_after_is_listed(serve: Serve, rejects: bool) -> None:
    remote = serve(bucket := FakeBucket(NAMES, honors_start_after=False, rejects_start_after=rejects))
    assert paths(remote.pages()) == NAMES
    assert any("start-after" in query for query in bucket.queries), "no parallel request was tried"


def test_a_server_that_rejects_start_after_late_is_listed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some pages have been read one by one by then, and are not returned yet."""
    remote = serve(bucket := FakeBucket(NAMES, rejects_start_after=True))
    refused = itertools.count()
    serial = threading.Event()
    real = bucket.answer

    def answer(query: dict[str, str]) -> tuple[int, str]:
        if "start-after" in query and "Botocore" not in query["agent"] and next(refused):
            assert serial.wait(10)
        return real(query)

    monkeypatch.setattr(bucket, "answer", answer)
    monkeypatch.setattr(ConcurrencyLimit, "limit", 4)
    pages = remote.pages()
    found = [next(pages)]
    until(lambda: len(bucket.queries) > 30)
    assert next(refused) > 1, "some are refused late"
    begun = len(bucket.queries)
    serial.set()
    until(lambda: any("start-after" in query for query in bucket.queries[begun:]))
    assert paths(itertools.chain(found, pages)) == NAMES


@pytest.mark.parametrize("honors_start_after", [True, False])
def test_a_server_that_lists_in_another_order_is_listed_sequentially(serve: Serve, honors_start_after: bool) -> None:
    names = random.Random(5).sample(NAMES, len(NAMES))
    remote = serve(bucket := FakeBucket(names, honors_start_after))
    assert paths(remote.pages()) == names
    assert len(bucket.queries) == len(NAMES) / PAGE + 1


def test_a_wrong_order_that_is_noticed_late_loses_no_key(serve: Serve) -> None:
    """The server walks folders: it lists d3/ before `d3-1`, although "-" sorts before "/"."""
    names = sorted([*NAMES, *(f"d3-{number}" for number in range(20))], key=lambda name: name.split("/"))
    assert set(paths(serve(FakeBucket(names)).pages())) == set(names)


@pytest.mark.parametrize("by_library", [False, True])
def test_names_that_xml_cannot_represent_are_listed(moto_s3: S3Server, by_library: bool) -> None:
    prefix = f"odd names & more+{by_library}"
    for name in ODD_NAMES:
        moto_s3.put(f"{prefix}/{name}", b"x")
    remote = S3Remote(moto_s3.spec(prefix, client="library" if by_library else "growfs"))
    assert sorted(paths(remote.pages())) == sorted(ODD_NAMES)


def percent(name: str) -> str:
    """Encoded, with %20 for a space."""
    return quote(name.encode(errors="surrogateescape"))


@pytest.mark.parametrize(
    ("encode", "lost"), [(percent, {"not utf-8 \ufffd"}), (None, {"not utf-8 \ufffd", "x\ufffdy"})], ids=["url", "XML"]
)
def test_a_name_that_the_listing_cannot_show_is_skipped(
    serve: Serve, encode: Callable[[str], str] | None, lost: set[str]
) -> None:
    """It is not asked for by another name, and the other names of its page are listed."""
    pages = list(serve(FakeBucket(["a", "b", "not utf-8 \udcff", "x\x03y", "z"], encode=encode)).pages())
    skipped = {each.path: each.reason for page in pages for each in page.skipped}
    assert skipped == dict.fromkeys(
        lost, "the listing cannot show its name: it is not UTF-8, or contains a control character"
    )
    assert set(paths(iter(pages))) == {"a", "b", "z"} | ({"x\x03y"} if encode else set())


def leaves_plus(name: str) -> str:
    """Encoded as in a path: a plus stays as it is."""
    return quote(name, safe="/+")


@pytest.mark.parametrize("by_library", [False, True])
@pytest.mark.parametrize(
    ("encode", "names"),
    [
        (quote_plus, ["a b", "a+b"]),
        (quote_plus, ["a b", "a"]),
        (leaves_plus, ["a b", "a+b"]),
        (leaves_plus, ["a+b", "a%2Bb", "a"]),
        (leaves_plus, ["a+b", "a"]),
    ],
)
def test_a_plus_in_an_encoded_name_is_what_the_server_means(
    serve: Serve, encode: Callable[[str], str], names: list[str], by_library: bool
) -> None:
    remote = serve(FakeBucket(names, encode=encode))
    if by_library:
        remote._threads.library.gave_up = "a test"
    assert set(paths(remote.pages())) == set(names)


@pytest.mark.parametrize("body", ["", "<html>", "<html></html>", "<ListBucketResult><Contents/></ListBucketResult>"])
def test_a_response_that_is_no_listing_is_left_to_the_library(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    remote = serve(bucket := FakeBucket(NAMES[:30]))
    real = bucket.answer
    monkeypatch.setattr(bucket, "answer", lambda query: real(query) if "Botocore" in query["agent"] else (200, body))
    assert sorted(paths(remote.pages())) == sorted(NAMES[:30])
    assert remote._threads.library.gave_up.startswith("no listing: ")


def test_a_listing_is_complete_when_no_more_threads_can_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_one(self: threading.Thread) -> None:
        if "_read_ranges" in self.name:
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    assert sorted(paths(serve(FakeBucket(NAMES)).pages())) == NAMES


@pytest.mark.parametrize("restore_status", [True, False])
def test_archived_objects_are_skipped_until_they_are_restored(serve: Serve, restore_status: bool) -> None:
    names = NAMES[:40]
    restored = "<RestoreStatus><RestoreExpiryDate>2099-01-01T00:00:00Z</RestoreExpiryDate></RestoreStatus>"
    storage = {
        names[7]: "<StorageClass>GLACIER</StorageClass>",
        names[20]: f"<StorageClass>GLACIER</StorageClass>{restored}",
        names[31]: "<StorageClass>DEEP_ARCHIVE</StorageClass><RestoreStatus><IsRestoreInProgress>true"
        "</IsRestoreInProgress></RestoreStatus>",
        names[33]: "<StorageClass>GLACIER_IR</StorageClass>",
    }
    fake = FakeBucket(names, storage=storage, restore_status=restore_status)
    pages = list(serve(fake).pages())
    skipped = {name.path: name.reason for page in pages for name in page.skipped}
    unreadable = [names[7], names[31]] + ([] if restore_status else [names[20]])
    assert skipped == dict.fromkeys(unreadable, "archived: restore it, or copy it to another storage class")
    assert sorted(paths(iter(pages))) == sorted(set(names) - set(unreadable))
    asked = [query for query in fake.queries if query["attributes"]]
    assert asked if restore_status else len(asked) <= 2 * LEFT_MAX


def test_a_bucket_without_archived_objects_is_asked_for_nothing_more(serve: Serve) -> None:
    fake = FakeBucket(NAMES[:40])
    assert paths(serve(fake).pages())
    assert not [query for query in fake.queries if query["attributes"]]
