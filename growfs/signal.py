"""Signals: how a component announces that something happened, without knowing who is interested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

import trio

P = ParamSpec("P")


class Signal(Generic[P]):
    """An event that occurs repeatedly. Tasks wait for the next occurrence; callbacks are called each time.

    count: how often it has occurred.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event: trio.Event | None = None
        self._callbacks: list[Callable[P, None]] = []

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Wake all tasks that are waiting, and call all callbacks."""
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None
        for callback in self._callbacks:
            callback(*args, **kwargs)

    def connect(self, callback: Callable[P, None]) -> None:
        """Call a callback from now on. It must not wait."""
        self._callbacks.append(callback)

    async def wait(self) -> None:
        """Return at the next `notify`."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
