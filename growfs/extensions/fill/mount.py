"""What growfs fill has instead of a mount: a folder with a tree for each generation."""

from __future__ import annotations

from growfs.daemon.options import MountRequest
from growfs.daemon.wiring import Feature
from growfs.extensions.fill.folder_engine import FolderEngine
from growfs.extensions.fill.trees import check_folder


class FillFeature(Feature):
    """See Feature."""

    @staticmethod
    def check(request: MountRequest) -> None:
        """See Feature."""
        check_folder(request.mountpoint, request.options.cache_dir)

    def build(self) -> None:
        """See Feature."""
        self.mount.hold = self._open_folder
        self.mount.make_engine = lambda: self._folder

    def _open_folder(self) -> FolderEngine:
        mount, has_passes = self.mount, self.mount.selection.shows_once
        mount.generations.counts_all = True  # a program that asks for a generation has read the one before
        if not (mount.options.keep_generations or has_passes):
            mount.generations.keep = 2
        self._folder = FolderEngine(
            mount.request.mountpoint, mount.database, mount.catalog, mount.store, mount.usage, mount.generations,
            has_passes,
        )  # fmt: skip
        mount.engine_reason, mount.show = self._folder.reason, self._folder.show
        mount.commands.append(self._folder.next)
        return self._folder
