"""The passthrough engine: carries the vfs to the kernel by speaking its protocol, so that reads need no daemon.

A resident file is opened with a backing id (FOPEN_PASSTHROUGH): from then on reads, splices and maps of it go from the
kernel straight to the cached file. What is answered from memory is answered at once; only what has to wait is a task.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from growfs.errors import GrowfsError
from growfs.fuse import encode, protocol, structs
from growfs.fuse.mounting import Mounted, Mounting, abandon, mounted_at
from growfs.fuse.probe import close_backing, open_backing
from growfs.fuse.protocol import HEADER, Opcode, OpenFlag, Request
from growfs.fuse.session import Session
from growfs.fuse.signals import is_ending
from growfs.vfs.filesystem import Vfs

log = logging.getLogger(__name__)

SIGNALS_EVERY_S = 0.1
"""How often the signals of an interrupted reader are looked at: the kernel tells of the first one only."""
OPEN_AHEAD_MAX = 16_384
"""Files that were listed and are not opened ahead yet; of more, the first are left out."""
NO_BACKING = 0
READ_ONLY = (
    *(Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR, Opcode.RENAME),
    *(Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.CREATE, Opcode.FALLOCATE, Opcode.SETXATTR),
    *(Opcode.REMOVEXATTR, Opcode.TMPFILE),
)

_PASSTHROUGH = int(OpenFlag.PASSTHROUGH)


@dataclass(slots=True)
class Waiting:
    """A request that is not answered yet."""

    tid: int
    scope: trio.CancelScope


class PassthroughEngine:
    """Owns the session with the kernel and the backing ids: one for each file whose descriptor is open.

    requests: how many of each kind the kernel has sent.
    """

    name = "passthrough"

    def __init__(self, vfs: Vfs) -> None:
        self.requests: Counter[str] = Counter()
        self._vfs = vfs
        self._session: Session
        self._mounted: Mounted | None = None
        self._nursery: trio.Nursery
        self._backings: dict[int, int] = {}
        self._listed: deque[int] = deque(maxlen=OPEN_AHEAD_MAX)
        self._waiting: dict[int, Waiting] = {}
        self._buffer = memoryview(bytearray(protocol.REPLY_MAX))
        vfs.descriptor_closed.connect(self._drop_backing)
        self._handlers: dict[int, tuple[str, Callable[[Request], None]]] = {
            opcode: (opcode.name, self._refuse_unknown) for opcode in Opcode
        }
        for opcode, handler in self._table().items():
            self._handlers[opcode] = (opcode.name, handler)

    def _table(self) -> dict[Opcode, Callable[[Request], None]]:
        """What is not in it is answered with ENOSYS."""
        table: dict[Opcode, Callable[[Request], None]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
            Opcode.GETATTR: self._getattr,
            Opcode.STATX: self._statx,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: partial(self._readdir, plus=False),
            Opcode.READDIRPLUS: partial(self._readdir, plus=True),
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.STATFS: self._statfs,
            Opcode.INTERRUPT: self._interrupt,
            Opcode.DESTROY: self._destroy,
        }
        return table | dict.fromkeys(READ_ONLY, self._refuse_change)

    # The engine.

    def mount(self, mounting: Mounting) -> None:
        """Attach to the mountpoint and begin the session. Raises GrowfsError."""
        session = Session(mounting.attach())
        self.begin(session)
        self._mounted = mounted_at(mounting.mountpoint)
        session.shake_hands()

    def begin(self, session: Session) -> None:
        """Have requests come from a session."""
        self._session = session

    async def serve(self) -> None:
        """Answer the kernel until the mount is gone."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._session.wakefulness.run)
            await self._session.serve(self._answer, self._open_ahead)
            self._nursery.cancel_scope.cancel()

    def unmount(self) -> None:
        """Detach, also while files are open; nothing happens where nothing is mounted."""
        if self._mounted:
            abandon(self._mounted)
            self._mounted = None
            self._session.close()

    def forget_name(self, parent: int, name: str) -> None:
        """Have the kernel look a name of that directory up again."""
        if self._mounted:
            self._session.notify(protocol.inval_entry(parent, name.encode()))

    # Requests.

    def _answer(self, message: bytes) -> int:
        """Answer a message, whatever it is: none ends the daemon. Returns its kind."""
        try:
            request = protocol.request(message)
        except structs.Malformed as error:
            log.error("the kernel's request cannot be read: %s", error)
            return 0
        opcode = request.opcode
        name, handler = self._handlers.get(opcode) or (f"number {opcode}", self._refuse_unknown)
        self.requests[name] += 1
        self._handle(request, handler)
        return opcode

    def _handle(self, request: Request, handler: Callable[[Request], None]) -> None:
        try:
            handler(request)
        except GrowfsError as error:
            self._refuse(request, error.errno)
        except structs.Malformed as error:
            log.error("the kernel's request %d cannot be read: %s", request.opcode, error)
            self._refuse(request, errno.EIO)
        except Exception:
            log.exception("a bug in growfs, met by request %d", request.opcode)
            self._refuse(request, errno.EIO)

    def _reply(self, request: Request, body: bytes = b"") -> bool:
        return self._session.send(protocol.reply(request.unique, body))

    def _refuse(self, request: Request, code: int) -> None:
        self._session.send(protocol.refusal(request.unique, code))

    def _later(self, request: Request, work: Callable[[], Awaitable[None]]) -> None:
        """Answer a request by a task, which an interrupt may end."""
        waiting = self._waiting[request.unique] = Waiting(request.tid, trio.CancelScope())  # the next may interrupt it
        self._nursery.start_soon(self._wait, request, waiting, work)

    async def _wait(self, request: Request, waiting: Waiting, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with waiting.scope:
                await work()
                return
            self._refuse(request, errno.EINTR)
        except GrowfsError as error:
            self._refuse(request, error.errno)
        except Exception:
            log.exception("a bug in growfs, met by a request that waited")
            self._refuse(request, errno.EIO)
        finally:
            del self._waiting[request.unique]

    def _interrupt(self, request: Request) -> None:
        unique = structs.InterruptIn.unpack(request.message, HEADER).unique
        if waiting := self._waiting.get(unique):
            self._nursery.start_soon(self._watch_signals, unique, waiting)

    async def _watch_signals(self, unique: int, waiting: Waiting) -> None:
        """End the wait of a thread whose process is ending; one that gets SIGCHLD or the like goes on waiting."""
        while self._waiting.get(unique) is waiting:
            if is_ending(waiting.tid):
                waiting.scope.cancel()
                return
            await trio.sleep(SIGNALS_EVERY_S)

    def _refuse_unknown(self, request: Request) -> None:
        """ENOSYS: the kernel does without, and for most requests asks no more (FLUSH, LSEEK, GETXATTR, ...).

        ACCESS is one: with default_permissions the kernel checks permissions itself.
        """
        self._refuse(request, errno.ENOSYS)

    def _refuse_change(self, request: Request) -> None:
        self._refuse(request, errno.EROFS)

    def _forget(self, request: Request) -> None:
        """Node ids are rows of the database: there is nothing to let go of, and the kernel waits for no answer."""

    def _destroy(self, request: Request) -> None:
        self._reply(request)

    # Names and attributes.

    def _lookup(self, request: Request) -> None:
        attributes = self._vfs.lookup(request.nodeid, protocol.name(request))
        self._reply(request, encode.entry_out(attributes))

    def _getattr(self, request: Request) -> None:
        attributes = self._vfs.attributes(request.nodeid)
        self._reply(request, encode.attr_out(attributes))

    def _statx(self, request: Request) -> None:
        attributes = self._vfs.attributes(request.nodeid)
        self._reply(request, encode.statx_out(attributes))

    def _statfs(self, request: Request) -> None:
        self._reply(request, encode.statfs_out(self._vfs.capacity()))

    # Directories.

    def _opendir(self, request: Request) -> None:
        handle = self._vfs.open_directory(request.nodeid, request.tid)
        if not self._session.send(protocol.opened(request.unique, handle, 0)):
            self._vfs.close_directory(handle)

    def _readdir(self, request: Request, plus: bool) -> None:
        asked = structs.ReadIn.unpack(request.message, HEADER)
        if not self._vfs.try_begin_listing(asked.fh, asked.offset):
            self._later(request, partial(self._readdir_later, request, asked, plus))
        else:
            self._read_entries(request, asked, plus)

    async def _readdir_later(self, request: Request, asked: structs.ReadIn, plus: bool) -> None:
        await self._vfs.begin_listing(asked.fh, asked.offset)
        self._read_entries(request, asked, plus)

    def _read_entries(self, request: Request, asked: structs.ReadIn, plus: bool) -> None:
        pack = encode.direntplus if plus else encode.dirent
        packed = bytearray()
        count = 0
        for entry in self._vfs.entries(asked.fh, asked.offset):
            one = pack(entry)
            if len(packed) + len(one) > asked.size:
                break
            packed += one
            count += 1
        self._reply(request, bytes(packed))
        self._listed.extend([entry.id for entry in self._vfs.mark_delivered(asked.fh, count) if not entry.is_dir])

    def _open_ahead(self) -> bool:
        """Have a file ready that was listed: who lists a directory often reads what is in it."""
        if not self._listed:
            return False
        id = self._listed.popleft()
        try:
            if self._vfs.open_ahead(id):
                self._backing(id, id)
                self._vfs.close(id)
        except Exception:
            log.exception("a bug in growfs, met by opening a file ahead")
        return True

    def _releasedir(self, request: Request) -> None:
        self._vfs.close_directory(structs.ReleaseIn.unpack(request.message, HEADER).fh)
        self._reply(request)

    # Files.

    def _open(self, request: Request) -> None:
        handle = self._vfs.try_open(request.nodeid, request.tid)
        if handle is None:
            self._later(request, partial(self._open_later, request))
        else:
            self._opened(request, handle)
            self._vfs.count_open(handle)  # also where it was closed again: the count comes out the same

    async def _open_later(self, request: Request) -> None:
        self._opened(request, await self._vfs.open(request.nodeid, request.tid))

    def _opened(self, request: Request, handle: int) -> None:
        if self._vfs.is_virtual(handle):
            answer = protocol.opened(request.unique, handle, OpenFlag.DIRECT_IO)
        elif backing := self._backing(request.nodeid, handle):
            answer = protocol.opened(request.unique, handle, _PASSTHROUGH, backing)
        else:
            answer = protocol.opened(request.unique, handle, OpenFlag.KEEP_CACHE)
        if not self._session.send(answer):
            self._vfs.close(handle)

    def _backing(self, id: int, handle: int) -> int:
        """The backing id of an open file; NO_BACKING, while its descriptor is open, where the kernel refuses it."""
        backing = self._backings.get(id)
        if backing is None:
            try:
                backing = open_backing(self._session.fd, self._vfs.content(handle)[0])
            except OSError as error:
                log.warning("a file is read through the daemon, because the kernel refuses passthrough: %s", error)
                backing = NO_BACKING
            self._backings[id] = backing
        return backing

    def _release(self, request: Request) -> None:
        """Nobody waits for the answer, and a reader of small files waits for its next open."""
        self._session.defer(partial(self._handle, request, self._released))

    def _released(self, request: Request) -> None:
        self._vfs.close(structs.ReleaseIn.unpack(request.message, HEADER).fh)
        self._reply(request)

    def _drop_backing(self, id: int) -> None:
        """Let go of an inode's backing id: its descriptor was closed."""
        if (backing := self._backings.pop(id, NO_BACKING)) != NO_BACKING:
            close_backing(self._session.fd, backing)

    def _read(self, request: Request) -> None:
        """Of a virtual file, or one without a backing id; of any, where a reader gives advice (POSIX_FADV_WILLNEED)."""
        asked = structs.ReadIn.unpack(request.message, HEADER)
        buffer = self._buffer[: asked.size]
        count = self._vfs.try_read(asked.fh, asked.offset, buffer)
        if count is None:
            self._later(request, partial(self._read_later, request, asked))
        else:
            self._session.send(protocol.reply_head(request.unique, count), buffer[:count])

    async def _read_later(self, request: Request, asked: structs.ReadIn) -> None:
        self._reply(request, await self._vfs.read(asked.fh, asked.offset, asked.size))
