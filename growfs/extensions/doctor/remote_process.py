"""A process that tries the remote as a mount's worker would: `python -m growfs.extensions.doctor.remote_process FD`.

A call that waits for a server cannot be interrupted within a process, so this is a separate one, which can be killed.
It gets a `RemoteToTry`, and sends a `Phase` before each step that may take long, then each `Check`, `Listing` and
`MeasuredDownload`.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from growfs.errors import GrowfsError
from growfs.extensions.doctor.check import (
    START_S,
    Check,
    Level,
    Listing,
    MeasuredDownload,
    Phase,
    RemoteToTry,
    ok,
    warning,
)
from growfs.remote import open_remote
from growfs.remote.client_choice import LEFT_MAX
from growfs.remote.groups import FirstNames, suggestion
from growfs.remote.http.connection import Headers
from growfs.remote.http.proxy import proxy_for
from growfs.remote.interface import START_S_MAX, Maker, RemoteFile, RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.retries import Retries
from growfs.remote.stores.base import StoreRemote
from growfs.remote.stores.registry import open_store
from growfs.scheduler.stream_count import STREAMS_FIRST
from growfs.units import format_size, format_timespan
from growfs.workers import messages
from growfs.workers.downloader import Downloader
from growfs.workers.messages import FetchFailed, FetchFiles, FetchProgress, FetchRequest

SAMPLE_FILES = 4096

Send = Callable[[Any], None]


def main() -> None:
    """Serve the process at the other end of the given socket. Runs in its own session, with all that it starts."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    lock = threading.Lock()
    probe: RemoteToTry = messages.receive(connection)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()

    def send(message: Any) -> None:
        with lock:
            messages.send(connection, message)

    _run(probe, send)
    send(None)
    signal.pause()  # until killed: threads may still be waiting for a server


def _end_with(connection: socket.socket) -> None:
    """End this session when the other process is gone."""
    connection.recv(1)
    os.killpg(0, signal.SIGKILL)


def _run(probe: RemoteToTry, send: Send) -> None:
    spec = probe.spec
    name = "producer" if spec.maker else "remote"
    try:
        if spec.maker:
            send(Phase("importing the producer", START_S_MAX))
            send(_check_maker(spec.maker, spec))
        if spec.traits.has_store:
            name = "remote"
            send(Phase("opening the remote"))
            if not _reach(open_store(spec), send):
                return
        name = "listing"
        send(Phase("listing the remote", probe.list_s))
        sample = _list(probe, send)
        if sample and probe.download_s:
            name = "download"
            send(Phase("downloading", START_S + 2 * probe.download_s))
            _download(probe, sample, send)
    except GrowfsError as error:
        send(Check.failed(name, error))


def _check_maker(maker: Maker, spec: RemoteSpec) -> Check:
    text = f"{maker.function} can be imported"
    if maker.check(spec):
        return ok("producer", f"{text}; the kernel lets it write only to its own files (Landlock)")
    return warning("producer", f"{text}; nothing keeps it from writing elsewhere", "use a kernel with Landlock")


def _reach(store: StoreRemote, send: Send) -> bool:
    """Whether the server can be reached. Sends a Check for each step of the way."""
    if store.client.library:
        send(ok("client", f"{store.client.name} ({store.client.reason})"))
    send(Phase("looking for credentials", START_S))
    access = store.access()
    if access is None:
        send(ok("server", "none: a local folder"))
        return True
    host = urlsplit(access.server).hostname or ""
    if host and (proxy := proxy_for(access.server)):
        send(ok("server", f"{host}, through the proxy {proxy}"))
    elif host:
        send(Phase(f"resolving {host}"))
        check = _resolve(host, urlsplit(access.server).port or 443)
        send(check)
        if check.level is Level.FAILURE:
            return False
    if not access.credentials:
        send(Check(Level.FAILURE, "credentials", "none found", store.login))
        return False
    send(ok("credentials", access.credentials))
    headers: Headers = {}
    if host:
        send(Phase(f"waiting for {host}"))
        headers = store.head(f"{access.server}/{access.path}")
    if access.region:
        send(_compare_regions(access.region, store.region_in(headers)))
    if "date" in headers:
        send(_compare_clocks(headers["date"]))
    return True


def _compare_regions(region: str, actual: str | None) -> Check:
    if actual in (None, region):
        return ok("region", region)
    text = f"the bucket is in {actual}, but requests are signed for {region} until the store refuses the first"
    return warning("region", text, f"set AWS_DEFAULT_REGION={actual}")


def _resolve(host: str, port: int) -> Check:
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{host}: no address ({error.strerror or error})"
        return Check(
            Level.FAILURE, "server", text, "check the URL, --endpoint-url and the name servers (/etc/resolv.conf)"
        )
    addresses = sorted({str(address[0]) for *_, address in found})
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    if addresses == [host]:
        return ok("server", host)
    return ok("server", f"{host} is {addresses[0]}{more}, after {1000 * (time.monotonic() - began):.0f} ms")


def _compare_clocks(date: str) -> Check:
    try:
        ahead_s = time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return ok("clock", f"not compared: the server sends no readable date ({date!r})")
    if abs(ahead_s) < 60.0:
        return ok("clock", "agrees with the server's within a minute")
    text = f"{format_timespan(abs(round(ahead_s)), max_units=2)} {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    refused = ", and S3 refuses more than 15 minutes" if abs(ahead_s) > 15 * 60 else ""  # RequestTimeTooSkewed
    return warning("clock", text + refused, "set it: timedatectl set-ntp true, or chronyc makestep")


def _list(probe: RemoteToTry, send: Send) -> list[RemoteFile]:
    """List for a while. Returns a random sample of the files."""
    spec = replace(probe.spec, extent=1000)
    sample: list[RemoteFile] = []
    first_names = FirstNames()
    choice = random.Random(0)
    files = unsized = size = smallest = skipped = 0
    whole, first_s, began = True, 0.0, time.monotonic()
    for page in open_remote(spec, retries=Retries(on_failure=send)).pages():
        if files and time.monotonic() > began + first_s + probe.list_s:
            whole = False
            break
        skipped += len(page.skipped)
        for file in page.files:
            files += 1
            first_names.add(file.path)
            if file.size is None:
                unsized += 1
            else:
                size += file.size
                smallest = min(smallest, file.size) if files - unsized > 1 else file.size
            if len(sample) < SAMPLE_FILES:
                sample.append(file)
            elif (place := choice.randrange(files)) < SAMPLE_FILES:  # gives each file the same chance
                sample[place] = file
        if files and not first_s:
            first_s = time.monotonic() - began
    seconds = time.monotonic() - began
    if not files:
        send(Check(Level.FAILURE, "listing", "there are no files", "check the URL, --include and --exclude"))
        return []
    whole = whole and not spec.traits.is_endless
    send(Listing(files, unsized, size, smallest, seconds, first_s, whole, suggestion(first_names)))
    if skipped:
        send(warning("names", f"{skipped:,} names are skipped", "growfs status will say why; see SEMANTICS.md"))
    choice.shuffle(sample)
    return sample


def _download(probe: RemoteToTry, sample: list[RemoteFile], send: Send) -> None:
    """Fetch one file alone, and then many at a time."""
    requests = list(_requests(probe, sample))
    if not requests:
        smallest = min(file.size or 0 for file in sample)
        text = f"not measured: the smallest file is {format_size(smallest)}, and only {format_size(probe.room)} is free"
        send(warning("download", text, "see --cache-size, --min-free and --cache-dir"))
        return
    limits = SharedLimits()
    limits.set(STREAMS_FIRST, 1, probe.bytes_per_s)
    progress = _Progress(send)
    downloader = Downloader(probe.spec, limits, progress.note)
    began = time.monotonic()
    downloader.submit(FetchFiles(requests[:1], [], False))
    progress.wait_for_bytes(START_S)
    progress.wait(1, probe.download_s)
    first_s = time.monotonic() - began if progress.finished else None
    alone = 0
    if first_s is not None and requests[1:]:
        alone, progress.received, began = progress.finished, 0, time.monotonic()
        downloader.submit(FetchFiles(requests[1:], [], False))
        progress.wait(len(requests), probe.download_s)
    if progress.failed and not progress.finished:
        raise progress.failed[0]
    if progress.failed:
        text = f"{len(progress.failed)} of {len(progress.failed) + progress.finished} files: {progress.failed[0]}"
        send(warning("files", text, "such files are tried again in each pass"))
    if progress.gave_up:
        text = f"growfs could not request the last {LEFT_MAX} files; only the store's library could: {progress.gave_up}"
        send(warning("client", text, "mount with --client library, which avoids the failing requests"))
    send(MeasuredDownload(progress.finished - alone, progress.received, time.monotonic() - began, first_s))


class _Progress:
    """Collects a Downloader's reports, on its own thread."""

    def __init__(self, send: Send) -> None:
        self.received = self.finished = 0
        self.failed: list[GrowfsError] = []
        self.gave_up = ""
        self._send = send
        self._changed = threading.Condition()

    def note(self, report: FetchProgress) -> None:
        if report.failure:
            self._send(report.failure)
        with self._changed:
            self.received += report.bytes
            self.gave_up = report.gave_up
            for _, result in report.files:
                if isinstance(result, FetchFailed):
                    self.failed.append(result.error)
                else:
                    self.finished += 1
            self._changed.notify()

    def wait_for_bytes(self, timeout_s: float) -> None:
        """Wait until the first bytes have arrived, until a file has ended, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self.received or self.finished or self.failed, timeout_s)

    def wait(self, files: int, timeout_s: float) -> None:
        """Wait until that many files have ended, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self.finished + len(self.failed) >= files, timeout_s)


def _requests(probe: RemoteToTry, sample: list[RemoteFile]) -> Iterator[FetchRequest]:
    """Requests for as many files as there is room for."""
    left = probe.room
    for id, file in enumerate(sample):
        if (file.size or 0) <= left:
            left -= file.size or 0
            yield FetchRequest(id, file, f"{probe.folder}/{id}", max(left, file.size or 0), urgent=False, number=id)


if __name__ == "__main__":
    main()
