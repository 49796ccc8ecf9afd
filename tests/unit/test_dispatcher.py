"""Which worker gets which file, and what happens to it when workers die, hang, fail or cannot be started."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from growfs.cache.catalog import Node
from growfs.errors import GrowfsError, UsageError
from growfs.remote.digest import PART_BYTES
from growfs.remote.protocol import Fetched
from growfs.remote.rate_limits import SharedLimits
from growfs.scheduler.concurrency import STREAMS_FIRST
from growfs.scheduler.dispatcher import AHEAD, AHEAD_FILES, PERIOD_S, Dispatcher
from growfs.scheduler.in_flight import ATTEMPTS_MAX, Download, DownloadGroup, DownloadState
from growfs.workers.messages import Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, WorkerLost

SIZE = 1000


class Worker:
    """The channel to a worker that the test plays. wanted: what it has to fetch."""

    def __init__(self) -> None:
        self.wanted: dict[str, FetchRequest] = {}
        self.had: list[list[str]] = []  # of each message
        self.closed = False
        self._says, self._comes = trio.open_memory_channel[Any](1000)

    async def send(self, message: FetchFiles) -> None:
        if self.closed:
            raise WorkerLost
        self.had.append([wanted.file.path for wanted in message.files])
        self.wanted |= {wanted.file.path: wanted for wanted in message.files}

    async def receive(self) -> Any:
        try:
            return await self._comes.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise WorkerLost from None

    async def aclose(self) -> None:
        self.die()
        await trio.lowlevel.checkpoint()

    def die(self) -> None:
        self.closed = True
        self._says.close()

    def fetched(self, *paths: str) -> None:
        """Report these files as fetched; all, where none is named."""
        files: list[tuple[int, Fetched | FetchFailed]] = []
        for path in paths or tuple(self.wanted):
            wanted = self.wanted.pop(path)
            files.append((wanted.id, Fetched(wanted.file, wanted.file.size or 0, "0")))
        self._says.send_nowait(
            FetchProgress(sum(found.size for _, found in files if isinstance(found, Fetched)), 0, files)
        )

    def says(self, message: Any) -> None:
        self._says.send_nowait(message)


class FakePool:
    """Stands in for WorkerPool. all: the workers that were spawned. refuses: returns what spawn is to raise."""

    def __init__(self) -> None:
        self.limits = SharedLimits()
        self.all: list[Worker] = []
        self.refuses: Callable[[], GrowfsError | None] = lambda: None
        self.tries = 0

    def spawn(self) -> Worker:
        self.tries += 1
        if error := self.refuses():
            raise error
        self.all.append(Worker())
        return self.all[-1]

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.all if not worker.closed]


class Scene:
    """A dispatcher at work, and the results. It moves downloads as the fetcher does."""

    def __init__(self, size: int) -> None:
        self.pool = FakePool()
        self.dispatcher = Dispatcher(self.pool, size, 0)  # type: ignore[arg-type]
        self.fetched: list[str] = []
        self.errors: dict[str, str] = {}
        self._ids = itertools.count(2)

    def download(self, path: str, size: int | None = SIZE, urgent: bool = False) -> Download:
        node = Node(next(self._ids), 1, path, False, size, 0, "", 0, 0, None)
        return Download(node, path, Path("/nowhere") / path, size or 0, DownloadGroup(), urgent=urgent)

    def enqueue(self, *paths: str, **more: Any) -> list[Download]:
        downloads = [self.download(path, **more) for path in paths]
        for download in downloads:
            self.dispatcher.enqueue(download)
        return downloads

    async def handle_result(self, download: Download, result: Fetched | FetchFailed) -> None:
        if isinstance(result, FetchFailed):
            download.move(DownloadState.FAILED)
            self.errors[download.path] = str(result.error)
        else:
            download.move(DownloadState.FETCHED)
            self.fetched.append(download.path)

    def handle_worker_death(self, download: Download) -> None:
        download.attempts_left -= 1
        if not download.attempts_left:
            download.move(DownloadState.FAILED)
            self.errors[download.path] = "its worker died"
            return
        download.move(DownloadState.QUEUED)
        self.dispatcher.enqueue(download, first=True)

    async def finish(self, poison: str = "") -> None:
        """Let the workers fetch until nothing is left; one dies over the file named poison."""
        await quiet()
        while workers := [worker for worker in self.pool.alive if worker.wanted]:
            for worker in workers:
                if poison in worker.wanted:
                    worker.die()
                else:
                    worker.fetched()
            await quiet()


async def quiet() -> None:
    """Return when nothing more happens by itself."""
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def scene(size: int) -> AsyncIterator[Scene]:
    found = Scene(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.dispatcher.run, found.handle_result, found.handle_worker_death)
        yield found
        nursery.cancel_scope.cancel()


def names(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


@pytest.mark.parametrize(("files", "size"), [(2, 2), (4, 4), (40, 4), (3, 8)])
async def test_few_files_do_not_go_all_to_one(files: int, size: int) -> None:
    async with scene(size) as at:
        at.enqueue(*names(files))
        await quiet()
        counts = [len(worker.wanted) for worker in at.pool.all]
        assert (len(counts), max(counts)) == (min(size, files), -(-files // size))
        assert at.pool.limits.streams == -(-STREAMS_FIRST // min(size, files)), "they share the streams"


async def test_bytes_count_too() -> None:
    async with scene(2) as at:
        at.enqueue("large", size=2 * AHEAD_FILES * SIZE)
        at.enqueue(*names(AHEAD_FILES))
        await quiet()
        assert sorted(len(worker.wanted) for worker in at.pool.all) == [1, AHEAD_FILES]


async def test_a_worker_is_only_a_little_ahead() -> None:
    async with scene(1) as at:
        at.enqueue(*names(2 * AHEAD_FILES))
        await quiet()
        (worker,) = at.pool.all
        assert list(worker.wanted) == names(2 * AHEAD_FILES)[: max(AHEAD_FILES, AHEAD * STREAMS_FIRST)]
        worker.fetched("0000", "0007")
        await quiet()
        assert worker.had[-1] == names(2 * AHEAD_FILES)[AHEAD_FILES : AHEAD_FILES + 2]
        await at.finish()
        assert sorted(at.fetched) == names(2 * AHEAD_FILES)
        assert len(at.pool.all) == 1


async def test_a_worker_is_ahead_by_bytes() -> None:
    async with scene(1) as at:
        at.enqueue(*names(100), size=4 * PART_BYTES)
        await quiet()
        (worker,) = at.pool.all
        assert len(worker.wanted) == AHEAD * STREAMS_FIRST // 4
        worker.says(FetchProgress(4 * PART_BYTES, 0, []))  # of several, in part
        await quiet()
        assert len(worker.wanted) == AHEAD * STREAMS_FIRST // 4 + 1


async def test_urgent_files_overtake_and_ignore_the_limits() -> None:
    async with scene(1) as at:
        *_, last = at.enqueue(*names(2 * AHEAD_FILES))
        await quiet()
        (worker,) = at.pool.all
        at.enqueue("u", urgent=True)
        await quiet()
        last.urgent = True
        at.dispatcher.prioritize(last)
        await quiet()
        assert worker.had[1:] == [["u"], [last.path]]
        assert all(worker.wanted[path].urgent for path in ("u", last.path))
        await at.finish()
        assert len(at.fetched) == len(set(at.fetched)) == 2 * AHEAD_FILES + 1


@pytest.mark.parametrize("size", [1, 3])
async def test_files_of_a_worker_that_dies_are_dispatched_again_each_alone(size: int) -> None:
    async with scene(size) as at:
        at.enqueue(*names(30))
        await quiet()
        first = at.pool.all[0]
        lost = set(first.wanted)
        first.die()
        await quiet()
        begun: list[set[str]] = []
        while any(worker.wanted for worker in at.pool.alive):
            begun += [set(worker.wanted) for worker in at.pool.alive if worker.wanted.keys() & lost]
            for worker in at.pool.alive:
                if worker.wanted:
                    worker.fetched()
            await quiet()
        assert all(len(files) == 1 for files in begun)
        assert set().union(*begun) == lost
        assert (sorted(at.fetched), at.errors) == (names(30), {})


@pytest.mark.parametrize("size", [1, 2])
async def test_a_file_that_kills_takes_no_other_along(size: int) -> None:
    async with scene(size) as at:
        at.enqueue(*names(60))
        await at.finish(poison="0013")
        assert at.errors == {"0013": "its worker died"}
        assert sorted(at.fetched) == [name for name in names(60) if name != "0013"]
        assert len([worker for worker in at.pool.all if worker.closed]) == ATTEMPTS_MAX


async def test_a_silent_worker_is_given_up(clock: trio.testing.MockClock) -> None:
    async with scene(1) as at:
        at.enqueue("a", "b")
        await trio.sleep(STALL_S - 1)
        (silent,) = at.pool.all
        silent.says(FetchProgress(10, 0, []))
        await trio.sleep(STALL_S - 1)
        assert at.pool.alive == [silent], "one message is enough"
        await trio.sleep(2)
        assert silent not in at.pool.alive
        await at.finish()
        assert (sorted(at.fetched), at.errors) == (["a", "b"], {})


async def test_a_worker_with_nothing_to_do_may_be_silent(clock: trio.testing.MockClock) -> None:
    async with scene(1) as at:
        at.enqueue("a")
        await at.finish()
        await trio.sleep(10 * STALL_S)
        at.enqueue("b")
        await trio.sleep(STALL_S - 1)
        await at.finish()
        assert (at.fetched, len(at.pool.all)) == (["a", "b"], 1)


async def test_no_worker_can_be_started() -> None:
    async with scene(2) as at:
        at.pool.refuses = lambda: GrowfsError("no more processes")
        at.enqueue("a", "b")
        at.enqueue("c", urgent=True)
        await quiet()
        assert at.errors == dict.fromkeys("abc", "no more processes")
        at.pool.refuses = lambda: None
        at.enqueue("d")
        await at.finish()
        assert at.fetched == ["d"]


async def test_no_further_worker_can_be_started(caplog: pytest.LogCaptureFixture) -> None:
    async with scene(4) as at:
        at.pool.refuses = lambda: GrowfsError("no more processes") if len(at.pool.all) > 1 else None
        at.enqueue(*names(300))
        await at.finish()
        assert (sorted(at.fetched), at.errors) == (names(300), {})
        assert caplog.text.count("no more processes; continuing with 2") == 1
        assert at.pool.tries == 3
        at.pool.all[0].die()
        at.pool.all[1].die()
        await quiet()
        at.pool.refuses = lambda: None
        at.enqueue("later")
        await at.finish()
        assert at.fetched[-1] == "later"


async def test_a_worker_that_can_fetch_nothing() -> None:
    async with scene(1) as at:
        at.enqueue("a", "b")
        await quiet()
        (first,) = at.pool.all
        wanted = dict(first.wanted)
        first.says(Failed(UsageError("no such option")))
        first.says(
            FetchProgress(0, 0, [(wanted["a"].id, Fetched(wanted["a"].file, SIZE, "0"))])
        )  # of what it had begun
        await quiet()
        assert at.errors == {"a": "no such option", "b": "no such option"}
        assert first.closed, "what it still writes must not meet another worker's files"
        at.enqueue("c")
        await at.finish()
        assert at.fetched == ["c"]


async def test_a_file_that_failed_in_the_queue_is_not_dispatched() -> None:
    async with scene(1) as at:
        downloads = at.enqueue(*names(AHEAD_FILES + 8))
        await quiet()
        downloads[AHEAD_FILES + 3].move(DownloadState.FAILED)
        await at.finish()
        assert downloads[AHEAD_FILES + 3].path not in at.fetched
        assert len(at.fetched) == AHEAD_FILES + 7


async def test_a_worker_may_die_while_it_is_given_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender notices first; the receiver a moment later."""

    async def broken(self: Worker, message: FetchFiles) -> None:
        self.die()
        raise WorkerLost

    async with scene(2) as at:
        with monkeypatch.context() as patched:
            patched.setattr(Worker, "send", broken)
            at.enqueue("a")
            await quiet()
        assert at.errors == {"a": "its worker died"}, "it was tried as often as it may"
        at.enqueue("b")
        await at.finish()
        assert at.fetched == ["b"]


async def test_the_store_asks_for_fewer_requests(clock: trio.testing.MockClock) -> None:
    async with scene(1) as at:
        at.enqueue(*names(100))
        await quiet()
        (worker,) = at.pool.all
        worker.says(FetchProgress(0, 3, []))
        await trio.sleep(1.5 * PERIOD_S)
        assert at.dispatcher.streams == at.pool.limits.streams == STREAMS_FIRST // 2


async def test_the_bandwidth_changes_at_once() -> None:
    async with scene(2) as at:
        at.enqueue("a", "b")
        await quiet()
        at.dispatcher.bytes_per_s = 5000
        assert (at.dispatcher.bytes_per_s, at.pool.limits.bytes_per_s) == (5000, 2500)
        at.pool.all[0].fetched()
        await quiet()
        assert at.pool.limits.bytes_per_s == 5000, "one is at work"
