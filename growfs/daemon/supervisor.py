"""Keeps the services of a mount running, and ends a mount in order.

Once `mount` has returned, an error in one of them must not end the mount, and with it the files that readers list and
open. The service is run again, after a pause that grows. Only the engine, when it is unmounted, and a signal end the
daemon.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import trio

from growfs.cache.database import DISK_ERRORS
from growfs.errors import GrowfsError

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup

log = logging.getLogger(__name__)

RETRY_S, RETRY_S_MAX = 5.0, 60.0
"""The pause before a service is run again; doubled after each failure that soon follows."""


class Service(Protocol):
    """A component with its own task. After an error, `run` is called again."""

    async def run(self) -> None: ...


class Supervisor:
    """Owns the set of services that have failed lately. is_ready: returns whether `mount` has returned."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._failures: dict[str, tuple[float, BaseException]] = {}

    @property
    def warnings(self) -> list[str]:
        """The services that have failed lately, and why."""
        now = trio.current_time()
        return [
            f"a part of growfs ({name}) failed and will be retried: {error}; see the log"
            for name, (at, error) in self._failures.items()
            if now - at < 2 * RETRY_S_MAX
        ]

    async def keep_running(self, service: Service) -> None:
        """Run a service until it returns, or fails before the mount is ready."""
        name, pause_s = type(service).__name__, RETRY_S
        while True:
            began = trio.current_time()
            try:
                await service.run()
                return
            except Exception as error:
                if not self._is_ready():
                    raise
                failure = cause(error) if isinstance(error, ExceptionGroup) else error
            now = trio.current_time()
            if now - began > RETRY_S_MAX:
                pause_s = RETRY_S
            self._failures[name] = now, failure
            if isinstance(failure, DISK_ERRORS):
                log.warning("%s, trying again in %g s", failure, pause_s)
            else:
                log.error("%s failed, a bug in growfs; trying again in %g s", name, pause_s, exc_info=failure)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)


class EndingSteps(ExitStack):
    """Owns the steps that leave the cache in order. At the end of the block, they run, the last one added first.

    Each runs even if the block or a step has failed. The first error is raised, and later ones are logged.
    """

    def add(self, step: Callable[[], object]) -> None:
        """Add a step, which runs before those added earlier."""

        def run(_: object, earlier: BaseException | None, __: object) -> None:
            try:
                step()
            except Exception as error:
                if earlier is None:
                    raise
                log.error("while ending after an error: %s", error, exc_info=error)

        self.push(run)


def cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report: the first GrowfsError in the group, otherwise the first error."""
    error: BaseException = group.subgroup(GrowfsError) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
