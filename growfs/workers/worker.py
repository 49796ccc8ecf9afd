"""The fork server and the workers that it forks. Workers list, fetch and sort instead of the daemon.

Thus neither the GIL nor a crash in a client library affects a reader.

`python -m growfs.workers.worker SOCKET SCHEME` is the fork server: it imports the remote's modules once, and forks a
worker for each socket that the daemon sends. It never opens a remote, because a fork would break the remote's threads
and connections.

A worker handles one request after the other; only requests to fetch files overlap. It writes only to partial/, and ends
when the daemon closes the connection.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from typing import Any

from growfs import disk, own_code
from growfs.cache.cache_folder import read_only
from growfs.cache.listing_diff import Comparison, ListingDiff
from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied, RemoteError, unexpected
from growfs.extensions import MOUNT
from growfs.remote import is_within, open_remote, preload
from growfs.remote.interface import ByteRange, FetchTask, Remote, RemoteFile, RemoteSpec
from growfs.remote.names import redact
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.retries import Retries
from growfs.workers import messages, process
from growfs.workers.downloader import Downloader
from growfs.workers.fork_server import GUARD
from growfs.workers.guard import guard
from growfs.workers.messages import (
    COMPUTE_S_MAX,
    Compute,
    Done,
    Failed,
    FetchFiles,
    ListRemote,
    Probe,
    Send,
    Serve,
    ServerSilent,
    StillWorking,
)
from growfs.workers.process import lower_priority


def main() -> None:
    """Run the fork server.

    Arguments: the descriptor of the control socket, and the scheme of the remote's URL. The socket delivers the spec,
    the descriptors for output and the SharedLimits, and then one descriptor for each worker, and one for `guard`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the daemon
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))  # two for each transfer
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(GrowfsError):
        preload(RemoteSpec(f"{sys.argv[2]}://host/"))
    if not select.select([control], [], [], 0)[0]:  # the daemon takes longer to import its own modules
        preload_later()
    try:
        spec: RemoteSpec = messages.receive(control)
        _, (output, limits_fd), _, _ = socket.recv_fds(control, 1, 2)
    except (EOFError, OSError, ValueError):  # the mount failed before its workers were needed
        return
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    limits = SharedLimits(limits_fd)
    with contextlib.suppress(GrowfsError):  # a worker reports the error when it opens the remote
        preload(spec)
    process.tune_gc()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if message == GUARD:
            guard(descriptors[0])
        elif os.fork() == 0:
            control.close()
            serve(spec, limits, socket.socket(fileno=descriptors[0]))
            os._exit(0)
        else:
            os.close(descriptors[0])
            preload_later()


def preload_later() -> None:
    """Import modules that the first listing does not need, for the workers that are forked after it, and keep the rest.

    That takes 80 ms, and the first file waits for it unless there is time before the listing.
    """
    import awscrt.checksums  # noqa: F401 - a digest is computed for each file

    import growfs.rotation.order_file
    import growfs.rotation.turnover  # noqa: F401

    for name in (f"{extension}.{module}" for extension, modules in MOUNT.items() for module in modules):
        import_module(f"growfs.extensions.{name}")
    own_code.keep()


def serve(spec: RemoteSpec, limits: SharedLimits, connection: socket.socket) -> None:
    """Handle requests until the daemon closes the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
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
        body = requests.get()
        try:
            request = messages.unpack(body)
            if isinstance(request, FetchFiles):
                if request.in_background and not in_background:
                    in_background = True
                    lower_priority()
                downloader = downloader or Downloader(spec, limits, send)
                downloader.submit(request)
            elif isinstance(request, Serve):
                request.function(send, lambda: messages.unpack(requests.get()))  # at normal priority: others wait
            else:
                send(Done(_handle(spec, request, send)))
        except GrowfsError as error:
            send(Failed(error))
        except OSError as error:
            send(Failed(disk.cannot_write(error)))
        except Exception as error:  # noqa: BLE001 - a bug in a client library must not look like a crash
            send(Failed(unexpected(error)))


def _receive(connection: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Put requests in the queue. End this worker when the daemon is gone, even in the middle of a request."""
    try:
        while True:
            requests.put(messages.receive_body(connection))
    except (EOFError, OSError):
        os._exit(0)


def _handle(spec: RemoteSpec, request: Any, send: Send) -> Any:
    if isinstance(request, ListRemote):
        heartbeat = ListingHeartbeat(send)
        remote = open_remote(replace(spec, extent=request.extent), retries=Retries(on_failure=heartbeat.note_failure))
        return _list(remote, spec, request, send, heartbeat)
    if isinstance(request, Probe):
        # Its few tries end before files that are under way fail.
        remote = open_remote(spec, retries=Retries(tries_max=3) if request.repeats else None)
        return _probe(remote, request, spec.traits.is_computed)
    assert isinstance(request, Compute)
    return _compute(request, send)


def _compute(request: Compute, send: Send) -> Any:
    """Call the function, but let the kernel kill this process if it computes for too long without a beat.

    A match of a regular expression (--group) can take hours, and meanwhile no thread could notice that the daemon has
    given up on this worker, or is gone.
    """

    def beat() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, COMPUTE_S_MAX)
        send(StillWorking())

    beat()
    try:
        return request.function(beat)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class ListingHeartbeat:
    """Reports what this process does while it lists, from its own thread, so that the daemon does not give up on it.

    It may be computing (the library may read a million names before it returns a page), or waiting for the server or
    the next attempt.
    """

    def __init__(self, send: Send) -> None:
        self._page_at = self._tried_at = time.monotonic()
        self._why: RemoteError | None = None
        threading.Thread(target=self._run, args=(send,), daemon=True).start()

    def note_page(self) -> None:
        """Note that a page has arrived."""
        self._page_at = self._tried_at = time.monotonic()
        self._why = None

    def note_failure(self, error: RemoteError) -> None:
        """Note that a page has to be requested again."""
        self._tried_at = time.monotonic()
        self._why = error

    def _run(self, send: Send) -> None:
        computed_s = time.process_time()
        while True:
            time.sleep(messages.HEARTBEAT_S)
            now, why = time.monotonic(), self._why
            if why is None and time.process_time() - computed_s > 0.005:  # it reads names; waiting takes less CPU time
                send(StillWorking())
            elif now - self._page_at >= messages.HEARTBEAT_S and now - self._tried_at < 960.0:  # otherwise it hangs
                send(ServerSilent(now - self._page_at, why))
            computed_s = time.process_time()


def _list(remote: Remote, spec: RemoteSpec, request: ListRemote, send: Send, heartbeat: ListingHeartbeat) -> int:
    connection = read_only(request.catalog)
    comparison = Comparison(connection)
    files = 0
    unread: set[str] = set()
    for page in remote.pages():
        heartbeat.note_page()
        new, changed = comparison.compare(page.files)
        files += len(page.files)
        unread |= {skip.path for skip in page.skipped if skip.unread}
        send(ListingDiff(request.listing, new=new, changed=changed, skipped=page.skipped + comparison.duplicates))
    if files:
        gone = list(comparison.gone(is_within(spec, unread)) if unread else comparison.gone())
        if gone:
            # As many as S3 lists in a page. If one in a hundred of those that a listing lacks is still there, 1000 of
            # them do not show it once in 20,000 times.
            _require_gone(remote, redact(spec.url), len(gone), comparison.to_ask(gone, 1000), heartbeat)
        for start in range(0, len(gone), 1000):
            send(ListingDiff(request.listing, gone=gone[start : start + 1000]))
        if comparison.late:
            send(ListingDiff(request.listing, new=comparison.late))
    connection.close()
    return files


def _require_gone(remote: Remote, url: str, gone: int, asked: list[RemoteFile], heartbeat: ListingHeartbeat) -> None:
    """Ask the remote by name for files that its listing lacks. Raises RemoteError if it still has one of them.

    url: of the remote, for the message. gone: how many files the listing lacks, of which `asked` are some.
    """
    pool = ThreadPoolExecutor(16, "ask")
    try:
        for file, is_there in zip(asked, pool.map(remote.still_has, asked), strict=True):
            heartbeat.note_page()
            if is_there:
                raise RemoteError(
                    f"{url}: its listing lacks {gone:,} files, but {file.path}, one of them, is still there; growfs"
                    " keeps all of them, and lists again; if this persists, check the server"
                )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _probe(remote: Remote, request: Probe, is_computed: bool) -> None:
    """Answer a Probe. is_computed: request the source of a file, and compute nothing."""
    denied: GrowfsError | None = None
    try:
        for file in request.files:
            try:
                if is_computed or file.size is None:
                    remote.stat(file.path, file.version)
                else:  # by GET: a response to HEAD has no body, which gives the reason if access is denied
                    byte_range = ByteRange(0, 1) if file.size else None
                    remote.fetch(FetchTask(file, request.target, byte_range=byte_range))
                return
            except RemoteBusy:
                raise
            except RemoteDenied as error:
                denied = denied or error
            except RemoteError:  # that is also an answer
                return
    finally:
        with contextlib.suppress(OSError):
            request.target.unlink()
    if denied:
        raise denied


if __name__ == "__main__":
    main()
