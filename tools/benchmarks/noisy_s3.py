"""An S3 server that behaves like real links and stores: it refuses, stalls, trickles, and forgets idle connections.

It computes its objects, so it can have any number of them without a disk. With a certificate it uses TLS.

`python -m tools.benchmarks.noisy_s3 '{"keys": 20000, "latency_s": 0.05, "refused": 0.01}'` serves the bucket 'noise' on
loopback, prints its URL, and runs until it is terminated. Byte i of key number n is (n + i) % 251, so a reader can
check every byte. It supports ListObjectsV2 and ListObjects, HEAD, GET and ranges, and ignores credentials. /counters
returns, as JSON, how many requests and bytes it has answered.
"""

from __future__ import annotations

import bisect
import json
import random
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import trio

PAGE_KEYS_MAX = 1000
FOLDER_KEYS = 1000
MODULUS = 251
PIECE_BYTES = 64 << 10
PATTERN = bytes(range(MODULUS)) * (PIECE_BYTES // MODULUS + 2)
TRICKLE_S = 5.0
"""Pause between two bytes of the slow object."""
MODIFIED_HTTP = "Mon, 06 May 2024 07:08:09 GMT"


Away = Literal["closed", "silent", "late"]
"""How the server is away: it closes every connection; or it sends nothing more on existing and new connections; or its
data arrives only once it is back, as over a link that has lost packets.
"""


Connection: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"


@dataclass(frozen=True)
class Noise:
    """The kinds of faults, and how frequent they are. Shares are of the GETs.

    size: bytes of each object. latency_s: before each response. connection_bytes_per_s: the maximum rate of a
    connection. refused: the share that is answered with 503, also of those that list. stalled: the share, of those of
    objects, whose body falls silent after half of it was sent. slow_key: the number of an object that is sent at one
    byte per TRICKLE_S. idle_s: after this long without a request, a connection stops answering, as behind a NAT that
    forgot it. away_s: how long it is away at a time. away_as: in turn. present_s: how long it is available in between.
    0 stands for none, or never. certificate: the path of a file with a certificate and its key.
    """

    keys: int = 100
    size: int = 10_000
    latency_s: float = 0.0
    connection_bytes_per_s: float = 0.0
    refused: float = 0.0
    stalled: float = 0.0
    slow_key: int | None = None
    idle_s: float = 0.0
    away_s: float = 0.0
    away_as: Sequence[Away] = ("closed", "silent")
    present_s: float = 30.0
    certificate: str | None = None


@dataclass
class Counters:
    requests: int = 0
    refused: int = 0
    stalled: int = 0
    bytes: int = 0
    """Bytes of the bodies of objects."""
    connections: int = 0


def key(number: int) -> str:
    """The name of a key. Names sort like their numbers, up to ten million."""
    return f"d{number // FOLDER_KEYS:04}/f{number % FOLDER_KEYS:04}.bin"


def content(number: int, start: int, size: int) -> bytes:
    """Bytes of an object, at most PIECE_BYTES."""
    shift = (number + start) % MODULUS
    return PATTERN[shift : shift + size]


class NoisyS3:
    """The server. All its randomness comes from one seed, so two runs see the same share of noise."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.counters = Counters()
        self.gets: list[int] = []
        """The numbers of the objects that were requested, whole or in part, in that order."""
        self.away: Away | None = None
        self._random = random.Random(1)

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Serve until cancelled. ready: called with the URL."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1000)
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            if self.noise.away_s:
                nursery.start_soon(self._come_and_go)
            if self.noise.certificate is None:
                ready(f"http://{address}")
                await trio.serve_listeners(self._connection, listeners)
            else:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(self.noise.certificate)
                ready(f"https://{address}")
                secure = [trio.SSLListener(listener, context, https_compatible=True) for listener in listeners]
                await trio.serve_listeners(self._connection, secure)

    async def _come_and_go(self) -> None:
        while True:
            for away in self.noise.away_as:
                await trio.sleep(self.noise.present_s)
                self.away = away
                await trio.sleep(self.noise.away_s)
                self.away = None

    async def _connection(self, stream: Connection) -> None:
        self.counters.connections += 1
        served_at, received = trio.current_time(), b""
        with suppress(trio.BrokenResourceError):
            while data := await stream.receive_some(1 << 16):
                received += data
                head, found, rest = received.partition(b"\r\n\r\n")
                if not found:
                    continue
                received = rest
                if self.noise.idle_s and trio.current_time() - served_at > self.noise.idle_s:
                    await trio.sleep_forever()  # the NAT no longer knows this connection
                await self._answer(stream, head.decode("latin-1"))
                served_at = trio.current_time()

    async def _answer(self, stream: Connection, head: str) -> None:
        await self._stay_away()
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        url = urlsplit(target)
        if url.path == "/counters":
            await stream.send_all(_response(200, json.dumps(asdict(self.counters)).encode()))
            return
        if self.noise.latency_s:
            await trio.sleep(self.noise.latency_s)
        self.counters.requests += 1
        name = unquote(url.path).strip("/").partition("/")[2]
        if method == "GET" and self._random.random() < self.noise.refused:
            self.counters.refused += 1
            await stream.send_all(_response(503, b"<Error><Code>SlowDown</Code></Error>"))
        elif not name:
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            await stream.send_all(_response(200, self._page(query)))
        elif (number := self._number(name)) is None:
            await stream.send_all(_response(404, b"<Error><Code>NoSuchKey</Code></Error>" if method == "GET" else b""))
        else:
            found = re.search(r"(?im)^range: *bytes=(\d+)-(\d*)", head)
            await self._object(stream, number, method, (int(found[1]), int(found[2] or 1 << 62)) if found else None)

    async def _object(self, stream: Connection, number: int, method: str, wanted: tuple[int, int] | None) -> None:
        size = self.noise.size
        start, end = (wanted[0], min(wanted[1] + 1, size)) if wanted else (0, size)
        more = [f"ETag: {etag(number)}", f"Last-Modified: {MODIFIED_HTTP}", f"Date: {MODIFIED_HTTP}"]
        if wanted:
            more.append(f"Content-Range: bytes {start}-{end - 1}/{size}")
        head = _head(206 if wanted else 200, end - start, more)
        if method == "HEAD":
            await stream.send_all(head)
            return
        self.gets.append(number)
        stalls = self._random.random() < self.noise.stalled
        self.counters.stalled += stalls
        rate = self.noise.connection_bytes_per_s
        stop = (start + end) // 2 if stalls else end
        while start < stop:
            await self._stay_away()
            is_slow = number == self.noise.slow_key
            count = 1 if is_slow else min(PIECE_BYTES, stop - start, int(rate / 10) or PIECE_BYTES)
            await stream.send_all(head + content(number, start, count))
            self.counters.bytes += count
            head, start = b"", start + count
            if is_slow:
                await trio.sleep(TRICKLE_S)
            elif rate:
                await trio.sleep(count / rate)
        if stalls:
            await trio.sleep_forever()

    async def _stay_away(self) -> None:
        if self.away == "closed":
            raise trio.BrokenResourceError
        if self.away == "silent":
            await trio.sleep_forever()
        while self.away == "late":  # noqa: ASYNC110, another thread may set it
            await trio.sleep(0.02)

    def _number(self, name: str) -> int | None:
        number = bisect.bisect_left(range(self.noise.keys), name, key=key)
        return number if number < self.noise.keys and key(number) == name else None

    def _page(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("marker") or query.get("start-after", "")
        if query.get("delimiter") == "/" and "/" not in prefix:
            folders = (key(number).partition("/")[0] + "/" for number in range(0, self.noise.keys, FOLDER_KEYS))
            left = [name for name in folders if name.startswith(prefix) and name > after]
            page = left[:PAGE_KEYS_MAX]
            found = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in page)
            return _listing(prefix, found, page[-1] if len(left) > len(page) else "")
        numbers = range(self.noise.keys)
        start = bisect.bisect_left(numbers, prefix, key=key)
        start = max(start, bisect.bisect_right(numbers, after, key=key) if after else 0)
        end = min(self.noise.keys, start + min(PAGE_KEYS_MAX, int(query.get("max-keys") or PAGE_KEYS_MAX)))
        while end > start and not key(end - 1).startswith(prefix):
            end -= 1
        more = start < end < self.noise.keys and key(end).startswith(prefix)
        contents = "".join(
            f"<Contents><Key>{key(number)}</Key><LastModified>2024-05-06T07:08:09.000Z</LastModified>"
            f"<ETag>{etag(number)}</ETag><Size>{self.noise.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for number in range(start, end)
        )
        return _listing(prefix, contents, key(end - 1) if more else "")


def _listing(prefix: str, contents: str, next: str) -> bytes:
    """A page of a listing. next: its last name if there are more, otherwise empty."""
    tokens = f"<NextContinuationToken>{next}</NextContinuationToken><NextMarker>{next}</NextMarker>" if next else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>noise</Name><Prefix>{prefix}</Prefix><MaxKeys>{PAGE_KEYS_MAX}</MaxKeys>"
        f"<IsTruncated>{str(bool(next)).lower()}</IsTruncated>{tokens}{contents}</ListBucketResult>"
    ).encode()


def etag(number: int) -> str:
    """An ETag like that of an upload in parts, which is not the MD5."""
    return f'"{number * 0x9E3779B97F4A7C15 % 2**128:032x}-1"'


def _head(status: int, length: int, more: list[str]) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} x", f"Content-Length: {length}", *more, "", ""]).encode()


def _response(status: int, body: bytes) -> bytes:
    return _head(status, len(body), ["Content-Type: application/xml"]) + body


@contextmanager
def serving(noise: Noise) -> Iterator[tuple[NoisyS3, str]]:
    """Serve in a thread; yields the server and its URL."""
    store, urls, cancelled = NoisyS3(noise), SimpleQueue[str](), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with cancelled:
            await store.serve(urls.put)

    thread = Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield store, urls.get(timeout=10)
    finally:
        tokens[0].run_sync_soon(cancelled.cancel)
        thread.join(10)


if __name__ == "__main__":
    trio.run(NoisyS3(Noise(**json.loads(sys.argv[1]))).serve, partial(print, flush=True))
