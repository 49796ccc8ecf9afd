"""What --exact adds to a mount: parts instead of rotation, and their names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from growfs.daemon.wiring import Feature
from growfs.extensions.exact.options import ExactOptions, position
from growfs.extensions.exact.parts import PartPlanner, Parts
from growfs.extensions.exact.pass_names import PassNames
from growfs.extensions.exact.passes import Passes
from growfs.rotation.parts import PassPosition
from growfs.rotation.reader import Reader


class ExactFeature(Feature):
    """See Feature."""

    def build(self) -> None:
        """See Feature."""
        mount, options = self.mount, self.mount.options.of(ExactOptions)
        passes = Passes(
            mount.workers, mount.database, mount.catalog, mount.store, mount.first, options.part_size,
            PassPosition(*options.start) if options.start else None,
        )  # fmt: skip
        self._parts = Parts(mount, passes)
        mount.select = lambda: self._parts
        mount.names = lambda: PassNames(self._parts, mount.readers)

    def connect(self) -> None:
        """See Feature."""
        mount, parts = self.mount, self._parts
        parts.changed.connect(mount.prefetch.invalidate_order)
        mount.generations.began.connect(parts.note_begun)
        for arrived in (mount.dispatcher.received, mount.dispatcher.received_from_other):
            arrived.connect(parts.note_received)
        mount.store.replaced.connect(lambda _: mount.catalog_sync.file_changed.notify())  # a new version has another id
        mount.usage.opened.connect(parts.note_opened)
        parts.strayed.connect(mount.catalog_sync.file_changed.notify)
        for removed in (mount.catalog_sync.removed, mount.store.replaced):
            removed.connect(parts.note_removed)
        mount.file_commands.pins_changed.connect(mount.prefetch.invalidate_order)  # a part may wait for their room
        mount.services.append(parts)
        mount.sections["exact"] = parts.status
        mount.warnings += [lambda _: parts.warnings, _warnings_of_jobs]
        del mount.setters["rotation"], mount.setters["turnover"]  # parts decide what is listed
        if mount.show:
            mount.commands += [self.part, self.describe]

    # In a filled folder, programs cannot wait for a part by opening it.

    async def part(self, number: int, part: int) -> AsyncIterator[Any]:
        """Return the path of a part of a pass, once it is cached."""
        asked = PassPosition(*position(f"{number}/{part}"))
        assert self.mount.show
        yield {"path": str(await self.mount.show(str(asked), PartPlanner(self._parts, asked)))}

    async def describe(self, number: int) -> AsyncIterator[Any]:
        """Return how many parts a pass has, and all that decides which files these have."""
        asked, _ = position(f"{number}/1")
        yield await self._parts.describe(asked)


def _warnings_of_jobs(readers: list[Reader]) -> list[str]:
    """The root shows each part once, to whoever lists."""
    jobs = {reader.job for reader in readers if reader.job.opened}
    if len(jobs) < 2:
        return []
    return [
        f"{len(jobs)} programs list the root, and each misses the parts that the others get; if they are ranks of one"
        " program, have them read .growfs/passes/PASS/PART (growfs.epoch); otherwise mount once for each"
    ]
