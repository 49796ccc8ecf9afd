"""Fetches with plain GETs from servers that misbehave: they give the right file or error, or the library takes over."""

from __future__ import annotations

import errno
import gzip
import hashlib
import itertools
import os
import random
import threading
import time
from base64 import b64encode
from typing import Any

import pytest
from awscrt import checksums

from growfs.errors import RemoteBusy, RemoteChanged, RemoteDenied, RemoteError, RemoteMissing, RemoteThrottled
from growfs.remote import digest
from growfs.remote.client_choice import LEFT_MAX
from growfs.remote.digest import Digest
from growfs.remote.http.connection import HttpRequest
from growfs.remote.http.download import RangeDownloader
from growfs.remote.http.threads import THREADS_DEFAULT, TransferJob, TransferThreads
from growfs.remote.interface import ByteRange, FetchTask, RemoteFile, RemoteSpec
from growfs.remote.retries import TRIES_MAX, Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.web import HttpRemote
from tests.remote.fake_store import DATA, FILE, KEYS, PART, SMALL, FakeStore, Request, Scene, part_starts, s3
from tests.servers import S3Server

OTHER = random.Random(4).randbytes(len(DATA))

pytestmark = pytest.mark.usefixtures("small_parts")


def test_each_part_is_requested_once(scene: Scene) -> None:
    store, threads = FakeStore(DATA), TransferThreads()
    remote = S3Remote(RemoteSpec("s3://bucket", KEYS, scene.serve(store)), threads)

    def fetch(file: RemoteFile) -> list[Request]:
        """By a thread that counts as a stream, as in a worker; returns the GETs that it took."""
        before, contents, ended = len(store.gets), list[bytes](), threading.Event()

        def run() -> None:
            try:
                contents.append(scene.fetched(remote, file))
            finally:
                ended.set()

        threads.submit(TransferJob(run, file.size))
        assert ended.wait(20)
        assert contents == [DATA]
        return store.gets[before:]

    gets = fetch(RemoteFile("x", len(DATA), None, "v1"))
    assert sorted(request.start or 0 for request in gets) == list(part_starts(len(DATA)))
    unconditional = [request for request in gets if not request.headers["If-Match"]]
    assert 0 < len(unconditional) <= THREADS_DEFAULT, "they do not wait for the first response, which names the version"
    assert {request.headers["If-Match"] for request in gets} == {None, '"v1"'}
    fetch(FILE)
    assert len({request.port for request in store.gets}) <= THREADS_DEFAULT + 1, "that of the HEAD is used again"
    assert ({request.method for request in store.requests}, scene.by_library) == ({"GET", "HEAD"}, [])


@pytest.mark.parametrize("size", [len(SMALL), None])
def test_a_small_file_takes_one_get(scene: Scene, size: int | None) -> None:
    store = FakeStore(SMALL)
    remote = scene.s3(store)
    for _ in range(3):
        assert scene.fetched(remote, RemoteFile("x", size, None, "v1")) == SMALL
    assert [request.method for request in store.requests] == ["GET"] * 3
    assert (len({request.port for request in store.requests}), scene.by_library) == (1, [])
    assert {request.start for request in store.requests} == {None if size else 0}


@pytest.mark.parametrize("part", [ByteRange(0, 10), ByteRange(3 * PART + 7, PART), ByteRange(PART - 1, 4 * PART + 3)])
def test_only_the_byte_range_of_the_task_is_requested(scene: Scene, part: ByteRange) -> None:
    store = FakeStore(DATA)
    computed = Digest()
    found = scene.s3(store).fetch(
        FetchTask(RemoteFile("x", None, None, "v1"), scene.folder / "target", digest=computed, byte_range=part)
    )
    data = DATA[part.offset : part.offset + part.size]
    assert ((scene.folder / "target").read_bytes(), found.size, scene.by_library) == (data, len(DATA), [])
    assert computed.text() == digest.of(scene.folder / "target")
    starts = part_starts(part.size, part.offset)
    assert sorted((request.method, request.start or 0) for request in store.requests) == [
        ("GET", start) for start in starts
    ]


@pytest.mark.parametrize(("kind", "size"), [(s3, len(DATA)), (lambda url: HttpRemote(RemoteSpec(url)), None)])
@pytest.mark.parametrize("ranges", ["partial", "rclone", "ignored"])
@pytest.mark.parametrize("keeps_alive", [True, False])
def test_a_file_is_fetched_however_the_server_handles_ranges(
    scene: Scene, kind: Any, ranges: str, keeps_alive: bool, size: int | None
) -> None:
    store = FakeStore(DATA, ranges=ranges, keeps_alive=keeps_alive)
    remote = kind(scene.serve(store))
    for number in range(2):
        before = len(store.gets)
        assert scene.fetched(remote, RemoteFile("x", size, None, "v1")) == DATA
        if ranges != "ignored":
            assert len(store.gets) - before == 11
        elif number:  # the first time, several parts are requested before it shows
            assert len(store.gets) - before == 1
    assert scene.by_library == []


@pytest.mark.parametrize("zone", [" GMT", " -0000", ""])
def test_a_time_is_a_validator_whatever_its_zone(scene: Scene, zone: str) -> None:
    store = FakeStore(DATA, etag=None, modified=f"Tue, 03 Nov 2020 10:00:00{zone}")
    assert scene.fetched(scene.web(store)) == DATA
    assert scene.by_library == []


@pytest.mark.parametrize("honors_if_match", [True, False])
def test_a_file_of_servers_that_disagree_comes_in_one_piece(scene: Scene, honors_if_match: bool) -> None:
    """Each connection reaches one of two servers."""
    store, servers = FakeStore(DATA, honors_if_match=honors_if_match), dict[int, int]()

    def on_get(request: Request) -> None:
        store.etag = f'"of {servers.setdefault(request.port, len(servers) % 2)}"'

    store.on_get = on_get
    assert scene.fetched(scene.web(store)) == DATA
    assert scene.by_library == ["x"]


@pytest.mark.promise(33)
@pytest.mark.parametrize("honors_if_match", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"etag": '"v2"', "data": OTHER},
        {"etag": None, "modified": "Tue, 03 Nov 2020 10:00:01 GMT", "data": OTHER},
        {"etag": None, "data": OTHER + b"x"},
        {"etag": None, "data": OTHER[:-1]},
    ],
)
def test_a_file_that_changes_midway_is_refused(scene: Scene, honors_if_match: bool, change: dict[str, Any]) -> None:
    store = FakeStore(DATA, etag='"v1"' if change["etag"] else None, honors_if_match=honors_if_match)
    remote = scene.s3(store)
    file = remote.fetch(FetchTask(FILE, scene.folder / "target"))
    store.requests.clear()

    def on_get(_: Request) -> None:
        if len(store.gets) == 6:
            for name, value in change.items():
                setattr(store, name, value)

    store.on_get = on_get
    with pytest.raises(RemoteChanged):
        remote.fetch(FetchTask(file, scene.folder / "target"))


@pytest.mark.parametrize(
    "behaviour",
    [
        {"body": "gzip"},
        {"body": "chunked"},
        {"body": "endless"},
        {"etag": None, "modified": None},
        {"etag": 'W/"v1"', "modified": None},
        {"data": b""},
    ],
)
def test_unusual_responses_are_left_to_the_library(scene: Scene, behaviour: dict[str, Any]) -> None:
    store = FakeStore(**{"data": DATA, **behaviour})
    remote = scene.web(store)
    tries = LEFT_MAX + 2
    for _ in range(tries):
        assert scene.fetched(remote) == store.data
    assert scene.by_library == ["x"] * tries
    ranged = len([request for request in store.requests if request.start == 0])
    assert ranged == (tries if behaviour == {"data": b""} else LEFT_MAX), "plain GETs are given up for such a server"


def test_a_server_that_stops_sending_ranges_is_left_to_the_library(scene: Scene) -> None:
    """At once where nothing of the file has arrived yet, else at the second try."""
    url = scene.serve(FakeStore(DATA, ranges="first"))
    assert scene.fetched(RetryingRemote(lambda: s3(url), Retries(lambda _: None))) == DATA
    assert scene.by_library == ["x"]


@pytest.mark.promise(3)
@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        *(("cut", failing) for failing in ({1}, {2}, {7}, {1, 2, 3}, {4, 5, 6, 7})),
        *((status, {1, 2, 3}) for status in (429, 500, 502, 503, 504)),
    ],
)
def test_a_part_that_fails_goes_on_from_its_last_byte(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: str | int, failing: set[int]
) -> None:
    monkeypatch.setattr("growfs.remote.http.connection.PIECE_BYTES", 10 * len(DATA))
    store = FakeStore(DATA)
    refused: list[Request] = []

    def status(request: Request) -> int | None:
        if fault == "cut" or len(store.gets) not in failing or request.method != "GET":
            return None
        refused.append(request)
        return int(fault)

    def on_get(_: Request) -> None:
        store.body = "cut" if fault == "cut" and len(store.gets) in failing else "plain"

    store.on_get, store.status = on_get, status
    failures: list[RemoteError] = []
    retries, progress = Retries(lambda _: None, failures.append), list[int]()
    task = FetchTask(RemoteFile("x", len(DATA), None, "v1"), scene.folder / "target", progress.append, Digest())
    assert RetryingRemote(lambda: scene.s3(store), retries).fetch(task).size == len(DATA)
    assert (scene.folder / "target").read_bytes() == DATA
    assert task.digest
    assert task.digest.text() == digest.of(task.target)
    starts = list(part_starts(len(DATA)))
    assert len(store.gets) == len(starts) + len(failing), "no request is made twice but for those that failed"
    again = [request.start or 0 for request in store.gets if (request.start or 0) not in starts]
    assert len(again) == (len(failing) if fault == "cut" else 0), "what arrived is not requested again"
    assert sum(progress) == len(DATA)
    assert [type(error) for error in failures] == [
        RemoteThrottled if fault in (429, 503) else RemoteBusy for _ in failing
    ]
    assert (retries.answered, scene.by_library) == (len(starts), [])


def test_a_lone_request_that_is_not_answered_is_sent_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader waits for the file, and nothing else is requested, so that nothing shows that responses come sooner."""
    monkeypatch.setattr("growfs.remote.http.slow_streams.WINDOW_S", 0.2)
    store, ended = FakeStore(SMALL), threading.Event()
    failures: list[RemoteError] = []
    threads = TransferThreads(latency_s=lambda: 0.01)
    source = S3Remote(RemoteSpec("s3://bucket", KEYS, scene.serve(store)), threads)
    remote = RetryingRemote(lambda: source, Retries(lambda _: None, failures.append))

    def headers(_: Request) -> dict[str, str]:
        if len(store.gets) == 1:
            ended.wait()
        return {}

    store.headers_for = headers
    try:
        assert scene.fetched(remote) == SMALL
    finally:
        ended.set()
    assert failures == [], "the timeout did not end it"


@pytest.mark.parametrize("fault", ["range", "length", "etag"])
def test_one_odd_answer_to_a_part_costs_that_part_only(scene: Scene, fault: str) -> None:
    store, failures = FakeStore(DATA), list[RemoteError]()
    start = part_starts(len(DATA))[4]  # all parts are requested at once; that of the first one decides about the store

    def on_get(request: Request) -> None:
        is_odd = request.start == start and [get.start for get in store.gets].count(start) == 1
        store.ranges = "ignored" if is_odd and fault == "range" else "partial"
        store.body = "chunked" if is_odd and fault == "length" else "plain"
        store.etag, store.honors_if_match = '"v2"' if is_odd and fault == "etag" else '"v1"', False

    store.on_get = on_get
    remote = RetryingRemote(lambda: scene.s3(store), Retries(lambda _: None, failures.append))
    assert scene.fetched(remote, RemoteFile("x", len(DATA), None, "")) == DATA
    assert scene.by_library == []
    assert len(store.gets) == len(part_starts(len(DATA))) + 1
    assert len(failures) == 1


def test_a_request_that_is_repeated_is_signed_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of hours, the old signature has expired."""
    hours = itertools.count()
    monkeypatch.setattr("growfs.remote.stores.s3.signer.gmtime", lambda: time.gmtime(next(hours) * 3600))
    store = FakeStore(SMALL)
    store.status = lambda request: 503 if len(store.gets) == 1 else None
    assert scene.fetched(RetryingRemote(lambda: scene.s3(store), Retries(lambda _: None))) == SMALL
    assert (len({request.headers["x-amz-date"] for request in store.gets}), scene.by_library) == (2, [])


@pytest.mark.parametrize("fault", ["cut", 503])
def test_a_file_fails_when_one_part_always_fails(scene: Scene, fault: str | int) -> None:
    store = FakeStore(DATA)
    _, _, start, end, *_ = part_starts(len(DATA))

    def is_bad(request: Request) -> bool:
        return request.method == "GET" and start <= (request.start or 0) < end

    if fault == "cut":
        store.on_get = lambda request: setattr(store, "body", "cut" if is_bad(request) else "plain")
    else:
        store.status = lambda request: 503 if is_bad(request) else None
    pauses: list[float] = []
    with pytest.raises(RemoteBusy):
        RetryingRemote(lambda: scene.s3(store), Retries(pauses.append)).fetch(
            FetchTask(RemoteFile("x", len(DATA), None, "v1"), scene.folder / "target")
        )
    assert TRIES_MAX <= sum(map(is_bad, store.gets)) <= 3 * TRIES_MAX
    good = [request.start or 0 for request in store.gets if not is_bad(request)]
    assert len(good) == len(set(good)), "no other part is requested twice"


@pytest.mark.parametrize("value", ["7", "Tue, 01 Jan 2030 00:00:00 GMT", "Tue, 01 Jan 2030 00:00:00"])
def test_a_store_says_how_long_it_wants_to_be_left_alone(scene: Scene, value: str) -> None:
    store = FakeStore(DATA, extra_headers={"Retry-After": value})
    store.status = lambda request: 503 if len(store.gets) == 4 else None
    pauses: list[float] = []
    assert scene.fetched(RetryingRemote(lambda: scene.s3(store), Retries(pauses.append))) == DATA
    assert pauses == [7.0 if value == "7" else 60.0]


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, RemoteThrottled), (429, RemoteThrottled), (500, RemoteBusy), (404, RemoteMissing), (403, RemoteDenied)],
)
def test_each_status_raises_its_error(scene: Scene, status: int, kind: type[Exception], at: int) -> None:
    store = FakeStore(DATA)
    store.status = lambda _: status if len(store.gets) >= at else None
    with pytest.raises(kind) as caught:
        scene.s3(store, token="the-token").fetch(FetchTask(FILE, scene.folder / "target"))
    assert type(caught.value) is kind
    assert "the-token" not in str(caught.value)


MD5 = hashlib.md5(SMALL)


def test_a_store_whose_checksums_are_all_wrong_is_believed_about_the_rest(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The same bytes arrive twice, so that they were not damaged in transit."""
    store = FakeStore(DATA, extra_headers={"x-amz-checksum-crc32c": b64encode(bytes(4)).decode()})
    source = scene.s3(store)
    remote = RetryingRemote(lambda: source, Retries(lambda _: None))
    for path in ("a", "b"):
        with pytest.raises(RemoteBusy, match="damaged in transit"):
            scene.fetched(remote, RemoteFile(path, len(DATA), None, "v1"))
    for path in ("c", "d", "a"):
        assert scene.fetched(remote, RemoteFile(path, len(DATA), None, "v1")) == DATA
    assert caplog.text.count("c: the CRC32C of the content is not the one that the store sent, as for all files") == 1
    store.on_get = lambda request: setattr(store, "data", random.Random(len(store.gets)).randbytes(len(DATA)))
    with pytest.raises(RemoteBusy, match="damaged in transit"):
        scene.fetched(remote, RemoteFile("e", len(DATA), None, "v1"))
    assert scene.by_library == []


def test_a_checksum_that_was_right_once_is_believed(scene: Scene) -> None:
    store = FakeStore(SMALL, extra_headers={"Content-MD5": b64encode(MD5.digest()).decode()})
    source = scene.s3(store)
    remote = RetryingRemote(lambda: source, Retries(lambda _: None))
    assert scene.fetched(remote) == SMALL
    store.data = OTHER[: len(SMALL)]
    for path in "abcde":
        with pytest.raises(RemoteBusy, match="damaged in transit"):
            scene.fetched(remote, RemoteFile(path, len(SMALL), None, "v1"))


@pytest.mark.parametrize("status", [400, 501])
def test_a_store_that_refuses_to_be_asked_for_checksums_is_not(scene: Scene, status: int) -> None:
    store = FakeStore(DATA)
    store.status = lambda request: status if "x-amz-checksum-mode" in request.headers else None
    remote = scene.s3(store)
    for _ in range(2):
        refused = sum("x-amz-checksum-mode" in request.headers for request in store.requests)
        assert scene.fetched(remote) == DATA
    assert sum("x-amz-checksum-mode" in request.headers for request in store.requests) == refused, "it is known by now"
    store.status = lambda _: 400
    with pytest.raises(RemoteError):
        scene.fetched(remote)
    assert scene.by_library == ["x"], "no manner helped"


@pytest.mark.parametrize("has_length", [True, False])
def test_an_object_that_is_stored_compressed_is_fetched_as_it_is_stored(scene: Scene, has_length: bool) -> None:
    """Some stores decompress it for clients that do not accept gzip; others compress nothing on the way."""
    store, packed = FakeStore(DATA), gzip.compress(DATA)

    def on_get(request: Request) -> None:
        accepts = "gzip" in request.headers["Accept-Encoding"]
        store.data, store.etag = (packed, '"v1"') if accepts else (DATA, 'W/"v1"')
        store.body, store.ranges = "plain" if accepts or has_length else "chunked", "partial" if accepts else "ignored"
        store.extra_headers = {"Content-Encoding": "gzip"} if accepts else {}

    store.on_get = on_get
    remote = scene.s3(store)
    for _ in range(2):
        assert scene.fetched(remote, RemoteFile("x", len(packed), None, "v1")) == packed
    assert scene.by_library == []


@pytest.mark.promise(33)
def test_after_refusals_the_library_makes_all_requests_and_content_is_still_verified(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore(SMALL)
    store.status = lambda request: None if "Botocore" in request.headers.get("User-Agent", "") else 403
    remote = scene.s3(store)
    for _ in range(LEFT_MAX):
        assert "the store's library" not in caplog.text
        assert scene.fetched(remote) == SMALL
    assert "the store's library makes all requests from now on, which is slower: status 403" in caplog.text
    assert (remote._threads.library.files, remote._threads.library.gave_up) == (LEFT_MAX, "status 403")
    store.status = lambda _: None
    store.extra_headers = {"Content-MD5": b64encode(bytes(16)).decode()}
    with pytest.raises(RemoteBusy, match="the MD5 of the content is not"):
        scene.fetched(remote)
    assert len(scene.by_library) == LEFT_MAX + 1
    store.extra_headers = {"Content-MD5": b64encode(MD5.digest()).decode()}
    assert scene.fetched(remote) == SMALL
    assert len(scene.by_library) == LEFT_MAX + 2


@pytest.mark.promise(33)
@pytest.mark.parametrize("name", ["crc32c", "crc64nvme", "crc32"])
@pytest.mark.parametrize("matches", [True, False])
@pytest.mark.parametrize("sent_by", ["GET", "HEAD"])
def test_the_checksum_of_a_file_fetched_in_parts_is_verified(
    scene: Scene, name: str, matches: bool, sent_by: str
) -> None:
    crc = getattr(checksums, name)(DATA if matches else OTHER)
    checksum = {f"x-amz-checksum-{name}": b64encode(crc.to_bytes(8 if name == "crc64nvme" else 4, "big")).decode()}
    store = FakeStore(DATA, ranges="partial" if sent_by == "HEAD" else "ignored")
    store.headers_for = lambda request: checksum if request.method == sent_by else {}
    remote = scene.s3(store)
    if matches:
        assert scene.fetched(remote) == DATA
    else:
        with pytest.raises(RemoteBusy, match=f"damaged in transit.*{name.upper()}"):
            scene.fetched(remote)


def test_head_requests_stop_for_a_store_that_sends_no_checksums(scene: Scene) -> None:
    store = FakeStore(DATA)
    remote = scene.s3(store)
    for _ in range(11):
        scene.fetched(remote)
    assert sum(request.method == "HEAD" for request in store.requests) == 8


def test_an_idle_connection_to_the_same_server_is_taken(scene: Scene) -> None:
    downloader = RangeDownloader(TransferThreads())
    first, second = (HttpRequest(f"{scene.serve(FakeStore(SMALL))}/x") for _ in range(2))
    with downloader.connection(first.origin) as one, downloader.connection(second.origin) as other:
        for connection, request in ((one, first), (other, second)):
            connection.read(connection.send(request, {}))
    for connection, request in ((one, first), (other, second), (one, first)):
        with downloader.connection(request.origin) as taken:
            assert taken is connection
    with downloader.connection(("http", "another.test")):
        assert len(downloader._connections) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_disk_space_is_reserved_once_the_size_is_known(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fallocate(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    remote = scene.s3(FakeStore(DATA))
    assert scene.fetched(remote) == DATA, "nothing is reserved while the size is unknown"
    file = remote.stat("x")
    if code == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            scene.fetched(remote, file)
    else:
        assert scene.fetched(remote, file) == DATA


@pytest.mark.parametrize("changed", [False, True])
def test_signed_urls_of_any_fsspec_store_are_used(scene: Scene, monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/signs/x", DATA)
    url = scene.serve(FakeStore(DATA))
    monkeypatch.setattr(type(memory), "sign", lambda *_, **more: f"{url}x?{more['expiration']}")
    remote = FsspecRemote(RemoteSpec("memory://signs"))
    file = remote.stat("x")
    if changed:
        memory.pipe_file("/signs/x", DATA)
        with pytest.raises(RemoteChanged):
            scene.fetched(remote, file)
    else:
        assert scene.fetched(remote, file) == DATA
        assert remote.fetch(FetchTask(file, scene.folder / "target")) == file
    assert scene.by_library == []
    monkeypatch.setattr(type(memory), "sign", lambda *_, **more: "/no/url")
    assert remote.fetch(FetchTask(remote.stat("x"), scene.folder / "target")).size == len(DATA)
    assert scene.by_library == ["x"]


def test_ranges_of_a_real_server_are_used(scene: Scene, rclone_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    rclone_s3.put("ranged/first", SMALL)
    remote = S3Remote(rclone_s3.spec("ranged"))
    scene.fetched(remote, RemoteFile("first", len(SMALL), None, ""))  # the slow setup is done once
    rclone_s3.put("ranged/x", DATA)
    assert scene.fetched(remote) == DATA
    assert scene.by_library == ["x"], "the file is of this very second, so its version might miss a change"
    monkeypatch.setattr("growfs.remote.http.download._has_validator", lambda _: True)
    assert scene.fetched(remote, remote.stat("x")) == DATA
    assert scene.by_library == ["x"]
