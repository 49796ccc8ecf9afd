"""The passthrough engine survives any message from the kernel, and answers each one at most once.

A socket stands in for the device, because a real kernel never sends such messages.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from growfs.cache.schema import ROOT
from growfs.cache.usage import Budget, UsageCounters
from growfs.errors import GrowfsError, Unreadable
from growfs.fuse import latency, protocol, replies
from growfs.fuse.passthrough import WRITE_OPCODES, PassthroughEngine
from growfs.fuse.protocol import InitFlag, Opcode
from growfs.fuse.session import FLAGS, Session
from growfs.rotation.readers import Readers
from growfs.vfs.filesystem import Misses, Vfs
from growfs.vfs.virtual import VirtualFolder
from tests.unit.local_cache import LocalCache, file

NO_ANSWER = {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT}
OPEN_IN = bytes(8)
"""fuse_open_in: flags and open_flags, of 32 bits each."""


class Kernel:
    """The kernel's end of the device. serving: the scope in which the engine serves."""

    def __init__(self, end: socket.socket) -> None:
        self.end = trio.socket.from_stdlib_socket(end)
        self.serving = trio.CancelScope()

    async def send(self, opcode: int, body: bytes = b"", nodeid: int = ROOT, unique: int = 4) -> None:
        self.put(opcode, body, nodeid, unique)
        await trio.lowlevel.checkpoint()

    def put(self, opcode: int, body: bytes = b"", nodeid: int = ROOT, unique: int = 4) -> None:
        """Send a request, without letting the engine read it before another one is sent."""
        header = protocol.InHeader.pack(protocol.HEADER + len(body), opcode, unique, nodeid, 0, 0, os.getpid())
        os.write(self.end.fileno(), header + body)

    async def receive(self) -> tuple[protocol.Members, bytes]:
        with trio.fail_after(5):
            message = await self.end.recv(1 << 20)
        return protocol.OutHeader.unpack(message), message[protocol.OutHeader.size :]

    async def request(self, opcode: int, body: bytes = b"", nodeid: int = ROOT) -> int:
        await self.send(opcode, body, nodeid)
        return -int((await self.receive())[0].error)

    async def open_directory(self, nodeid: int = ROOT) -> int:
        await self.send(Opcode.OPENDIR, OPEN_IN, nodeid)
        return int(protocol.OpenOut.unpack((await self.receive())[1]).fh)

    async def assert_alive(self) -> None:
        await self.send(Opcode.STATFS, unique=1 << 40)
        header, _ = await self.receive()
        assert (header.unique, header.error) == (1 << 40, 0)


@pytest.fixture
async def kernel(cache: LocalCache) -> AsyncIterator[Kernel]:
    await cache.list([file("a/1", 100)])
    await cache.admit("a/1")
    usage = UsageCounters(cache.database, Budget(cache.database, 0))
    readers = Readers(cache.generations, 3600, usage.recently_opened)
    vfs = Vfs(
        cache.catalog, cache.store, cache.generations, readers, usage, Misses(), VirtualFolder([], Path("/")), None
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine, device = PassthroughEngine(vfs, 1), Session(ours.detach())
    cache.store.open_files.descriptor_closed.connect(engine.drop_descriptor)
    engine._session = device
    kernel = Kernel(theirs)

    async def serve() -> None:
        with kernel.serving:
            await engine.serve()

    async with trio.open_nursery() as nursery:
        for run in (readers.run, cache.generations.run):
            nursery.start_soon(run)
        await wait_all_tasks_blocked()
        nursery.start_soon(serve)
        yield kernel
        if not kernel.serving.cancel_called:
            await kernel.assert_alive()
        nursery.cancel_scope.cancel()
    device.close()
    theirs.close()


async def test_a_file_without_a_backing_id_is_read_through_the_daemon(kernel: Kernel, cache: LocalCache) -> None:
    """The socket refuses the ioctl, as some file systems do."""
    id = cache.node("a/1").id
    await kernel.send(Opcode.OPEN, OPEN_IN, id)
    header, body = await kernel.receive()
    assert (header.error, protocol.OpenOut.unpack(body).open_flags) == (0, protocol.OpenFlag.KEEP_CACHE)
    await kernel.send(Opcode.READ, protocol.ReadIn.pack(id, 90, 4096, 0, 0, 0), id)
    assert (await kernel.receive())[1] == b"x" * 10
    assert cache.store.open_files.get(id)
    assert await kernel.request(Opcode.RELEASE, protocol.ReleaseIn.pack(id, 0, 0, 0), id) == 0
    assert cache.store.open_files.get(id) is None


@pytest.mark.promise(3)
async def test_an_open_that_comes_with_a_close_gets_its_descriptor(kernel: Kernel, cache: LocalCache) -> None:
    """The close is handled later: no process waits for it."""
    await cache.list([file("a/1", 100), file("a/2", 100)])
    await cache.admit("a/2")
    cache.store.open_files._descriptors_max = 1
    first, second = (cache.node(path).id for path in ("a/1", "a/2"))
    assert await kernel.request(Opcode.OPEN, OPEN_IN, first) == 0
    assert await kernel.request(Opcode.OPEN, OPEN_IN, second) == errno.ENFILE
    kernel.put(Opcode.RELEASE, protocol.ReleaseIn.pack(first, 0, 0, 0), first, unique=6)
    kernel.put(Opcode.OPEN, OPEN_IN, second, unique=8)
    answers = [(await kernel.receive())[0] for _ in range(2)]
    assert {answer.unique: answer.error for answer in answers} == {6: 0, 8: 0}


async def test_a_disk_that_fails_while_files_are_opened_ahead_is_not_called_a_bug(
    kernel: Kernel, cache: LocalCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = trio.Event()

    def fail(_: Vfs, id: int) -> bool:
        tried.set()
        raise Unreadable(f"the catalog, for {id}")

    monkeypatch.setattr(Vfs, "open_ahead", fail)
    folder = cache.node("a").id
    handle = await kernel.open_directory(folder)
    assert await kernel.request(Opcode.READDIR, protocol.ReadIn.pack(handle, 0, 4096, 0, 0, 0), folder) == 0
    await kernel.assert_alive()  # it is tried after a request
    with trio.fail_after(5):
        await tried.wait()
    assert "bug" not in caplog.text


async def test_a_read_is_answered_in_full_however_large_it_is(
    kernel: Kernel, cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes a short answer for the end of the file. One with pages of 64 KiB may ask for 16 MiB."""
    await cache.list([file("a/1", 100), file("a/large", 3 << 20)])
    await cache.admit("a/large", content=bytes(3 << 20))
    id = cache.node("a/large").id
    await kernel.send(Opcode.OPEN, OPEN_IN, id)
    await kernel.receive()
    answered: list[int] = []
    sent = Session.send

    def send(device: Session, message: bytes, content: memoryview | None = None) -> bool:
        answered.append(protocol.OutHeader.unpack(message).len - protocol.OutHeader.size)
        assert content is None or len(content) == answered[-1]
        return sent(device, replies.reply(protocol.OutHeader.unpack(message).unique))

    monkeypatch.setattr(Session, "send", send)
    for size in (16 << 20, 2 << 20, 4096):
        await kernel.send(Opcode.READ, protocol.ReadIn.pack(id, 4096, size, 0, 0, 0), id)
        await kernel.receive()
    monkeypatch.setattr(Session, "send", sent)
    assert answered == [(3 << 20) - 4096, 2 << 20, 4096]


async def test_an_open_whose_reader_cannot_be_watched_holds_no_file(
    kernel: Kernel, cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("growfs.rotation.readers.pidfd_open", refuse)
    id = cache.node("a/1").id
    assert await kernel.request(Opcode.OPEN, OPEN_IN, id) == errno.ENFILE
    assert cache.store.open_files.get(id) is None


async def test_an_open_is_answered_and_then_counted(
    kernel: Kernel, cache: LocalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open is counted before any other request is answered, because a listing may depend on the count."""
    events: list[str] = []
    id = cache.node("a/1").id

    def send(device: Session, message: bytes, content: memoryview | None = None) -> bool:
        events.append("answered")
        return sent(device, message, content)

    def count(vfs: Vfs, handle: int, missed: bool = False) -> None:
        events.append("counted")
        counted(vfs, handle, missed)

    sent, counted = Session.send, Vfs.count_open
    monkeypatch.setattr(Session, "send", send)
    monkeypatch.setattr(Vfs, "count_open", count)
    for _ in range(2):
        await kernel.send(Opcode.OPEN, OPEN_IN, id)
    for _ in range(2):
        assert (await kernel.receive())[0].error == 0
    await wait_all_tasks_blocked()
    assert events == ["answered", "counted"] * 2


async def test_requests_that_cannot_be_answered_are_refused_and_malformed_messages_ignored(kernel: Kernel) -> None:
    for opcode in WRITE_OPCODES:
        assert await kernel.request(opcode, bytes(64)) == errno.EROFS, opcode
    for unsupported in (Opcode.FLUSH, Opcode.GETXATTR, Opcode.LSEEK, Opcode.ACCESS, 4095):
        assert await kernel.request(unsupported, bytes(64)) == errno.ENOSYS, unsupported
    for opcode in (Opcode.READ, Opcode.READDIR, Opcode.READDIRPLUS, Opcode.RELEASE, Opcode.RELEASEDIR):
        assert await kernel.request(opcode, bytes(7)) == errno.EIO, opcode
        unknown_handle = protocol.ReadIn.pack(9999, 0, 4096, 0, 0, 0)
        assert await kernel.request(opcode, unknown_handle, 9999) == errno.EIO, opcode
    for message in (b"x", bytes(39), bytes(40), protocol.InHeader.pack(99, 1, 1, 1, 0, 0, 0)):
        await kernel.end.send(message)


async def test_no_task_waits_for_the_end_of_a_poll(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each listing begins a generation, in which several tasks and threads run one after the other."""
    monkeypatch.setattr(latency, "POLL_S_MAX", 60.0)
    for _ in range(20):
        handle = await kernel.open_directory()
        await kernel.send(Opcode.READDIR, protocol.ReadIn.pack(handle, 0, 4096, 0, 0, 0))
        assert b"a" in (await kernel.receive())[1]
        assert await kernel.request(Opcode.RELEASEDIR, protocol.ReleaseIn.pack(handle, 0, 0, 0)) == 0


async def test_a_listing_is_answered_even_if_the_engine_is_stopped_meanwhile(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps the directory locked until then."""
    handle = await kernel.open_directory()
    scans = 0

    def scan(vfs: Vfs, handle: int, position: int) -> bool:
        nonlocal scans
        scans += 1
        kernel.serving.cancel()
        return scans > 2 and scanned(vfs, handle, position)

    scanned = Vfs.try_scan
    monkeypatch.setattr(Vfs, "try_scan", scan)
    await kernel.send(Opcode.READDIR, protocol.ReadIn.pack(handle, 0, 4096, 0, 0, 0))
    assert b"a" in (await kernel.receive())[1]


async def test_a_request_that_waits_is_answered_when_the_engine_is_stopped(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps a page locked until a link is read, for example."""

    async def wait(*_: object) -> int:
        kernel.serving.cancel()
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(Vfs, "try_open_directory", lambda *_: None)
    monkeypatch.setattr(Vfs, "open_directory", wait)
    assert await kernel.request(Opcode.OPENDIR, OPEN_IN) == errno.EIO


async def test_any_message_is_answered_once(kernel: Kernel) -> None:
    generator = random.Random(11)
    opcodes = [*(opcode for opcode in Opcode if opcode is not Opcode.DESTROY), 0, 5000, 2**32 - 1]
    for unique in range(10, 5000, 2):
        body = generator.randbytes(generator.randrange(100)) if generator.random() < 0.7 else bytes(96)
        nodeid = generator.choice([0, ROOT, 1025, 1026, 2**64 - 1])
        opcode = generator.choice(opcodes)
        await kernel.send(opcode, bytes(8) if opcode == Opcode.INTERRUPT else body, nodeid, unique)
        if opcode not in NO_ANSWER:
            assert (await kernel.receive())[0].unique == unique


@contextmanager
def beginning_with(opcode: Opcode, body: bytes = b"") -> Iterator[tuple[Session, socket.socket]]:
    """A session whose kernel sends this request first, and the kernel's end of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(protocol.InHeader.pack(protocol.HEADER + len(body), opcode, 2, 0, 0, 0, 0) + body)
        yield Session(ours.fileno()), theirs


async def test_the_handshake_answers_the_init_request_of_a_kernel_that_is_new_enough() -> None:
    """Before Linux 5.17 it had no second half of the flags."""
    flags = int(FLAGS | InitFlag.PASSTHROUGH)
    offer = protocol.InitIn.pack(7, 45, 4096, flags & 0xFFFFFFFF, flags >> 32)
    with beginning_with(Opcode.INIT, offer) as (session, kernel):
        session.handshake(InitFlag.PASSTHROUGH, 1)
        assert protocol.InitOut.unpack(kernel.recv(1000), protocol.OutHeader.size).major == 7
    with beginning_with(Opcode.INIT, protocol.InitIn.pack(7, 34, 131_072, 0x7FFFFFB, 0)[:16]) as (session, kernel):
        with pytest.raises(protocol.KernelTooOld, match=r"FUSE 7\.34"):
            session.handshake(InitFlag.PASSTHROUGH, 1)
        assert protocol.OutHeader.unpack(kernel.recv(1000)).error == -errno.EPROTO
    with beginning_with(Opcode.STATFS) as (session, _), pytest.raises(GrowfsError, match="session with request 17"):
        session.handshake(InitFlag.PASSTHROUGH, 1)
