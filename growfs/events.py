"""How a room says that something of its own has changed, without knowing who cares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

import trio

What = ParamSpec("What")


class Signal(Generic[What]):
    """Wakes every task that waits at that moment, and calls every listener, each time."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self._listeners: list[Callable[What, None]] = []

    def notify(self, *args: What.args, **kwargs: What.kwargs) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None
        for listener in self._listeners:
            listener(*args, **kwargs)

    def connect(self, listener: Callable[What, None]) -> None:
        """Have listener called from now on. It must not wait."""
        self._listeners.append(listener)

    async def wait(self) -> None:
        """Return at the next pulse."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
