"""The remote, tried in a separate process: this side starts it, and kills it if a server does not answer in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

from growfs.errors import GrowfsError
from growfs.extensions.doctor.check import START_S, Check, Level, Listing, MeasuredDownload, Phase, RemoteToTry
from growfs.syscalls import memfd_create
from growfs.units import format_timespan
from growfs.workers import messages

Found = Check | Listing | MeasuredDownload


def check_remote(probe: RemoteToTry, answer_s: float, on_phase: Callable[[str], None]) -> Generator[Found, None, None]:
    """Try a remote. answer_s: how long a server may take to answer. on_phase: called with each phase, as text."""
    connection, theirs = socket.socketpair()
    with connection, os.fdopen(memfd_create("growfs-errors"), "w+") as errors:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "growfs.extensions.doctor.remote_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        try:
            messages.send(connection, probe)
            yield from _found(connection, answer_s, on_phase)
        except (EOFError, OSError):
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"it exited with {process.wait()}"]
            text = f"the process that tests the remote died: {lines[-1]}"
            yield Check(Level.FAILURE, "remote", text, "check dmesg: it may have run out of memory")
        finally:
            with suppress(ProcessLookupError):  # it is not leading its session yet
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _found(connection: socket.socket, answer_s: float, on_phase: Callable[[str], None]) -> Iterator[Found]:
    phase, busy = Phase("importing the remote's libraries", START_S), None
    deadline = time.monotonic() + answer_s + START_S
    while True:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            message = messages.receive(connection)
        except TimeoutError:
            yield _silent(phase, answer_s, busy)
            return
        if message is None:
            return
        if isinstance(message, GrowfsError):
            busy = message
        elif isinstance(message, Phase):
            phase = message
            deadline = time.monotonic() + answer_s + phase.limit_s
            on_phase(phase.name)
        else:
            yield message


def _silent(phase: Phase, answer_s: float, busy: GrowfsError | None) -> Check:
    if busy:
        return Check.failed("server", busy)
    text = f"no answer for {format_timespan(answer_s)} ({phase.name})"
    return Check(Level.FAILURE, "server", text, "check the network, the proxy and --endpoint-url, or raise --timeout")
