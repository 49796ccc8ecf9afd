"""Which worker fetches which file, and what happens when workers die, hang, fail or cannot be started."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from growfs.cache.catalog import Node
from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied, UsageError
from growfs.remote.client_choice import LEFT_MAX, ClientChoice
from growfs.remote.interface import NO_OTHER, Fetched, OtherSource
from growfs.remote.rate_limits import SharedLimits
from growfs.scheduler.dispatcher import (
    SILENCE_S,
    Dispatcher,
    Outcome,
    WorkerDied,
)
from growfs.scheduler.in_flight import ATTEMPTS_MAX, Download, DownloadGroup, DownloadState, Priority
from growfs.scheduler.outage import OTHERS_AGAIN_S
from growfs.scheduler.stream_count import (
    AHEAD_BYTES,
    AHEAD_COMPUTED,
    AHEAD_FILES,
    AHEAD_S,
    FIRST_REST_PERIODS,
    IN_FLIGHT_FILES,
    PERIOD_FIRST_S,
    PERIOD_S,
    REST_PERIODS,
    STREAMS_FIRST,
    STREAMS_FIRST_SMALL,
)
from growfs.workers.messages import Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, WorkerLost

SIZE = 1000


class Worker:
    """Stands in for the channel to a worker. requests: what it has yet to fetch, by path."""

    def __init__(self) -> None:
        self.requests: dict[str, FetchRequest] = {}
        self.batches: list[list[str]] = []  # the paths of each message
        self.prioritized: list[int] = []
        self.is_held = False
        self.gave_up = ""
        self.closed = False
        self._sender, self._receiver = trio.open_memory_channel[Any](1000)

    async def send(self, message: FetchFiles) -> None:
        if self.closed:
            raise WorkerLost
        self.batches.append([request.file.path for request in message.files])
        self.prioritized += message.prioritize
        self.is_held = message.is_held
        self.gave_up = message.gave_up
        self.requests |= {request.file.path: request for request in message.files}

    async def receive(self) -> Any:
        try:
            return await self._receiver.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise WorkerLost from None

    async def aclose(self) -> None:
        self.die()
        await trio.lowlevel.checkpoint()

    def die(self) -> None:
        self.closed = True
        self._sender.close()

    def report_fetched(self, *paths: str, latency_s: float = math.inf) -> None:
        """Report these files as fetched; without paths, all."""
        files: list[tuple[int, Fetched | FetchFailed]] = []
        for path in paths or tuple(self.requests):
            request = self.requests.pop(path)
            files.append((request.id, Fetched(request.file.size or 0, request.file.mtime_ns, "0")))
        bytes = sum(result.size for _, result in files if isinstance(result, Fetched))
        self._sender.send_nowait(FetchProgress(bytes, 0, files, 0, sent_at=trio.current_time(), latency_s=latency_s))

    def report(self, message: Any) -> None:
        self._sender.send_nowait(message)


class FakePool:
    """Stands in for WorkerPool. all: the workers that were spawned. spawn_error: returns what spawn raises, or None."""

    url = "s3://bucket"

    def __init__(self) -> None:
        self.limits = SharedLimits()
        self.all: list[Worker] = []
        self.spawn_error: Callable[[], GrowfsError | None] = lambda: None
        self.tries = 0

    def spawn(self) -> Worker:
        self.tries += 1
        if error := self.spawn_error():
            raise error
        self.all.append(Worker())
        return self.all[-1]

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.all if not worker.closed]


CLIENT = ClientChoice("s3fs", False, "faster than s3fs")


class SharedFiles(OtherSource):
    """Another node, which has some of the files."""

    def hosts(self, path: str) -> tuple[str, ...]:
        return ("node:7070",) if "shared" in path else ()


class DispatcherScene:
    """A dispatcher and its results. It moves downloads from state to state as the fetcher does."""

    def __init__(self, size: int, is_computed: bool, other: OtherSource) -> None:
        self.pool = FakePool()
        self.dispatcher = Dispatcher(self.pool, size, 0, is_computed, other)  # type: ignore[arg-type]
        self.dispatcher.returned.connect(self.handle_result)
        self.fetched: list[str] = []
        self.errors: dict[str, str] = {}
        self._ids = itertools.count(2)

    @property
    def files_wanted(self) -> int:
        """How many small files are enough."""
        return next(files for files in itertools.count() if self.dispatcher.has_enough(files, 0))

    def download(self, path: str, size: int | None = SIZE, urgent: bool = False) -> Download:
        node = Node(next(self._ids), 1, path, False, size, 0, "", 0, 0, None)
        return Download(node, path, f"/nowhere/{path}", DownloadGroup(), Priority.READER if urgent else Priority.DRAW)

    def enqueue(self, *paths: str, **more: Any) -> list[Download]:
        downloads = [self.download(path, **more) for path in paths]
        for download in downloads:
            self.dispatcher.enqueue(download)
        return downloads

    def handle_result(self, download: Download, outcome: Outcome) -> None:
        if isinstance(outcome, WorkerDied):
            self.handle_worker_death(download)
        elif isinstance(outcome, FetchFailed):
            download.move(DownloadState.FAILED)
            self.errors[download.path] = str(outcome.error)
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
        self.dispatcher.enqueue(download)

    async def finish(self, poison: str = "") -> None:
        """Let the workers fetch until nothing is left; each worker that has the file named poison dies."""
        await quiet()
        while workers := [worker for worker in self.pool.alive if worker.requests]:
            for worker in workers:
                if poison in worker.requests:
                    worker.die()
                else:
                    worker.report_fetched()
            await quiet()


async def quiet() -> None:
    """Return when all tasks are blocked."""
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def start_scene(
    size: int, is_computed: bool = False, other: OtherSource = NO_OTHER
) -> AsyncIterator[DispatcherScene]:
    new = DispatcherScene(size, is_computed, other)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(new.dispatcher.run)
        yield new
        nursery.cancel_scope.cancel()


def progress(bytes: int = 0, throttled: int = 0, cpu_s: float = 0) -> FetchProgress:
    return FetchProgress(bytes, throttled, [], cpu_s, sent_at=trio.current_time())


def names(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


@pytest.mark.parametrize(("files", "size"), [(2, 2), (4, 4), (3, 8)])
async def test_computed_files_are_spread_over_the_workers(files: int, size: int) -> None:
    async with start_scene(size, is_computed=True) as scene:
        scene.enqueue(*names(files))
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.all] == [1] * files


@pytest.mark.parametrize(("size", "ahead"), [(AHEAD_BYTES // 2, 2), (SIZE, AHEAD_FILES)])
async def test_downloads_go_to_one_worker_until_its_cpu_limits_it(
    size: int, ahead: int, clock: trio.testing.MockClock
) -> None:
    async with start_scene(3) as scene:
        scene.enqueue(*names(4 * ahead), size=size)
        await quiet()
        (first,) = scene.pool.all
        assert list(first.requests) == names(ahead), "in the order in which they arrived"
        streams = scene.pool.limits.streams
        first.report(progress(cpu_s=PERIOD_FIRST_S / 4))  # it starts, and waits for the link
        await trio.sleep(1.1 * PERIOD_S)
        first.report(progress(cpu_s=PERIOD_FIRST_S / 2))
        await trio.sleep(PERIOD_S)
        assert len(scene.pool.all) == 1
        first.report(progress(cpu_s=PERIOD_FIRST_S / 2 + 0.9 * PERIOD_S))
        await trio.sleep(PERIOD_S)
        assert [list(worker.requests) for worker in scene.pool.all] == [names(ahead), names(2 * ahead)[ahead:]]
        assert scene.pool.limits.streams == streams // 2, "they share the streams"


async def test_one_busy_worker_gets_no_more_beside_it_than_have_files(clock: trio.testing.MockClock) -> None:
    async with start_scene(8) as scene:
        scene.enqueue("large", size=AHEAD_BYTES)
        for period in range(10):
            await trio.sleep(PERIOD_S)
            scene.pool.all[0].report(progress(cpu_s=(period + 1) * PERIOD_S))
        scene.enqueue(*names(100), size=AHEAD_BYTES)
        await quiet()
        assert len(scene.pool.all) == 2


@pytest.mark.parametrize("urgent", [False, True])
async def test_the_last_large_file_gets_as_many_streams_as_help(urgent: bool, clock: trio.testing.MockClock) -> None:
    """But those of a miss are not limited, so their number says nothing."""
    async with start_scene(1) as scene:
        scene.enqueue("a", size=AHEAD_BYTES, urgent=urgent)
        await quiet()
        for _ in range(2 * (FIRST_REST_PERIODS + REST_PERIODS)):
            await trio.sleep(PERIOD_S)
            streams = scene.dispatcher.streams
            scene.pool.all[0].report(replace(progress(bytes=1000 * streams), streams=streams))
        if urgent:
            assert scene.dispatcher.streams == STREAMS_FIRST
        else:
            assert scene.dispatcher.streams > 2 * STREAMS_FIRST
        await scene.finish()


async def test_an_urgent_file_goes_where_it_can_hold_up_the_others() -> None:
    """Streams make way for it in their own process only."""
    async with start_scene(2) as scene:
        scene.enqueue(*names(2), size=AHEAD_BYTES)
        scene.enqueue("u", urgent=True)
        await quiet()
        (worker,) = scene.pool.all
        assert list(worker.requests) == ["u", "0000"]


async def test_computed_files_are_one_ahead_and_more_when_they_take_no_time(clock: trio.testing.MockClock) -> None:
    async with start_scene(2, is_computed=True) as scene:
        scene.enqueue(*names(100), size=None)
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.all] == [AHEAD_COMPUTED] * 2
        for _ in range(20):
            for worker in scene.pool.all:
                worker.report_fetched(*list(worker.requests)[:1])
            await quiet()
        await trio.sleep(PERIOD_S)
        await quiet()
        ahead = round(20 / PERIOD_S * AHEAD_S)
        assert [len(worker.requests) for worker in scene.pool.all] == [ahead] * 2


@pytest.mark.parametrize(("latency_s", "more"), [(PERIOD_FIRST_S / 2, 4), (PERIOD_FIRST_S / 200, 1), (math.inf, 1)])
async def test_small_files_get_more_streams_while_they_wait_for_the_store(
    latency_s: float, more: int, clock: trio.testing.MockClock
) -> None:
    async with start_scene(1) as scene:
        scene.enqueue(*names(5 * AHEAD_FILES))
        await quiet()
        (worker,) = scene.pool.all
        for _ in range(2):
            worker.report_fetched(*list(worker.requests)[: scene.dispatcher.streams], latency_s=latency_s)
            await trio.sleep(1.1 * PERIOD_FIRST_S)
        assert scene.dispatcher.streams == more * STREAMS_FIRST_SMALL


@pytest.mark.parametrize("workers", [1, 8])
async def test_more_files_are_wanted_than_workers_have(workers: int, clock: trio.testing.MockClock) -> None:
    async with start_scene(workers) as scene:
        scene.enqueue(*names(workers * AHEAD_FILES))
        await trio.sleep(PERIOD_FIRST_S / 2)
        for period in range(2 * workers):  # each further one has files for a whole period before the next one starts
            for worker in scene.pool.all:
                worker.report(progress(cpu_s=(period + 1) * PERIOD_FIRST_S))
            await trio.sleep(PERIOD_FIRST_S)
        assert len(scene.pool.all) == workers
        assert scene.files_wanted == max(IN_FLIGHT_FILES, 2 * workers * AHEAD_FILES)
        for worker in scene.pool.all:
            worker.report_fetched(*list(worker.requests))
        await trio.sleep(PERIOD_FIRST_S)
        assert scene.files_wanted == round(2 * workers * AHEAD_FILES / PERIOD_FIRST_S)


async def test_downloads_queued_again_one_by_one_keep_their_order() -> None:
    async with start_scene(1) as scene:
        for download in reversed([scene.download(name) for name in names(5)]):
            scene.dispatcher.enqueue(download)
        await quiet()
        (worker,) = scene.pool.all
        assert list(worker.requests) == names(5)


async def test_a_worker_is_sent_only_a_few_files_ahead() -> None:
    async with start_scene(1) as scene:
        scene.enqueue(*names(2 * AHEAD_FILES))
        await quiet()
        (worker,) = scene.pool.all
        assert list(worker.requests) == names(2 * AHEAD_FILES)[: max(AHEAD_FILES, 2 * STREAMS_FIRST_SMALL)]
        worker.report_fetched("0000", "0007")
        await quiet()
        assert worker.batches[-1] == names(2 * AHEAD_FILES)[AHEAD_FILES : AHEAD_FILES + 2]
        await scene.finish()
        assert sorted(scene.fetched) == names(2 * AHEAD_FILES)
        assert len(scene.pool.all) == 1


async def test_a_report_that_arrives_just_when_it_stops_is_no_error() -> None:
    """Which task runs first is random."""
    for _ in range(20):
        async with start_scene(1) as scene:
            scene.enqueue("a", "b")
            await quiet()
            scene.pool.all[0].report_fetched("a")


async def test_a_reader_moves_only_the_files_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups may have a thousand files each, and a thousand groups be queued."""
    async with start_scene(1) as scene:
        scene.enqueue(*names(2 * AHEAD_FILES))
        late = scene.enqueue("late")
        looked_at = list[Download]()

        def note(download: Download) -> bool:
            looked_at.append(download)
            return download.priority is Priority.READER

        monkeypatch.setattr(Download, "urgent", property(note))
        late[0].priority = Priority.READER
        scene.dispatcher.prioritize(late)
        assert len(looked_at) <= len(late)
        await quiet()
        assert "late" in scene.pool.all[0].requests


async def test_urgent_files_overtake_and_ignore_the_limits() -> None:
    async with start_scene(1) as scene:
        first, *_, other, last = scene.enqueue(*names(2 * AHEAD_FILES))
        await quiet()
        (worker,) = scene.pool.all
        scene.enqueue("u", urgent=True)
        await quiet()
        for download in (first, other, last):
            download.priority = Priority.READER
        scene.dispatcher.prioritize([first, other, last])
        await quiet()
        assert worker.batches[1:] == [["u"], [other.path, last.path]]
        assert all(worker.requests[path].urgent for path in ("u", other.path, last.path))
        assert worker.prioritized == [first.node.id], "the worker had it already"
        await scene.finish()
        assert len(scene.fetched) == len(set(scene.fetched)) == 2 * AHEAD_FILES + 1


async def test_the_files_of_a_large_group_overtake_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Download] = []

    def equals(download: Download, other: object) -> bool:
        compared.append(download)
        return download is other

    monkeypatch.setattr(Download, "__eq__", equals)
    async with start_scene(1) as scene:
        scene.enqueue(*names(2000))
        group = scene.enqueue(*names(1000, "group-"))
        for download in group:
            download.priority = Priority.READER
        scene.dispatcher.prioritize(group)
        assert len(compared) < len(group)
        await scene.finish()
        assert scene.fetched[:1000] == names(1000, "group-")


@pytest.mark.parametrize("size", [1, 3])
async def test_files_of_a_dead_worker_are_dispatched_again_one_at_a_time(size: int) -> None:
    async with start_scene(size) as scene:
        scene.enqueue(*names(30))
        await quiet()
        first = scene.pool.all[0]
        lost = set(first.requests)
        first.die()
        await quiet()
        begun: list[set[str]] = []
        while any(worker.requests for worker in scene.pool.alive):
            begun += [set(worker.requests) for worker in scene.pool.alive if worker.requests.keys() & lost]
            for worker in scene.pool.alive:
                if worker.requests:
                    worker.report_fetched()
            await quiet()
        assert all(len(files) == 1 for files in begun)
        assert set().union(*begun) == lost
        assert (sorted(scene.fetched), scene.errors) == (names(30), {})


async def test_the_death_of_a_worker_starts_one_more_at_a_time() -> None:
    """It may have died because there is too little memory."""
    async with start_scene(64) as scene:
        scene.enqueue(*names(AHEAD_FILES))
        await quiet()
        scene.pool.all[0].die()
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.alive] == [1, 1]
        await scene.finish()
        assert sorted(scene.fetched) == names(AHEAD_FILES)


@pytest.mark.parametrize("size", [1, 2])
async def test_a_file_that_kills_its_worker_fails_no_other_file(size: int) -> None:
    async with start_scene(size) as scene:
        scene.enqueue(*names(60))
        await scene.finish(poison="0013")
        assert scene.errors == {"0013": "its worker died"}
        assert sorted(scene.fetched) == [name for name in names(60) if name != "0013"]
        assert len([worker for worker in scene.pool.all if worker.closed]) == ATTEMPTS_MAX


async def test_a_silent_worker_is_replaced(clock: trio.testing.MockClock) -> None:
    async with start_scene(1) as scene:
        scene.enqueue("a", "b")
        await trio.sleep(STALL_S - 1)
        (silent,) = scene.pool.all
        silent.report(progress(bytes=10))
        await trio.sleep(STALL_S - 1)
        assert scene.pool.alive == [silent], "one message is enough"
        await trio.sleep(2)
        assert silent not in scene.pool.alive
        await scene.finish()
        assert (sorted(scene.fetched), scene.errors) == (["a", "b"], {})


async def test_an_idle_worker_may_be_silent(clock: trio.testing.MockClock) -> None:
    async with start_scene(1) as scene:
        scene.enqueue("a")
        await scene.finish()
        await trio.sleep(10 * STALL_S)
        scene.enqueue("b")
        await trio.sleep(STALL_S - 1)
        await scene.finish()
        assert (scene.fetched, len(scene.pool.all)) == (["a", "b"], 1)


async def test_where_no_worker_can_be_started_files_fail_with_the_error() -> None:
    async with start_scene(2) as scene:
        scene.pool.spawn_error = lambda: GrowfsError("no more processes")
        scene.enqueue("a", "b")
        scene.enqueue("c", urgent=True)
        await quiet()
        assert scene.errors == dict.fromkeys("abc", "no more processes")
        scene.pool.spawn_error = lambda: None
        scene.enqueue("d")
        await scene.finish()
        assert scene.fetched == ["d"]


async def test_where_no_further_worker_can_be_started_those_running_continue(caplog: pytest.LogCaptureFixture) -> None:
    async with start_scene(4, is_computed=True) as scene:
        scene.pool.spawn_error = lambda: GrowfsError("no more processes") if len(scene.pool.all) > 1 else None
        scene.enqueue(*names(300))
        await scene.finish()
        assert (sorted(scene.fetched), scene.errors) == (names(300), {})
        assert caplog.text.count("no more processes; continuing with 2") == 1
        assert scene.pool.tries == 3
        scene.pool.all[0].die()
        scene.pool.all[1].die()
        await quiet()
        scene.pool.spawn_error = lambda: None
        scene.enqueue("later")
        await scene.finish()
        assert scene.fetched[-1] == "later"


async def test_a_worker_that_could_not_be_started_is_started_later(clock: trio.testing.MockClock) -> None:
    async with start_scene(2, is_computed=True) as scene:
        scene.pool.spawn_error = lambda: GrowfsError("no more processes") if scene.pool.all else None
        scene.enqueue(*names(2))
        await scene.finish()
        assert len(scene.pool.all) == 1
        scene.pool.spawn_error = lambda: None
        await trio.sleep(60)
        scene.enqueue(*names(2, "later-"))
        await scene.finish()
        assert len(scene.pool.all) == 2


async def test_a_worker_that_reports_failure_is_closed_and_its_files_fail() -> None:
    async with start_scene(1) as scene:
        scene.enqueue("a", "b")
        await quiet()
        (first,) = scene.pool.all
        requests = dict(first.requests)
        first.report(Failed(UsageError("no such option")))
        first.report(
            FetchProgress(0, 0, [(requests["a"].id, Fetched(SIZE, None, "0"))], 0)
        )  # a file that it had begun to fetch
        await quiet()
        assert scene.errors == {"a": "no such option", "b": "no such option"}
        assert first.closed, "it must not go on writing where another worker fetches the same files"
        scene.enqueue("c")
        await scene.finish()
        assert scene.fetched == ["c"]


async def test_an_error_of_the_dispatcher_is_reported_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers that it had end with it."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    scene = DispatcherScene(2, True, NO_OTHER)
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.dispatcher.run)
            scene.enqueue("a", "b")
            await quiet()
            monkeypatch.setattr(Dispatcher, "_next", fail)
            scene.enqueue("c")
    assert [worker.closed for worker in scene.pool.all] == [True, True]


async def test_a_file_that_failed_in_the_queue_is_not_dispatched() -> None:
    async with start_scene(1) as scene:
        downloads = scene.enqueue(*names(AHEAD_FILES + 8))
        await quiet()
        downloads[AHEAD_FILES + 3].move(DownloadState.FAILED)
        await scene.finish()
        assert downloads[AHEAD_FILES + 3].path not in scene.fetched
        assert len(scene.fetched) == AHEAD_FILES + 7


async def test_a_worker_may_die_while_files_are_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """send fails scene once; receive fails a moment later."""

    async def broken(self: Worker, message: FetchFiles) -> None:
        self.die()
        raise WorkerLost

    async with start_scene(2) as scene:
        with monkeypatch.context() as patched:
            patched.setattr(Worker, "send", broken)
            scene.enqueue("a")
            await quiet()
        assert scene.errors == {"a": "its worker died"}, "all attempts were used"
        scene.enqueue("b")
        await scene.finish()
        assert scene.fetched == ["b"]


async def test_where_access_is_denied_nothing_is_sent_until_dispatch_resumes_in_the_same_order_with_new_workers() -> (
    None
):
    async with start_scene(2) as scene:
        downloads = scene.enqueue(*names(10))
        await quiet()
        before = scene.pool.alive
        before[0].report_fetched("0000")
        await quiet()
        scene.dispatcher.suspend(RemoteDenied("the credentials have expired"))
        before[0].report_fetched("0002")
        await quiet()
        assert (scene.pool.alive, scene.fetched) == ([], ["0000"])
        assert {download.state for download in downloads[1:]} == {DownloadState.QUEUED}
        scene.enqueue("later")
        scene.enqueue("urgent", urgent=True)
        await quiet()
        assert scene.pool.alive == []
        scene.dispatcher.resume()
        await quiet()
        (after,) = scene.pool.alive
        assert after not in before
        assert list(after.requests) == ["urgent", *names(10)[1:], "later"]
        await scene.finish()
        assert sorted(scene.fetched) == sorted([*names(10), "later", "urgent"])


async def test_while_the_remote_is_away_workers_keep_what_they_have_and_are_not_taken_for_hung(
    clock: trio.testing.MockClock,
) -> None:
    async with start_scene(1) as scene:
        scene.enqueue("a")
        await quiet()
        scene.dispatcher.suspend(RemoteBusy("cannot reach the server"))
        scene.enqueue("later")
        await quiet()
        (worker,) = scene.pool.alive
        assert worker.is_held
        await trio.sleep(3 * STALL_S)
        assert (scene.pool.alive, list(worker.requests)) == ([worker], ["a"])
        scene.dispatcher.resume()
        await quiet()
        assert (worker.is_held, list(worker.requests)) == (False, ["a", "later"])
        await trio.sleep(STALL_S + 1)
        assert worker.closed, "it hangs"
        await scene.finish()


async def test_while_the_remote_is_away_what_other_nodes_may_have_is_sent_now_and_then(
    clock: trio.testing.MockClock,
) -> None:
    async with start_scene(1, other=SharedFiles()) as scene:
        scene.dispatcher.suspend(RemoteBusy("cannot reach the server"))
        scene.enqueue("a", "shared", "b")
        await quiet()
        (worker,) = scene.pool.alive
        assert list(worker.requests) == ["shared"]
        worker.die()
        await quiet()
        assert not scene.pool.alive
        await trio.sleep(OTHERS_AGAIN_S + 1)
        (worker,) = scene.pool.alive
        assert list(worker.requests) == ["shared"]
        scene.dispatcher.resume()
        await scene.finish()
        assert scene.fetched == ["shared", "a", "b"]


async def test_when_nothing_arrives_the_remote_is_suspected_before_any_timeout(clock: trio.testing.MockClock) -> None:
    async with start_scene(1) as scene:
        reasons: list[str] = []
        scene.dispatcher.failed.connect(lambda error: reasons.append(str(error)))
        scene.enqueue("a")
        for _ in range(5):
            await trio.sleep(SILENCE_S - 2 * PERIOD_S)
            scene.pool.all[0].report(progress(bytes=10))
        assert reasons == []
        await trio.sleep(SILENCE_S + 2 * PERIOD_S)
        assert reasons == ["s3://bucket: nothing has arrived for 5 s; check the network"]
        scene.dispatcher.suspend(RemoteBusy("it is away"))
        await trio.sleep(10 * SILENCE_S)
        assert len(reasons) == 1, "that is known"
        scene.dispatcher.resume()
        await scene.finish()
        await trio.sleep(10 * SILENCE_S)
        assert len(reasons) == 1, "nothing is fetched"


async def test_a_remote_that_does_not_prove_to_be_away_is_suspected_less_often(clock: trio.testing.MockClock) -> None:
    """The only file under way may come a byte at a time, and each suspicion costs a process and a request."""
    async with start_scene(1) as scene:
        times: list[float] = []
        scene.dispatcher.failed.connect(lambda error: times.append(trio.current_time()))
        scene.enqueue("a")
        for _ in range(2):
            await trio.sleep(5 * SILENCE_S)
            assert [round(time - times[0]) for time in times] == [0, SILENCE_S, 3 * SILENCE_S]
            times.clear()
            scene.pool.all[0].report(progress(bytes=10))
            await trio.sleep(PERIOD_S)
        await scene.finish()


async def test_a_refusal_without_any_progress_is_announced() -> None:
    async with start_scene(1) as scene:
        refused: list[str] = []
        scene.dispatcher.failed.connect(lambda error: refused.append(str(error)))
        scene.enqueue("a", "b")
        await quiet()
        (worker,) = scene.pool.all
        worker.report(FetchProgress(10, 1, [], 0, RemoteBusy("busy, while others are served")))
        worker.report(FetchProgress(0, 1, [], 0, RemoteBusy("cannot reach the server")))
        await quiet()
        assert refused == ["cannot reach the server"]


async def test_when_one_worker_gives_up_to_request_files_without_the_library_all_do() -> None:
    async with start_scene(2) as scene:
        scene.enqueue("a")
        await quiet()
        (worker,) = scene.pool.alive
        assert (worker.gave_up, scene.dispatcher.client.name) == ("", "")
        worker.report(
            FetchProgress(0, 0, [], 0, library_files=LEFT_MAX, gave_up="no length", client=CLIENT.after("no length"))
        )
        await quiet()
        client = scene.dispatcher.client
        assert (client.name, client.reason) == (
            "s3fs",
            f"growfs could not request the last {LEFT_MAX} files: no length",
        )
        worker.report_fetched()
        worker.die()
        scene.enqueue("b")
        await quiet()
        (other,) = scene.pool.alive
        assert other.gave_up == "no length"
        other.report(FetchProgress(0, 0, [], 0, library_files=1, gave_up="no length", client=CLIENT))
        await quiet()
        assert (scene.dispatcher.library_files, scene.dispatcher.client) == (LEFT_MAX + 1, client)
