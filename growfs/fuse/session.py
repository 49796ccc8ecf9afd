"""A session with the kernel's FUSE: the device, the handshake, the loop that reads requests, and notifications.

Owns /dev/fuse and the thread that notifies. What a request means is its caller's business.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

import trio

from growfs.errors import GrowfsError
from growfs.fuse import protocol, structs
from growfs.fuse.latency import Wakefulness
from growfs.workers.process import RealtimeBoost

log = logging.getLogger(__name__)

SPIN_TRIES = 50
"""How often the next request is looked for before the loop sleeps: under 0.1 ms. Waking up costs more than that."""
WORTH_MAX, IN_VAIN = 16, 8
"""It is looked for as long as that pays, as where cores are few, who reads may wait for the very core that looks. That
depends on what was asked last: Python's open() asks twice at once, and what it reads then takes its time. So, for each
kind of request, one that was found after it counts 1, of at most WORTH_MAX, and one that did not come takes IN_VAIN.
With nothing left, as many have to come soon after the loop slept before it looks again."""
SOON_S = 1e-4
TURN_S = 0.01
"""A reader that opens one file after the other is waited for without trio, whose way to sleep takes longer than most
requests. Other tasks that have something to do end this nap; those that wait for a time have a turn after so long."""
FAIR_REQUESTS = 256
"""After so many requests in a row the other tasks of the daemon have a turn."""
HANDSHAKE_S = 10.0
NOTIFIER_POLL_S = 0.01
BACKGROUND_MAX = 64
"""READs ahead that the kernel sends at one time."""
FLAGS = (
    protocol.InitFlag.ASYNC_READ
    | protocol.InitFlag.DO_READDIRPLUS
    | protocol.InitFlag.PARALLEL_DIROPS
    | protocol.InitFlag.ABORT_ERROR
    | protocol.InitFlag.MAX_PAGES
    | protocol.InitFlag.INIT_EXT
    | protocol.InitFlag.PASSTHROUGH
)
"""READDIRPLUS always, and not only where the kernel guesses that attributes are wanted: it stops after the first page
of a directory, and each file of the others then costs a LOOKUP before it can be opened."""


class Others(trio.abc.Instrument):
    """Tells whether other tasks than the one that serves have something to do, none of which comes before readers.

    turns: how many it has to leave to them. A task that became runnable has its step in the next one, but perhaps after
    the one that serves. precedence: of the thread, while it sleeps and answers.
    """

    def __init__(self) -> None:
        self.turns = 2
        self.precedence = RealtimeBoost()
        self._serving = trio.lowlevel.current_task()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Called by trio."""
        if task is not self._serving:
            self.turns = 2
            self.precedence.take(False)

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio."""
        if timeout:
            self.precedence.take(True)

    @staticmethod
    def descriptors() -> Iterator[int]:
        """Those that become readable when something happens that a task waits for: trio's epoll is among them."""
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that lists
                if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                    yield int(name)


class Session:
    """Owns the device. Replies may be sent from the thread that serves only."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._deferred: deque[Callable[[], object]] = deque()
        self.wakefulness = Wakefulness()
        self._notices: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._notifier = threading.Thread(target=self._notify, name="notifier", daemon=True)

    def shake_hands(self) -> None:
        """Answer INIT. Raises wire.TooOld or GrowfsError; call it once the file system is mounted or created."""
        ready = select.poll()
        ready.register(self.fd, select.POLLIN)
        if not ready.poll(HANDSHAKE_S * 1000):
            raise GrowfsError("the kernel's FUSE does not begin the session; look at its log (dmesg)")
        request = protocol.request(os.read(self.fd, protocol.MIN_READ_BUFFER))
        if request.opcode != protocol.Opcode.INIT:
            raise GrowfsError(f"the kernel's FUSE begins the session with request {request.opcode}")
        try:
            answer = protocol.negotiate(structs.InitIn.unpack(request.message, protocol.HEADER), FLAGS, BACKGROUND_MAX)
        except protocol.TooOld:
            self.send(protocol.refusal(request.unique, errno.EPROTO))
            raise
        self.send(protocol.reply(request.unique, answer.pack()))

    async def serve(self, answer: Callable[[bytes], int], spare_time: Callable[[], bool]) -> None:
        """Give each message to answer, which says of what kind it was, until the file system is taken off.

        spare_time: called when there is nothing else to do; does a little, and says whether there was anything to do.
        """
        self._notifier.start()
        others = Others()
        trio.lowlevel.add_instrument(others)
        try:
            await self._loop(answer, spare_time, others)
        finally:
            trio.lowlevel.remove_instrument(others)
            others.precedence.take(False)

    async def _loop(self, answer: Callable[[bytes], int], spare_time: Callable[[], bool], others: Others) -> None:
        fd, read, size, note = self.fd, os.read, protocol.MIN_READ_BUFFER, self.wakefulness.note
        nap, only_fd = select.poll(), [(fd, select.POLLIN)]
        for waited_for in (fd, *others.descriptors()):
            nap.register(waited_for, select.POLLIN)
        served = 0
        worth: Counter[int] = Counter()
        last = 0
        turn_at = time.monotonic()
        while True:
            tries = most = SPIN_TRIES if worth[last] > 0 else 1
            while tries:
                try:
                    message = read(fd, size)
                except BlockingIOError:
                    if self._deferred:
                        self._deferred.popleft()()
                    elif spare_time():
                        served += 1
                        if served % FAIR_REQUESTS == 0:
                            others.precedence.take(False)
                            await trio.lowlevel.checkpoint()
                    else:
                        tries -= 1
                    continue
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.EINTR):  # that request was given up while it was read
                        continue
                    if error.errno not in (errno.ENODEV, errno.ECONNABORTED):
                        raise
                    return
                if tries < most:
                    worth[last] = min(worth[last] + 1, WORTH_MAX)
                last = answer(message)
                note()
                tries = most = SPIN_TRIES if worth[last] > 0 else 1
                served += 1
                if served % FAIR_REQUESTS == 0:
                    while self._deferred:  # others may want to know whether a file is open
                        self._deferred.popleft()()
                    others.precedence.take(False)
                    await trio.lowlevel.checkpoint()
            if most == SPIN_TRIES:
                worth[last] -= IN_VAIN
            slept_at = time.monotonic()
            if others.turns or slept_at - turn_at > TURN_S:
                others.turns = max(0, others.turns - 1)
                await trio.lowlevel.checkpoint()
                turn_at = time.monotonic()
                continue
            others.precedence.take(True)
            if nap.poll(TURN_S * 1000) == only_fd:
                worth[last] += worth[last] <= 0 and time.monotonic() - slept_at < SOON_S
            else:
                await trio.lowlevel.wait_readable(fd)
                turn_at = time.monotonic()

    def defer(self, work: Callable[[], object]) -> None:
        """Have work done when no request waits, and before any other task runs."""
        self._deferred.append(work)

    def send(self, message: bytes, content: memoryview | None = None) -> bool:
        """Answer a request; False where nobody waits for the answer any more.

        content: what follows the message, for what is too large to be copied.
        """
        try:
            if content is None:
                os.write(self.fd, message)
            else:
                os.writev(self.fd, (message, content))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED):
                raise
            return False
        return True

    def notify(self, message: bytes) -> None:
        """Have a notification written. The kernel may hold it up until requests are answered: so not on this thread."""
        self._notices.put(message)

    def _notify(self) -> None:
        while (message := self._notices.get()) is not None:
            try:
                os.write(self.fd, message)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF, errno.ECONNABORTED):
                    return
                if error.errno != errno.ENOENT:  # ENOENT: the kernel does not know that name
                    log.warning("the kernel refuses a notification: %s", error)

    def close(self) -> None:
        """Let go of the device; the file system is detached or aborted by then."""
        self._notices.put(None)
        while self._notifier.is_alive():  # its last notice may wait for a look-up, which waits for an answer
            self._refuse_all()
            self._notifier.join(NOTIFIER_POLL_S)
        os.close(self.fd)

    def _refuse_all(self) -> None:
        try:
            while True:
                request = protocol.request(os.read(self.fd, protocol.MIN_READ_BUFFER))
                self.send(protocol.refusal(request.unique, errno.EIO))
        except (OSError, structs.Malformed):  # EAGAIN: there is none; ENODEV: and there will be none
            return
