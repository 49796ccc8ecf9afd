"""Fetches files from other nodes, which serve their cached files (growfs.extensions.peers.server).

A node serves only complete files, of the requested version. The ETag is the digest that they had when they arrived from
the remote. Peers are an optimization, not a source of truth: if anything goes wrong, the remote is read instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

from growfs.remote.digest import Digest
from growfs.remote.http.connection import ConnectionFailed, FallBack, Headers, HttpRequest, Timeouts
from growfs.remote.http.download import ChecksumMismatch, HttpError, RangeDownloader
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, RemoteFile
from growfs.remote.metadata import fitting

TIMEOUTS = Timeouts(connect_s=1, read_s=5, piece_s=10)
"""Short, because peers are near and a file has other sources."""
PAUSE_S = 10.0
"""How long no requests are sent to a peer that failed."""
FILES, POSITION = "/files/", "/position"
VERSION_HEADER, MTIME_HEADER = "x-growfs-version", "x-growfs-mtime-ns"

log = logging.getLogger(__name__)


def authorization(token: str) -> str:
    """The value of the header Authorization that peers expect."""
    return f"Bearer {token}"


class PeerClient:
    """Owns the connections of a process to the peers. token: the one that they demand."""

    def __init__(self, token: str, threads: TransferThreads) -> None:
        self._token = token
        self._downloader = RangeDownloader(threads, timeouts=TIMEOUTS, uses_proxies=False)
        self._paused_until: dict[str, float] = {}

    def fetch(self, task: FetchTask, hosts: Sequence[str]) -> RemoteFile | None:
        """See OtherFetcher. hosts: each is HOST:PORT."""
        if not task.file.version or task.file.size is None or task.digest is None:
            return None  # it could be another version, or damaged
        for peer in hosts:
            if time.monotonic() < self._paused_until.get(peer, 0.0):
                continue
            task.restart()
            with suppress(FallBack, _OtherFile):
                try:
                    return self._fetch(task, task.digest, peer)
                except (ConnectionFailed, HttpError, ChecksumMismatch) as error:
                    if isinstance(error, HttpError) and error.status in (404, 410, 416):
                        continue  # it was evicted between two parts; 416: a range of an empty file
                    self._pause(peer)
                    log.warning("%s: not fetched from the node %s: %s", task.file.path, peer, error)
        return None

    def _fetch(self, task: FetchTask, digest: Digest, peer: str) -> RemoteFile:
        file, sent_digest = task.file, ""

        def sign() -> HttpRequest:
            url = f"http://{peer}{FILES}{quote(file.path)}"
            return HttpRequest(url, {"Authorization": authorization(self._token), VERSION_HEADER: version})

        def check(size: int, headers: Headers) -> RemoteFile:
            nonlocal sent_digest
            if size != file.size or headers.get(VERSION_HEADER) != version:
                raise _OtherFile
            sent_digest = headers.get("etag", "").strip('"')
            mtime_ns = None
            with suppress(KeyError, ValueError):
                mtime_ns = fitting(int(headers[MTIME_HEADER]))
            return RemoteFile(file.path, size, mtime_ns, file.version)

        version = quote(file.version)
        found = self._downloader.fetch(task._replace(tries=None), sign, check, _as_it_is)
        if digest.text() != sent_digest:
            raise ChecksumMismatch(f"its digest is {digest.text()}, but the node sent {sent_digest or 'none'}")
        return found[1]

    def _pause(self, peer: str) -> None:
        now = time.monotonic()
        paused = {other: until for other, until in self._paused_until.items() if until > now}
        self._paused_until = {**paused, peer: now + PAUSE_S}  # a new one: other threads may read it


def _as_it_is(error: BaseException) -> Exception:
    assert isinstance(error, Exception)
    return error


class _OtherFile(Exception):
    """The peer has another version."""
