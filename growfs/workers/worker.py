"""The fork server and the workers that it forks. Workers list, fetch and sort, so that the daemon does not have to.

So neither the GIL nor a crash in a client library affects a reader.

`python -m growfs.workers.worker SOCKET LIMITS SCHEME` is the fork server: it imports what the remote needs once, and
forks a worker for each socket that the daemon sends to it. It never opens a remote, because a fork would break the
remote's threads and connections.

A worker handles one request after the other; only requests to fetch files overlap. It writes to partial/ only, and ends
when the daemon closes the connection.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from growfs import disk
from growfs.cache.catalog import UNKNOWN_SIZE, ListingDiff
from growfs.cache.listing_diff import Comparison
from growfs.cache.schema import FROZEN, ROOT, directory_path, join, read_only, row_of_connection
from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied, RemoteError
from growfs.remote import open_remote, preload, preload_transfer
from growfs.remote.protocol import ByteRange, FetchTask, Remote, RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.rotation.draw_order import Candidate, Pass, draw_order
from growfs.rotation.turnover import plan_generation
from growfs.workers import messages, process
from growfs.workers.downloader import Downloader
from growfs.workers.heartbeat import ListingHeartbeat
from growfs.workers.messages import (
    Done,
    Failed,
    FetchFiles,
    ListRemote,
    MakeOrder,
    OrderReady,
    PlanTurnover,
    Probe,
    ServePeers,
    StillWorking,
)
from growfs.workers.process import lower_priority

GONE_PER_MESSAGE = 1000
HEARTBEAT_FILES = 100_000
"""While a worker computes an order, it sends a heartbeat after this many files: every few seconds on a busy machine."""
Send = Callable[[Any], None]


def main() -> None:
    """Run the fork server.

    Arguments: the descriptor of the control socket, and the scheme of the remote's URL. The socket brings the spec, the
    descriptors for output and of the SharedLimits, and then one for each worker.
    """
    gc.disable()  # while modules are imported: a tenth of the time; tune_gc enables it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the daemon
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))  # two for each transfer
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(GrowfsError):
        preload(RemoteSpec(f"{sys.argv[2]}://host/"))
    try:
        spec: RemoteSpec = messages.receive(control)
        _, (output, limits_fd), _, _ = socket.recv_fds(control, 1, 2)
    except (EOFError, OSError, ValueError):  # the mount failed before its workers were needed
        return
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    limits = SharedLimits(limits_fd)
    with contextlib.suppress(GrowfsError):  # a worker reports it when it opens the remote
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
        preload_transfer()  # after the first fork, as the listing does without


def serve(spec: RemoteSpec, limits: SharedLimits, connection: socket.socket) -> None:
    """Handle requests until the daemon closes the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        try:
            with lock:
                messages.send(connection, message)
        except OSError:
            os._exit(0)

    downloader: Downloader | None = None
    in_background = False
    while True:
        request = requests.get()
        try:
            if isinstance(request, FetchFiles):
                if request.in_background and not in_background:
                    in_background = True
                    lower_priority()
                downloader = downloader or Downloader(spec, limits, send)
                downloader.submit(request)
            elif isinstance(request, ServePeers):
                _serve_peers(request, send, requests.get)
            else:
                send(Done(_handle(spec, request, send)))
        except GrowfsError as error:
            send(Failed(error))
        except OSError as error:
            send(Failed(disk.cannot_write(error)))
        except Exception as error:  # noqa: BLE001 - a bug in a client library must not look like a crash
            send(Failed(RemoteBusy(f"unexpected {type(error).__name__}: {error}")))


def _serve_peers(request: ServePeers, send: Send, receive: Callable[[], Any]) -> None:
    from growfs.workers.peer_server import PeerServer  # few mounts have peers

    PeerServer(request, send).run(receive)  # with the usual priority: other nodes wait for it


def _receive(connection: socket.socket, requests: queue.SimpleQueue[Any]) -> None:
    """Put requests in the queue. End this worker when the daemon is gone, even in the middle of a request."""
    try:
        while True:
            requests.put(messages.receive(connection))
    except (EOFError, OSError):
        os._exit(0)


def _handle(spec: RemoteSpec, request: Any, send: Send) -> Any:
    if isinstance(request, ListRemote):
        if request.extent is not None and spec.producer:
            spec = replace(spec, producer=replace(spec.producer, count=request.extent))
        return _list(open_remote(spec), request, send)
    if isinstance(request, MakeOrder):
        return _make_order(request, send)
    if isinstance(request, Probe):
        return _probe(open_remote(spec, repeats=request.repeats), request, makes_files=spec.producer is not None)
    assert isinstance(request, PlanTurnover)
    return plan_generation(request.catalog, request.number, request.input)


def _list(remote: Remote, request: ListRemote, send: Send) -> int:
    heartbeat = ListingHeartbeat(send)
    connection = read_only(request.catalog)
    comparison = Comparison(connection)
    files = 0
    for page in remote.pages():
        heartbeat.heard_at = time.monotonic()
        new, changed = comparison.compare(page.files)
        files += len(page.files)
        send(ListingDiff(request.listing, new=new, changed=changed, skipped=page.skipped + comparison.duplicates))
    if files:
        gone = list(comparison.gone())
        for start in range(0, len(gone), GONE_PER_MESSAGE):
            send(ListingDiff(request.listing, gone=gone[start : start + GONE_PER_MESSAGE]))
        if comparison.late:
            send(ListingDiff(request.listing, new=comparison.late))
    connection.close()
    return files


def _probe(remote: Remote, request: Probe, makes_files: bool) -> None:
    """makes_files: a producer does, so that its source is requested and nothing is made."""
    denied: GrowfsError | None = None
    try:
        for file in request.files:
            try:
                if makes_files or file.size is None:
                    remote.stat(file.path, file.version)
                else:  # by GET: a response to HEAD has no body, which says why access is denied
                    byte_range = ByteRange(0, 1) if file.size else None
                    remote.fetch(FetchTask(file, request.target, byte_range=byte_range))
                return
            except RemoteBusy:
                raise
            except RemoteDenied as error:
                denied = denied or error
            except RemoteError:  # that is an answer, too
                return
    finally:
        with contextlib.suppress(OSError):
            request.target.unlink()
    if denied:
        raise denied


def _make_order(request: MakeOrder, send: Send) -> OrderReady:
    connection = read_only(request.catalog)
    order = draw_order(_with_heartbeats(candidates(connection, request.pass_), send), request.pass_)
    connection.close()
    with request.target.open("wb") as file:
        for part in (order.frozen, order.seeds, order.rest):
            file.write(memoryview(array("q", part)))
    return OrderReady(
        order.frozen_ids,
        order.seed_ids,
        order.seed_bytes,
        order.files,
        order.bytes,
        order.unmatched,
        order.has_groups,
    )


def candidates(connection: sqlite3.Connection, pass_: Pass) -> Iterator[Candidate]:
    """Every file of the catalog, for a pass. A file of unknown size counts with the mean of the known sizes."""
    (mean,) = connection.execute("SELECT avg(size) FROM node WHERE is_dir = 0").fetchone()
    unknown = min(UNKNOWN_SIZE if mean is None else int(mean), pass_.size_max or UNKNOWN_SIZE)
    known = {ROOT: ""}
    row_of = row_of_connection(connection)
    for id, parent, name, size, drawn, pinned, resident in connection.execute(
        "SELECT n.id, n.parent, n.name, n.size, n.drawn, n.pinned, r.id FROM node n LEFT JOIN resident r USING (id)"
        " WHERE n.is_dir = 0"
    ):
        path = join(directory_path(row_of, parent, known), name)
        bytes = unknown if size is None else size
        frozen, done, late = bool(pinned & FROZEN), drawn >= pass_.number, drawn == -pass_.number
        yield Candidate(id, parent, path, bytes, resident is not None, done, frozen, late)


def _with_heartbeats(files: Iterable[Candidate], send: Send) -> Iterator[Candidate]:
    """Send heartbeats along the way: ten million files take minutes, and the daemon gives up a silent worker."""
    for number, file in enumerate(files):
        if number % HEARTBEAT_FILES == 0:
            send(StillWorking())
        yield file


if __name__ == "__main__":
    main()
