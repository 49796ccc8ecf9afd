"""Makes a daemon drivable, in its own process: its clock can be moved, and it says when it has nothing left to do."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio._core._run
from trio.testing import wait_all_tasks_blocked

from growfs.daemon import control, wiring
from growfs.rotation import generations, readers, turnover
from growfs.workers import pool, worker
from growfs.workers.messages import FetchFiles, FetchProgress, ListRemote

POLL_S = 0.001
QUIET_S = 0.002
"""A daemon to which nothing happens for so long is idle: the kernel may still bring what a reader has done."""


class Clock(trio._core._run.SystemClock):
    """The time of the system until it is stopped; from then on, what is added."""

    stopped_at: float | None = None
    added_s = 0.0

    def current_time(self) -> float:
        return (super().current_time() if self.stopped_at is None else self.stopped_at) + self.added_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return super().deadline_to_sleep_time(deadline) if self.stopped_at is None else math.inf


class Busy:
    """How much is under way outside of the loop: on threads, and in workers."""

    def __init__(self, hangs: Path) -> None:
        self._hangs = hangs
        self._calls = self._listings = self._files = 0

    def __bool__(self) -> bool:
        return bool(self._calls or self._files or (self._listings and not self._hangs.exists()))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """An asynchronous function, counted while it runs."""

        async def counting(*arguments: Any, **named: Any) -> Any:
            is_listing = any(isinstance(argument, ListRemote) for argument in arguments)
            self._listings += is_listing
            self._calls += not is_listing
            try:
                return await function(*arguments, **named)
            finally:
                self._listings -= is_listing
                self._calls -= not is_listing

        return counting

    def sent(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Channel.send, with the files counted that are to be fetched."""

        async def send(channel: pool.Channel, message: Any) -> None:
            if isinstance(message, FetchFiles):
                self._files += len(message.files)
            await function(channel, message)

        return send

    def received(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Channel.receive, with the files counted that were fetched."""

        async def receive(channel: pool.Channel) -> Any:
            message = await function(channel)
            if isinstance(message, FetchProgress):
                self._files -= len(message.files)
            return message

        return receive

    async def wait(self, quiet_s: float = 0.0) -> None:
        """Wait until there is nothing left to do. quiet_s: for at least so long."""
        await wait_all_tasks_blocked(quiet_s)
        while self:
            time.sleep(POLL_S)  # noqa: ASYNC251 - the clock of the loop stands still
            await wait_all_tasks_blocked(quiet_s)


def install(hangs: str) -> None:
    """Make the daemon drivable, if this process becomes one; listings wait while there is a file `hangs`."""
    busy = Busy(Path(hangs))

    async def idle(seconds: float, steps: int, step_s: float) -> AsyncIterator[None]:
        Clock.stopped_at = Clock.stopped_at or trio.current_time()
        await busy.wait(QUIET_S)
        for jump_s in [seconds, *[step_s] * steps]:
            Clock.added_s += jump_s
            await busy.wait()
        yield None

    async def go_on() -> AsyncIterator[None]:
        Clock.stopped_at = None
        yield None

    class Control(control.Control):
        def __init__(self, folder: Path, commands: Iterable[control.Command]) -> None:
            super().__init__(folder, [*commands, idle, go_on])

    handle = worker._handle

    def handle_late(spec: Any, request: Any, send: Any) -> Any:
        while isinstance(request, ListRemote) and os.path.exists(hangs):
            time.sleep(POLL_S)
        return handle(spec, request, send)

    trio._core._run.SystemClock = Clock  # type: ignore[misc]
    vars(readers)["time"] = SimpleNamespace(monotonic=trio.current_time)
    vars(wiring)["Control"] = Control
    vars(turnover)["keeps_last"] = vars(generations)["keeps_last"] = lambda *_: True
    worker._handle = handle_late
    trio.to_thread.run_sync = busy.counted(trio.to_thread.run_sync)  # type: ignore[assignment]
    pool.Channel.call = busy.counted(pool.Channel.call)  # type: ignore[method-assign]
    pool.Channel.send = busy.sent(pool.Channel.send)  # type: ignore[method-assign]
    pool.Channel.receive = busy.received(pool.Channel.receive)  # type: ignore[method-assign]
