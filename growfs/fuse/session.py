"""A session with the kernel's FUSE: the device, the handshake, the loop that reads requests, and notifications.

Owns /dev/fuse and the thread that writes notifications. The caller decides what a request means.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import queue
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import trio

from growfs.errors import GrowfsError
from growfs.fuse import protocol, replies
from growfs.fuse.latency import CpuLatencyRequest, RequestWaiter

log = logging.getLogger(__name__)

BATCH_REQUESTS_MAX = 256
"""After this many requests in a row, the daemon's other tasks may run."""
FLAGS = (
    protocol.InitFlag.ASYNC_READ
    | protocol.InitFlag.DO_READDIRPLUS
    | protocol.InitFlag.PARALLEL_DIROPS
    | protocol.InitFlag.ABORT_ERROR
    | protocol.InitFlag.MAX_PAGES
    | protocol.InitFlag.INIT_EXT
    | protocol.InitFlag.NO_EXPORT_SUPPORT
    | protocol.InitFlag.ALLOW_IDMAP
)
"""NO_EXPORT_SUPPORT: otherwise an NFS server accepts the mount, and loses its files when the kernel forgets their
nodes. ALLOW_IDMAP, for containers with their own user namespace, requires the mount option default_permissions.

READDIRPLUS is always used, not only when the kernel expects attributes to be needed (READDIRPLUS_AUTO). With the
latter, the kernel stops using it after the first page of a directory, and each file of the other pages costs a LOOKUP
before it can be opened.
"""


class Session:
    """Owns the device. Only the serving thread may send replies."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)
        self._deferred: deque[Callable[[], object]] = deque()
        self.cpu_latency = CpuLatencyRequest()
        self._notifications: queue.SimpleQueue[bytes | Callable[[], object] | None] = queue.SimpleQueue()
        self._notifier = threading.Thread(target=self._write_notifications, name="notifier", daemon=True)

    def handshake(self, needed: protocol.InitFlag, stack_depth: int = 0) -> None:
        """Answer INIT. Call it once the file system is mounted or created. Raises KernelTooOld or GrowfsError.

        needed, stack_depth: as for `negotiate`.
        """
        ready = select.poll()
        ready.register(self._fd, select.POLLIN)
        if not ready.poll(10_000):
            raise GrowfsError("the kernel did not start the FUSE session; check its log (dmesg)")
        request = protocol.parse_request(os.read(self._fd, protocol.MIN_READ_BUFFER))
        if request.opcode != protocol.Opcode.INIT:
            raise GrowfsError(f"the kernel started the FUSE session with request {request.opcode}")
        try:
            offer = protocol.parse_offer(request)
            background_max = 64  # read-ahead requests that the kernel may send at a time
            answer = protocol.negotiate(offer, FLAGS, needed, background_max, mmap.PAGESIZE, stack_depth)
        except protocol.KernelTooOld:
            self.send(replies.error_reply(request.unique, errno.EPROTO))
            raise
        self.send(replies.reply(request.unique, answer))

    async def serve(self, handle: Callable[[bytes], object], on_idle: Callable[[], bool]) -> None:
        """Serve until the file system is unmounted.

        handle: handles a message. on_idle: called while no request is waiting; does a little work, and returns whether
        there was any.
        """
        self._notifier.start()
        with RequestWaiter(self._fd) as waiter:
            await self._loop(handle, on_idle, waiter)

    async def _loop(
        self, handle: Callable[[bytes], object], on_idle: Callable[[], bool], waiter: RequestWaiter
    ) -> None:
        fd, read, size, count = self._fd, os.read, protocol.MIN_READ_BUFFER, self.cpu_latency.count
        served = 0
        while True:
            try:
                message = read(fd, size)
            except BlockingIOError:
                if self._deferred:
                    self._deferred.popleft()()
                    continue
                if not on_idle():
                    await waiter.wait()
                    continue
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # the request was aborted while it was read
                    continue
                if error.errno not in (errno.ENODEV, errno.ECONNABORTED):
                    raise
                return
            else:
                handle(message)
                count()
            served += 1
            if served % BATCH_REQUESTS_MAX == 0:
                while self._deferred:  # other tasks may ask whether a file is open
                    self._deferred.popleft()()
                await waiter.let_others_run()

    def defer(self, work: Callable[[], object]) -> None:
        """Do this work when no request is waiting, and before any other task runs."""
        self._deferred.append(work)

    def send(self, message: bytes, content: memoryview | None = None) -> bool:
        """Reply to a request. Returns False if no process waits for the reply any more.

        content: data that follows the message, if it is too large to be copied.
        """
        try:
            if content is None:
                os.write(self._fd, message)
            else:
                os.writev(self._fd, (message, content))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED):
                raise
            return False
        return True

    def open_backing(self, fd: int) -> int:
        """Register a file that the kernel may read by itself. Returns its backing id. Raises OSError."""
        # With a mutable buffer fcntl.ioctl returns the kernel's return value; with bytes it returns a copy of them.
        return int(fcntl.ioctl(self._fd, protocol.BACKING_OPEN, bytearray(protocol.BackingMap.pack(fd, 0))))

    def close_backing(self, id: int) -> None:
        """Release a backing id. Files opened with it stay readable."""
        fcntl.ioctl(self._fd, protocol.BACKING_CLOSE, bytearray(id.to_bytes(4, sys.byteorder)))

    def notify(self, message: bytes) -> None:
        """Send a notification from the notifier thread: the kernel may block it until requests are answered."""
        self._notifications.put(message)

    async def notify_all(self, messages: Iterable[bytes]) -> None:
        """Send notifications, and return when the kernel has handled them and all earlier ones."""
        done = trio.Event()
        for message in messages:
            self._notifications.put(message)
        self._notifications.put(partial(trio.lowlevel.current_trio_token().run_sync_soon, done.set))
        await done.wait()

    def _write_notifications(self) -> None:
        while (message := self._notifications.get()) is not None:
            if not isinstance(message, bytes):
                with contextlib.suppress(trio.RunFinishedError):
                    message()
                continue
            try:
                os.write(self._fd, message)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF, errno.ECONNABORTED):
                    return
                if error.errno != errno.ENOENT:  # ENOENT: the kernel does not know that name
                    log.warning("the kernel refuses a notification: %s", error)

    def close(self) -> None:
        """Close the device. The file system must already be detached or aborted."""
        self._notifications.put(None)
        while self._notifier.is_alive():  # its last notification may wait for a lookup, which waits for an answer
            self._refuse_all()
            self._notifier.join(0.01)
        os.close(self._fd)

    def _refuse_all(self) -> None:
        try:
            while True:
                request = protocol.parse_request(os.read(self._fd, protocol.MIN_READ_BUFFER))
                self.send(replies.error_reply(request.unique, errno.EIO))
        except (OSError, protocol.Malformed):  # EAGAIN: no request waits; ENODEV: none can come
            return
