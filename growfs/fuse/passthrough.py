"""The passthrough engine: speaks the kernel's FUSE protocol itself, so that reads bypass the daemon.

A resident file is opened with a backing id (FOPEN_PASSTHROUGH). From then on the kernel serves reads, splices and
mappings from the cached file. Requests that can be answered from memory are answered at once; only a request that has
to wait becomes a task.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from growfs.errors import GrowfsError, TooManyOpen
from growfs.fuse import protocol, replies
from growfs.fuse.mounting import MountRow, MountSpec, force_unmount
from growfs.fuse.protocol import HEADER, FuseRequest, Opcode, OpenFlag
from growfs.fuse.session import Session
from growfs.proc import SIGNALS_EVERY_S, is_ending
from growfs.vfs.filesystem import Vfs

if TYPE_CHECKING:
    from growfs.cache.catalog import Removed

log = logging.getLogger(__name__)

WRITE_OPCODES = (
    *(Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR, Opcode.RENAME),
    *(Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.CREATE, Opcode.FALLOCATE, Opcode.SETXATTR),
    *(Opcode.REMOVEXATTR, Opcode.TMPFILE),
)

_PASSTHROUGH = int(OpenFlag.PASSTHROUGH)


@dataclass(slots=True)
class PendingRequest:
    """A request that a task will answer. scope: cancelled if the request is interrupted."""

    tid: int
    scope: trio.CancelScope


class PassthroughEngine:
    """Owns the session with the kernel and the backing ids: one for each file whose descriptor is open.

    requests: how many requests of each kind the kernel has sent. stack_depth: see `protocol.STACK_DEPTH_MAX`.
    """

    name = "passthrough"
    view: type[Vfs] = Vfs
    needs = protocol.InitFlag.PASSTHROUGH
    """The features that the kernel has to offer."""

    def __init__(self, vfs: Vfs, stack_depth: int) -> None:
        self.requests: Counter[str] = Counter()
        self.warning: str | None = None
        self._vfs = vfs
        self._stack_depth = stack_depth
        self._session: Session
        self._mounted: MountRow | None = None
        self._nursery: trio.Nursery
        self._backing_ids: dict[int, int] = {}
        # If there are more, the oldest are dropped.
        self._to_open_ahead: deque[int] = deque(maxlen=16_384)
        self._pending: dict[int, PendingRequest] = {}
        table = self._table()
        self._handlers: dict[int, tuple[str, Callable[[FuseRequest], object]]] = {
            opcode: (opcode.name, table.get(opcode, self._refuse_unknown)) for opcode in Opcode
        }

    def _table(self) -> dict[Opcode, Callable[[FuseRequest], object]]:
        """The handlers. A request without one is answered with ENOSYS."""
        table: dict[Opcode, Callable[[FuseRequest], object]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
            Opcode.GETATTR: self._getattr,
            Opcode.STATX: self._statx,
            Opcode.READLINK: self._read_link,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: partial(self._readdir, plus=False),
            Opcode.READDIRPLUS: partial(self._readdir, plus=True),
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.STATFS: self._statfs,
            Opcode.INTERRUPT: self._interrupt,
            Opcode.DESTROY: self._reply,
        }
        return table | dict.fromkeys(WRITE_OPCODES, partial(self._refuse, code=errno.EROFS))

    # The engine.

    def mount(self, spec: MountSpec) -> None:
        """Attach to the mountpoint and begin the session. Raises GrowfsError."""
        self._session = Session(spec.attach())
        self._mounted = spec.row()
        self._session.handshake(self.needs, self._stack_depth)

    async def serve(self) -> None:
        """Answer the kernel until the file system is unmounted."""
        async with trio.open_nursery() as self._nursery:
            for service in self._services():
                self._nursery.start_soon(service)
            await self._session.serve(self._handle_message, self._open_ahead)
            self._nursery.cancel_scope.cancel()

    def _services(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What runs while the kernel is answered, in the nursery of the requests."""
        return (self._session.cpu_latency.run,)

    async def ready(self) -> None:
        """Return at once: the kernel asks when readers list."""

    def unmount(self) -> None:
        """Detach, even while files are open. Does nothing if nothing is mounted."""
        if self._mounted:
            force_unmount(self._mounted)
            self._mounted = None
            self._session.close()

    def forget_name(self, parent: int, name: str) -> None:
        """Make the kernel look up a name of that directory again."""
        if self._mounted:
            self._session.notify(protocol.inval_entry(parent, name.encode()))

    def forget_files(self, removed: Sequence[Removed]) -> None:
        """Make the kernel ask again for the attributes of files that are gone."""
        if self._mounted:
            for gone in removed:
                self._session.notify(protocol.inval_inode(gone.id, -1, 0))

    # Requests.

    def _handle_message(self, message: bytes) -> None:
        """Answer any message; none ends the daemon."""
        try:
            request = protocol.parse_request(message)
        except protocol.Malformed as error:
            log.error("the kernel's request cannot be read: %s", error)
            return
        name, handler = self._handlers.get(request.opcode) or (f"number {request.opcode}", self._refuse_unknown)
        self.requests[name] += 1
        self._handle(request, handler)

    def _handle(self, request: FuseRequest, handler: Callable[[FuseRequest], object]) -> None:
        try:
            handler(request)
        except GrowfsError as error:
            self._refuse(request, error.errno)
        except protocol.Malformed as error:
            log.error("the kernel's request %d cannot be read: %s", request.opcode, error)
            self._refuse(request, errno.EIO)
        except Exception:
            log.exception("request %d failed: a bug in growfs", request.opcode)
            self._refuse(request, errno.EIO)

    def _reply(self, request: FuseRequest, body: bytes = b"") -> bool:
        return self._session.send(replies.reply(request.unique, body))

    def _refuse(self, request: FuseRequest, code: int) -> None:
        self._session.send(replies.error_reply(request.unique, code))

    def _start_task(self, request: FuseRequest, work: Callable[[], Awaitable[None]]) -> None:
        """Answer a request in a task, which an interrupt can cancel. The next request may be that interrupt."""
        pending = self._pending[request.unique] = PendingRequest(request.tid, trio.CancelScope())
        self._nursery.start_soon(self._run_task, request, pending, work)

    async def _run_task(
        self, request: FuseRequest, pending: PendingRequest, work: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with pending.scope:
                await work()
                return
            self._refuse(request, errno.EINTR)
        except GrowfsError as error:
            self._refuse(request, error.errno)
        except trio.Cancelled:  # at the end of the mount; the kernel may hold a lock until the request is answered
            self._refuse(request, errno.EIO)
            raise
        except Exception:
            log.exception("a pending request failed: a bug in growfs")
            self._refuse(request, errno.EIO)
        finally:
            del self._pending[request.unique]

    def _interrupt(self, request: FuseRequest) -> None:
        unique = protocol.InterruptIn.unpack(request.message, HEADER).unique
        if pending := self._pending.get(unique):
            self._nursery.start_soon(self._watch_signals, unique, pending)

    async def _watch_signals(self, unique: int, pending: PendingRequest) -> None:
        """Cancel the request when its process is about to end. SIGCHLD and the like do not cancel it.

        The kernel reports the first signal only. Those of other pid namespaces cannot be seen (`is_ending`).
        """
        if pending.tid == 0:
            await trio.sleep(10.0)  # its first signal may be a harmless one
        while self._pending.get(unique) is pending:
            if pending.tid == 0 or is_ending(pending.tid):
                pending.scope.cancel()
                return
            await trio.sleep(SIGNALS_EVERY_S)

    def _refuse_unknown(self, request: FuseRequest) -> None:
        """ENOSYS: the kernel does without the request, and stops sending most of these (FLUSH, LSEEK, GETXATTR, ...).

        ACCESS is one of them: with default_permissions the kernel checks permissions itself.
        """
        self._refuse(request, errno.ENOSYS)

    def _forget(self, request: FuseRequest) -> None:
        """Node ids are rows of the database, so there is nothing to free. The kernel expects no reply."""

    # Names and attributes.

    def _lookup(self, request: FuseRequest) -> None:
        attributes = self._vfs.lookup(request.nodeid, protocol.parse_name(request))
        self._reply(request, replies.entry_out(attributes))

    def _getattr(self, request: FuseRequest) -> None:
        self._reply(request, replies.attr_out(self._vfs.attributes(request.nodeid)))

    def _statx(self, request: FuseRequest) -> None:
        self._reply(request, replies.statx_out(self._vfs.attributes(request.nodeid)))

    def _read_link(self, request: FuseRequest) -> None:
        self._reply(request, self._vfs.generation_names.target(request.nodeid).encode())

    def _statfs(self, request: FuseRequest) -> None:
        self._reply(request, replies.statfs_out(self._vfs.capacity()))

    # Directories.

    def _opendir(self, request: FuseRequest) -> None:
        handle = self._vfs.try_open_directory(request.nodeid, request.tid)
        if handle is None:
            self._start_task(request, partial(self._opendir_later, request))
        else:
            self._reply_opendir(request, handle)

    async def _opendir_later(self, request: FuseRequest) -> None:
        self._reply_opendir(request, await self._vfs.open_directory(request.nodeid, request.tid))

    def _reply_opendir(self, request: FuseRequest, handle: int) -> None:
        if not self._session.send(replies.open_reply(request.unique, handle, 0)):
            self._vfs.close_directory(handle)

    def _readdir(self, request: FuseRequest, plus: bool) -> None:
        """Waits for nothing but the database: the kernel locks the directory until it is answered.

        Lookups there, and notifications of its names, wait for that lock, and cannot be killed.
        """
        read = protocol.ReadIn.unpack(request.message, HEADER)
        if self._vfs.try_scan(read.fh, read.offset):
            self._reply_entries(request, read, plus)
        else:
            self._start_task(request, partial(self._readdir_later, request, read, plus))

    async def _readdir_later(self, request: FuseRequest, read: protocol.Members, plus: bool) -> None:
        await self._vfs.scan(read.fh, read.offset)
        self._reply_entries(request, read, plus)

    def _reply_entries(self, request: FuseRequest, read: protocol.Members, plus: bool) -> None:
        encode_entry = replies.direntplus if plus else replies.dirent
        body = bytearray()
        count = 0
        for entry in self._vfs.entries(read.fh, read.offset):
            encoded = encode_entry(entry)
            if len(body) + len(encoded) > read.size:
                break
            body += encoded
            count += 1
        self._reply(request, bytes(body))
        self._to_open_ahead.extend([entry.id for entry in self._vfs.mark_delivered(read.fh, count) if not entry.is_dir])

    def _open_ahead(self) -> bool:
        """Open a listed file ahead: a reader that lists a directory often reads its files."""
        if not self._to_open_ahead:
            return False
        id = self._to_open_ahead.popleft()
        try:
            if self._vfs.open_ahead(id):
                self._backing_id(id, id)
                self._vfs.close(id)
        except GrowfsError:  # the disk fails, or too many files are open, which its reader will get to know
            pass
        except Exception:
            log.exception("a file could not be opened ahead: a bug in growfs")
        return True

    def _releasedir(self, request: FuseRequest) -> None:
        self._vfs.close_directory(protocol.ReleaseIn.unpack(request.message, HEADER).fh)
        self._reply(request)

    # Files.

    def _open(self, request: FuseRequest) -> None:
        try:
            handle = self._vfs.try_open(request.nodeid, request.tid)
        except TooManyOpen:  # once what was deferred has closed its files, there may be a descriptor
            handle = None
        if handle is None:
            self._start_task(request, partial(self._open_later, request))
        else:
            self._reply_open(request, handle)
            self._vfs.count_open(handle)  # even if the reply failed and the handle is closed

    async def _open_later(self, request: FuseRequest) -> None:
        self._reply_open(request, await self._vfs.open(request.nodeid, request.tid))

    def _reply_open(self, request: FuseRequest, handle: int) -> None:
        if self._vfs.is_virtual(handle):
            message = replies.open_reply(request.unique, handle, OpenFlag.DIRECT_IO)
        elif backing_id := self._backing_id(request.nodeid, handle):
            message = replies.open_reply(request.unique, handle, _PASSTHROUGH, backing_id)
        else:
            kept = OpenFlag.KEEP_CACHE if self._vfs.keeps_content(request.nodeid) else OpenFlag(0)
            message = replies.open_reply(request.unique, handle, kept)
        if not self._session.send(message):
            self._vfs.close(handle)

    def _backing_id(self, id: int, handle: int) -> int:
        """The backing id of an open file. If the kernel refuses it, 0 until its descriptor is closed."""
        backing_id = self._backing_ids.get(id)
        if backing_id is None:
            try:
                backing_id = self._session.open_backing(self._vfs.content(handle)[0])
            except OSError as error:
                log.warning("a file is read through the daemon, because the kernel refuses passthrough: %s", error)
                backing_id = 0
            self._backing_ids[id] = backing_id
        return backing_id

    def _release(self, request: FuseRequest) -> None:
        """Deferred: no process waits for the reply, and a reader of small files waits for its next open."""
        self._session.defer(partial(self._handle, request, self._close))

    def _close(self, request: FuseRequest) -> None:
        self._vfs.close(protocol.ReleaseIn.unpack(request.message, HEADER).fh)
        self._reply(request)

    def drop_descriptor(self, id: int) -> None:
        """Called when a file's descriptor was closed."""
        if backing_id := self._backing_ids.pop(id, 0):
            self._session.close_backing(backing_id)

    def _read(self, request: FuseRequest) -> None:
        """READ arrives for virtual files, files without a backing id, and any file after POSIX_FADV_WILLNEED."""
        read = protocol.ReadIn.unpack(request.message, HEADER)
        content = self._vfs.try_read(read.fh, read.offset, read.size)
        if content is None:
            self._start_task(request, partial(self._read_later, request, read))
        else:
            self._session.send(replies.reply_header(request.unique, len(content)), content)
            self._drop_second_copy(request, read)

    async def _read_later(self, request: FuseRequest, read: protocol.Members) -> None:
        self._reply(request, await self._vfs.read(read.fh, read.offset, read.size))
        self._drop_second_copy(request, read)

    def _drop_second_copy(self, request: FuseRequest, read: protocol.Members) -> None:
        """Make the kernel forget the read-ahead pages of a file that it reads itself: the cached file is in memory."""
        if self._backing_ids.get(request.nodeid):
            self._session.notify(protocol.inval_inode(request.nodeid, read.offset, read.size))
