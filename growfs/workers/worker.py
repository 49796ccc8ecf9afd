"""The worker processes: all that lists, fetches and sorts, so that neither the GIL nor a crash of it reaches a reader.

`python -m growfs.workers.worker FD PACE` is the nursery: it imports what the remote needs once, and forks a worker for
each socket that the daemon sends it. It never opens a remote itself: a fork would break its threads and connections.
A worker answers one request at a time, but for files to fetch, of which it takes all that come; it writes to partial/
only, and ends when the daemon hangs up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from growfs.cache.catalog import UNKNOWN_SIZE, Listed
from growfs.cache.diff import Comparison
from growfs.cache.schema import FROZEN, ROOT, directory_path, join, read_only, row_of_connection
from growfs.errors import GrowfsError, NoRoom, RemoteBusy
from growfs.remote import open_remote, preload
from growfs.remote.limits import SharedLimits
from growfs.remote.protocol import Remote, RemoteSpec
from growfs.rotation.draw_order import Candidate, Pass, draw_order
from growfs.rotation.turnover import plan_generation
from growfs.workers import messages, process
from growfs.workers.downloader import Downloader
from growfs.workers.messages import (
    Done,
    Failed,
    FetchFiles,
    ListRemote,
    MakeOrder,
    OrderReady,
    PlanTurnover,
    StillWorking,
)
from growfs.workers.process import lower_priority

GONE_PER_PART = 1000
TELL_EVERY_FILES = 100_000
"""Of those that an order is made of; some seconds, where the machine is busy."""


Answer = Callable[[Any], None]


def main() -> None:
    """Fork a worker for each socket that comes over the first descriptor given; the second is the page of Pace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the one who mounts
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    control, limits = socket.socket(fileno=int(sys.argv[1])), SharedLimits(int(sys.argv[2]))
    spec: RemoteSpec = messages.receive(control)
    with contextlib.suppress(GrowfsError):  # each worker tells it to the one who asks
        preload(spec)
    process.tune_gc()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            serve(spec, limits, socket.socket(fileno=descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])


def serve(spec: RemoteSpec, limits: SharedLimits, line: socket.socket) -> None:
    """Answer requests until the daemon hangs up."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests = _Requests(line)
    sending = threading.Lock()

    def answer(message: Any) -> None:
        try:
            with sending:
                messages.send(line, message)
        except OSError:
            os._exit(0)

    downloader: Downloader | None = None
    while True:
        request = requests.next()
        try:
            if isinstance(request, FetchFiles):
                downloader = downloader or _downloader(spec, limits, answer)
                downloader.take(request)
            else:
                answer(Done(_perform(spec, request, answer)))
        except GrowfsError as error:
            answer(Failed(error))
        except OSError as error:
            answer(Failed(NoRoom(f"{error.strerror or error}: {error.filename or 'the cache directory'}")))
        except Exception as error:  # noqa: BLE001 - a bug of a client library must not read as a crash
            answer(Failed(RemoteBusy(f"unexpected {type(error).__name__}: {error}")))


def _downloader(spec: RemoteSpec, limits: SharedLimits, answer: Answer) -> Downloader:
    lower_priority()
    return Downloader(spec, limits, answer)


class _Requests:
    """Reads requests on a thread of its own, so that a worker in the middle of a fetch ends with the daemon too."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._ready = threading.Semaphore(0)
        self._pending: list[Any] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._pending.append(messages.receive(self._line))
            except (messages.Closed, OSError):
                os._exit(0)
            self._ready.release()

    def next(self) -> Any:
        self._ready.acquire()
        return self._pending.pop(0)


def _perform(spec: RemoteSpec, request: Any, answer: Answer) -> Any:
    if isinstance(request, ListRemote):
        if request.extent is not None and spec.producer:
            spec = replace(spec, producer=replace(spec.producer, count=request.extent))
        return _list(open_remote(spec), request, answer)
    if isinstance(request, MakeOrder):
        return _order(request, answer)
    assert isinstance(request, PlanTurnover)
    return plan_generation(request.catalog, request.number, request.asked)


def _list(remote: Remote, request: ListRemote, answer: Answer) -> int:
    connection = read_only(request.catalog)
    comparison = Comparison(connection)
    files = 0
    for page in remote.pages():
        new, changed = comparison.compare(page.files)
        files += len(page.files)
        answer(Listed(request.listing, new=new, changed=changed, skipped=page.skipped + comparison.twice))
    if files:
        gone = list(comparison.gone())
        for start in range(0, len(gone), GONE_PER_PART):
            answer(Listed(request.listing, gone=gone[start : start + GONE_PER_PART]))
        if comparison.late:
            answer(Listed(request.listing, new=comparison.late))
    connection.close()
    return files


def _order(request: MakeOrder, answer: Answer) -> OrderReady:
    connection = read_only(request.catalog)
    order = draw_order(_told(candidates(connection, request.asked), answer), request.asked)
    connection.close()
    with request.target.open("wb") as file:
        for part in (order.frozen, order.seeds, order.rest):
            file.write(memoryview(array("q", part)))
    return OrderReady(len(order.frozen), len(order.seeds), order.files, order.bytes)


def candidates(connection: sqlite3.Connection, asked: Pass) -> Iterator[Candidate]:
    """Every file of the catalog, as a pass sees it. One of unknown size counts as those that are known, on average."""
    (mean,) = connection.execute("SELECT avg(size) FROM node WHERE is_dir = 0").fetchone()
    unknown = min(UNKNOWN_SIZE if mean is None else int(mean), asked.size_max or UNKNOWN_SIZE)
    known = {ROOT: ""}
    row_of = row_of_connection(connection)
    for id, parent, name, size, drawn, pinned, resident in connection.execute(
        "SELECT n.id, n.parent, n.name, n.size, n.drawn, n.pinned, r.id FROM node n LEFT JOIN resident r USING (id)"
        " WHERE n.is_dir = 0"
    ):
        path = join(directory_path(row_of, parent, known), name)
        bytes = unknown if size is None else size
        frozen, done, late = bool(pinned & FROZEN), drawn >= asked.number, drawn == -asked.number
        yield Candidate(id, parent, path, bytes, resident is not None, done, frozen, late)


def _told(files: Iterable[Candidate], answer: Answer) -> Iterator[Candidate]:
    """Say now and then that the work goes on: ten million files take minutes, and who is silent is given up."""
    for number, file in enumerate(files):
        if number % TELL_EVERY_FILES == 0:
            answer(StillWorking())
        yield file


if __name__ == "__main__":
    main()
