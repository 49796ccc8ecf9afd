"""Which worker fetches which file, and what happens when workers die, hang, fail or cannot be started."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
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
from growfs.scheduler.dispatcher import SILENCE_S, Dispatcher, Outcome, WorkerDied
from growfs.scheduler.in_flight import ATTEMPTS_MAX, Download, DownloadGroup, DownloadState, Priority
from growfs.scheduler.outage import OTHERS_AGAIN_S
from growfs.scheduler.stream_count import PERIOD_FIRST_S, PERIOD_S, STREAMS_FIRST
from growfs.workers.messages import Failed, FetchFailed, FetchFiles, FetchProgress, FetchRequest
from growfs.workers.pool import STALL_S, WorkerLost

SIZE, LARGE = 1000, 64 << 20
MANY = 1000
"""More small files than a worker has ahead."""


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
    """Stands in for WorkerPool. all: the workers that were spawned, at most `room` of them."""

    url = "s3://bucket"

    def __init__(self) -> None:
        self.limits = SharedLimits()
        self.all: list[Worker] = []
        self.room = 1000
        self.tries = 0

    def spawn(self) -> Worker:
        self.tries += 1
        if len(self.all) >= self.room:
            raise GrowfsError("no more processes")
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


@pytest.mark.parametrize("size", [LARGE // 2, SIZE])
async def test_downloads_go_to_one_worker_until_its_cpu_limits_it(size: int, clock: trio.testing.MockClock) -> None:
    async with start_scene(3) as scene:
        scene.enqueue(*names(MANY), size=size)
        await quiet()
        (first,) = scene.pool.all
        ahead = len(first.requests)
        assert list(first.requests) == names(ahead), "in the order in which they arrived"
        assert 1 < ahead < MANY / 2
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
        first.report_fetched("0000", "0001")
        await quiet()
        assert first.batches[-1] == names(MANY)[2 * ahead : 2 * ahead + 2], "as many as it has fetched"


async def test_one_busy_worker_gets_no_more_beside_it_than_have_files(clock: trio.testing.MockClock) -> None:
    async with start_scene(8) as scene:
        scene.enqueue("large", size=LARGE)
        for period in range(10):
            await trio.sleep(PERIOD_S)
            scene.pool.all[0].report(progress(cpu_s=(period + 1) * PERIOD_S))
        scene.enqueue(*names(100), size=LARGE)
        await quiet()
        assert len(scene.pool.all) == 2


@pytest.mark.parametrize("urgent", [False, True])
async def test_the_last_large_file_gets_as_many_streams_as_help(urgent: bool, clock: trio.testing.MockClock) -> None:
    """But those of a miss are not limited, so their number says nothing."""
    async with start_scene(1) as scene:
        scene.enqueue("a", size=LARGE, urgent=urgent)
        await quiet()
        for _ in range(30):
            await trio.sleep(PERIOD_S)
            streams = scene.dispatcher.streams
            scene.pool.all[0].report(replace(progress(bytes=1000 * streams), streams=streams))
        assert (scene.dispatcher.streams == STREAMS_FIRST) is urgent
        assert (scene.dispatcher.streams > 2 * STREAMS_FIRST) is not urgent


async def test_an_urgent_file_goes_where_it_can_hold_up_the_others() -> None:
    """Streams make way for it in their own process only."""
    async with start_scene(2) as scene:
        scene.enqueue(*names(2), size=LARGE)
        scene.enqueue("u", urgent=True)
        await quiet()
        (worker,) = scene.pool.all
        assert list(worker.requests) == ["u", "0000"]


async def test_computed_files_are_spread_and_one_ahead_and_more_when_they_take_no_time(
    clock: trio.testing.MockClock,
) -> None:
    async with start_scene(8, is_computed=True) as scene:
        scene.enqueue(*names(3), size=None)
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.all] == [1] * 3
    async with start_scene(2, is_computed=True) as scene:
        scene.enqueue(*names(100), size=None)
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.all] == [2, 2]
        for _ in range(20):
            for worker in scene.pool.all:
                worker.report_fetched(*list(worker.requests)[:1])
            await quiet()
        await trio.sleep(PERIOD_S)
        await quiet()
        assert [len(worker.requests) for worker in scene.pool.all] == [20, 20], "for as long as this took"


async def test_small_files_get_more_streams_while_they_wait_for_the_store(clock: trio.testing.MockClock) -> None:
    async with start_scene(1) as scene:
        scene.enqueue(*names(MANY))
        await quiet()
        (worker,) = scene.pool.all
        streams = scene.dispatcher.streams
        for _ in range(2):
            worker.report_fetched(*list(worker.requests)[: scene.dispatcher.streams], latency_s=PERIOD_FIRST_S / 2)
            await trio.sleep(1.1 * PERIOD_FIRST_S)
        assert scene.dispatcher.streams == 4 * streams


async def test_so_many_files_are_in_flight_that_no_worker_waits_for_one_that_is_slow(
    clock: trio.testing.MockClock,
) -> None:
    """A file whose request is refused takes two seconds, and those behind it are not listed before it."""
    async with start_scene(8) as scene:
        scene.enqueue(*names(5000))
        await trio.sleep(PERIOD_FIRST_S / 2)
        for period in range(16):  # each further one has files for a whole period before the next one starts
            for worker in scene.pool.all:
                worker.report(progress(cpu_s=(period + 1) * PERIOD_FIRST_S))
            await trio.sleep(PERIOD_FIRST_S)
        ahead = sum(len(worker.requests) for worker in scene.pool.all)
        assert len(scene.pool.all) == 8
        assert not scene.dispatcher.has_enough(ahead, 0)
        assert scene.dispatcher.has_enough(3 * ahead, 0)
        for worker in scene.pool.all:
            worker.report_fetched()
        await trio.sleep(PERIOD_FIRST_S)
        assert not scene.dispatcher.has_enough(int(1.9 * ahead / PERIOD_FIRST_S), 0)
        assert scene.dispatcher.has_enough(int(2.1 * ahead / PERIOD_FIRST_S), 0)


async def test_a_report_that_arrives_just_when_it_stops_is_no_error() -> None:
    """Which task runs first is random."""
    for _ in range(20):
        async with start_scene(1) as scene:
            scene.enqueue("a", "b")
            await quiet()
            scene.pool.all[0].report_fetched("a")


async def test_urgent_files_overtake_and_ignore_the_limits() -> None:
    async with start_scene(1) as scene:
        first, *_, other, last = scene.enqueue(*names(MANY))
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
        assert len(scene.fetched) == len(set(scene.fetched)) == MANY + 1


async def test_the_files_of_a_large_group_overtake_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups may have a thousand files each, and a thousand groups be queued."""
    looked_at: list[Download] = []

    def equals(download: Download, other: object) -> bool:
        looked_at.append(download)
        return download is other

    def is_urgent(download: Download) -> bool:
        looked_at.append(download)
        return download.priority is Priority.READER

    async with start_scene(1) as scene:
        scene.enqueue(*names(MANY))
        group = scene.enqueue(*names(1000, "group-"))
        for download in group:
            download.priority = Priority.READER
        with monkeypatch.context() as patched:
            patched.setattr(Download, "__eq__", equals)
            patched.setattr(Download, "urgent", property(is_urgent))
            scene.dispatcher.prioritize(group)
        assert len(looked_at) <= len(group)
        await scene.finish()
        assert scene.fetched[:1000] == names(1000, "group-")


@pytest.mark.parametrize("size", [1, 3, 64])
async def test_files_of_a_dead_worker_are_dispatched_again_one_at_a_time(size: int) -> None:
    """By one more worker at a time: there may be too little memory."""
    async with start_scene(size) as scene:
        scene.enqueue(*names(300))
        await quiet()
        lost = {*scene.pool.all[0].requests}
        assert 1 < len(lost) < 300
        scene.pool.all[0].die()
        await quiet()
        assert len(scene.pool.alive) == min(size, 2)
        while any(worker.requests for worker in scene.pool.alive):
            for worker in scene.pool.alive:
                assert len(worker.requests) == 1 or not lost & worker.requests.keys()
                worker.report_fetched()
            await quiet()
        assert (sorted(scene.fetched), scene.errors) == (names(300), {})


@pytest.mark.parametrize("size", [1, 2])
async def test_a_file_that_kills_its_worker_fails_no_other_file(size: int) -> None:
    async with start_scene(size) as scene:
        scene.enqueue(*names(60))
        await scene.finish(poison="0013")
        assert scene.errors == {"0013": "its worker died"}
        assert sorted(scene.fetched) == [name for name in names(60) if name != "0013"]
        assert len([worker for worker in scene.pool.all if worker.closed]) == ATTEMPTS_MAX


async def test_a_silent_worker_is_replaced_if_it_has_files(clock: trio.testing.MockClock) -> None:
    async with start_scene(1) as scene:
        scene.enqueue("idle")
        await scene.finish()
        await trio.sleep(10 * STALL_S)
        scene.enqueue("a", "b")
        await trio.sleep(STALL_S - 1)
        (silent,) = scene.pool.all
        silent.report(progress(bytes=10))
        await trio.sleep(STALL_S - 1)
        assert scene.pool.alive == [silent], "one message is enough"
        await trio.sleep(2)
        assert silent not in scene.pool.alive
        await scene.finish()
        assert (sorted(scene.fetched), scene.errors) == (["a", "b", "idle"], {})


async def test_if_no_worker_can_be_started_files_fail_with_the_error() -> None:
    async with start_scene(2) as scene:
        scene.pool.room = 0
        scene.enqueue("a", "b")
        scene.enqueue("c", urgent=True)
        await quiet()
        assert scene.errors == dict.fromkeys("abc", "no more processes")
        scene.pool.room = 1
        scene.enqueue("d")
        await scene.finish()
        assert scene.fetched == ["d"]


async def test_if_no_further_worker_can_be_started_those_running_continue(
    caplog: pytest.LogCaptureFixture, clock: trio.testing.MockClock
) -> None:
    """It is tried again a minute later, or when they have died."""
    async with start_scene(4, is_computed=True) as scene:
        scene.pool.room = 2
        scene.enqueue(*names(300))
        await scene.finish()
        assert (sorted(scene.fetched), scene.errors) == (names(300), {})
        assert caplog.text.count("no more processes; continuing with 2") == 1
        assert scene.pool.tries == 3
        scene.pool.room = 4
        await trio.sleep(60)
        scene.enqueue(*names(4, "later-"))
        await scene.finish()
        assert len(scene.pool.all) == 4
        for worker in scene.pool.all:
            worker.die()
        await quiet()
        scene.pool.room = 5
        scene.enqueue("last")
        await scene.finish()
        assert scene.fetched[-1] == "last"


async def test_a_worker_that_reports_failure_is_closed_and_its_files_fail() -> None:
    async with start_scene(1) as scene:
        scene.enqueue("a", "b")
        await quiet()
        (first,) = scene.pool.all
        first.report(Failed(UsageError("no such option")))
        first.report_fetched("a")  # which it had begun to fetch
        await quiet()
        assert scene.errors == {"a": "no such option", "b": "no such option"}
        assert first.closed, "it must not go on writing while another worker fetches the same files"
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
        *_, failed, last = scene.enqueue(*names(MANY))
        await quiet()
        failed.move(DownloadState.FAILED)
        await scene.finish()
        assert (failed.path in scene.fetched, last.path in scene.fetched) == (False, True)
        assert len(scene.fetched) == MANY - 1


async def test_a_worker_may_die_while_files_are_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """send fails at once; receive fails a moment later."""

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


async def test_when_access_is_denied_nothing_is_sent_until_new_workers_resume_in_the_same_order() -> None:
    async with start_scene(2) as scene:
        downloads = scene.enqueue(*names(MANY))
        await quiet()
        (before,) = scene.pool.alive
        before.report_fetched("0000")
        await quiet()
        scene.dispatcher.suspend(RemoteDenied("the credentials have expired"))
        before.report_fetched("0002")
        await quiet()
        assert (scene.pool.alive, scene.fetched) == ([], ["0000"])
        assert {download.state for download in downloads[1:]} == {DownloadState.QUEUED}
        scene.enqueue("urgent", urgent=True)
        await quiet()
        assert scene.pool.alive == []
        scene.dispatcher.resume()
        await quiet()
        (after,) = scene.pool.alive
        assert list(after.requests) == ["urgent", *names(len(after.requests))[1:]]
        await scene.finish()
        assert sorted(scene.fetched) == [*names(MANY), "urgent"]


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


async def test_when_nothing_arrives_the_remote_is_suspected_ever_less_often(clock: trio.testing.MockClock) -> None:
    """The only file under way may come a byte at a time, and each suspicion costs a process and a request."""
    async with start_scene(1) as scene:
        times: list[float] = []
        reasons = set[str]()
        scene.dispatcher.failed.connect(lambda _: times.append(trio.current_time()))
        scene.dispatcher.failed.connect(lambda error: reasons.add(str(error)))
        scene.enqueue("a")
        for _ in range(5):
            await trio.sleep(SILENCE_S - 2 * PERIOD_S)
            scene.pool.all[0].report(progress(bytes=10))
        assert times == []
        for _ in range(2):
            await trio.sleep(5 * SILENCE_S)
            assert [round(time - times[0]) for time in times] == [0, SILENCE_S, 3 * SILENCE_S]
            times.clear()
            scene.pool.all[0].report(progress(bytes=10))
            await trio.sleep(PERIOD_S)
        assert "s3://bucket: nothing has arrived for 5 s; check the network" in reasons
        scene.dispatcher.suspend(RemoteBusy("it is away"))
        await trio.sleep(10 * SILENCE_S)
        scene.dispatcher.resume()
        await scene.finish()
        await trio.sleep(10 * SILENCE_S)
        assert times == [], "it is known to be away, and then nothing is fetched"


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
