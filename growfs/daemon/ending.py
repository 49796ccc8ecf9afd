"""`EndingSteps`: what a daemon does as it ends, whatever has failed before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

log = logging.getLogger(__name__)


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
