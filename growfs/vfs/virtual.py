"""The files of .growfs/, whose content is rendered when they are opened.

Owns their node ids and their open handles. Each open has a content of its own, in an unnamed temporary file: later
opens see later content, and an open file does not change.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from growfs.errors import TooManyOpen
from growfs.rotation.rules import Generation
from growfs.vfs.attributes import Attributes, Entry

FOLDER_NAME = ".growfs"
FOLDER_ID = 2
"""Node id of the folder. Its files have the ids that follow."""
HANDLES_FROM = 1 << 62
"""Handles of virtual files start here, far above those of cached files."""
OPEN_MAX = 128
"""Virtual files that are open at one time. Each takes a descriptor, and the daemon needs some for itself."""


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file of .growfs/. render: writes the content, once for each open.

    needs_generation: render is given the generation that the opener sees; opening such a file counts as a listing.
    """

    name: str
    render: Callable[[IO[bytes], Generation | None], Awaitable[None]]
    needs_generation: bool = False


class VirtualFolder:
    """Owns the content of each open virtual file. scratch: the folder for the temporary files."""

    def __init__(self, files: Iterable[VirtualFile], scratch: Path) -> None:
        self._files = dict(enumerate(files, FOLDER_ID + 1))
        self._scratch = scratch
        self._open: dict[int, IO[bytes]] = {}
        self._handles = itertools.count(HANDLES_FROM)

    def get(self, id: int) -> VirtualFile | None:
        """The file with that node id."""
        return self._files.get(id)

    def find(self, name: str) -> int | None:
        """The node id of the file with that name."""
        return next((id for id, file in self._files.items() if file.name == name), None)

    def attributes(self, id: int) -> Attributes:
        """The attributes of a file. The size is unknown until it is opened, and 0 stands for that."""
        return Attributes(id, False, 0, time.time_ns(), 0.0)

    def entries(self, position: int) -> list[Entry]:
        """What a listing of the folder shows after a position."""
        now_ns = time.time_ns()
        return [Entry(id, file.name, 0, 0, now_ns, id) for id, file in self._files.items() if id > position]

    async def open(self, file: VirtualFile, begin_listing: Callable[[], Awaitable[Generation]]) -> int:
        """Render a file; returns the handle of its content. Raises TooManyOpen.

        begin_listing: called for a file that needs a generation.
        """
        if len(self._open) >= OPEN_MAX:
            raise TooManyOpen(f"{len(self._open)} files of {FOLDER_NAME}/ are open")
        generation = await begin_listing() if file.needs_generation else None
        content = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - lives as long as its handle
        handle = next(self._handles)
        self._open[handle] = content
        try:
            await file.render(content, generation)
        except BaseException:
            self.close(handle)
            raise
        content.flush()
        return handle

    @staticmethod
    def has_handle(handle: int) -> bool:
        """Whether a file handle is a virtual file's."""
        return handle >= HANDLES_FROM

    def content(self, handle: int) -> tuple[int, int]:
        """(the file descriptor of the content, its size in bytes)."""
        content = self._open[handle]
        return content.fileno(), content.tell()

    def close(self, handle: int) -> None:
        """Remove the content."""
        self._open.pop(handle).close()
