"""The files of .growfs/, whose content is rendered when they are opened.

Owns their node ids, their open handles and their contents. Later opens see later content, and an open file does not
change. Readers that open a large file at about the same time share one content, in an unnamed temporary file. Contents
of small files are in memory, and so are those of large ones while the disk is full: users read some of them to find out
why, and training lists its files from others.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import trio

from growfs.errors import TooManyOpen
from growfs.rotation.rules import Generation
from growfs.syscalls import memfd_create
from growfs.vfs.attributes import FOLDER_NAME, Attributes, Entry

FOLDER_ID = 2
"""Node id of the folder."""
HANDLES_FROM = 1 << 62
"""Handles of virtual files start here, far above those of cached files."""
CONTENTS_MAX = 128
"""Contents open at a time. Each takes a descriptor, and the daemon needs some for itself."""
SHARED_CONTENTS_MAX = 8
"""Contents of one large file open at a time: with a million files, each takes about 100 MB of disk."""
SHARED_S = 1.0
"""For this long after it was rendered, an open content of a large file is shared with readers that open the file."""


BeginListing = Callable[[], Awaitable[Generation]]
"""Begins a generation, if that is due, and returns the one to show."""


class VirtualFile(NamedTuple):
    """A file of .growfs/."""

    name: str
    render: Callable[[IO[bytes], Generation | None], Awaitable[None]]
    """Writes the content."""
    needs_generation: bool = False
    """Whether `render` gets the generation that the opener sees; opening such a file counts as a listing."""
    shared: bool = False
    """Whether it is large, and is kept on disk if that has room, for several readers. Otherwise the content is in
    memory."""


class Names(Protocol):
    """Names in .growfs/ that come and go: of generations, or of passes. Below some of them are trees of the mount."""

    @property
    def own(self) -> Sequence[int]:
        """The node ids of its folders and files, without the bits that say which generation or pass they are of."""

    def in_folder(self, position: int) -> list[Entry]:
        """The entries of .growfs/, after a position."""

    def lookup(self, parent: int, name: str) -> Attributes:
        """The attributes of a name in one of its folders. Raises NoSuchName."""

    def entries(self, id: int, position: int) -> list[Entry]:
        """The entries of one of its folders, after a position. Raises Stale."""

    def attributes(self, id: int) -> Attributes:
        """The attributes of a folder or file."""

    def file(self, id: int) -> tuple[VirtualFile, BeginListing | None]:
        """A file, and what begins the generation that it needs. Raises Stale."""

    def generation(self, id: int) -> Generation | None:
        """The generation in whose tree a directory is; None if it has to begin first. Raises Stale."""

    async def begin(self, id: int) -> Generation:
        """Begin that generation. Raises GrowfsError if it cannot begin."""

    def all_bits(self) -> list[int]:
        """The bits that ids have in each tree that can be listed."""


@dataclass(eq=False, slots=True)
class _Content:
    """The content rendered for a generation, and the number of its handles. rendered_at: in trio's time."""

    file: VirtualFile
    generation: int | None
    out: IO[bytes] = field(init=False)
    handles: int = 1
    rendered_at: float | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class VirtualFolder:
    """Owns the open contents. scratch: the folder for the temporary files."""

    def __init__(self, files: Iterable[VirtualFile], scratch: Path) -> None:
        self._files = dict(enumerate(files, 8))  # ids before are of the names of generations and passes
        self._scratch = scratch
        self._contents: list[_Content] = []  # in the order begun
        self._open: dict[int, _Content] = {}
        self._handles = itertools.count(HANDLES_FROM)

    def get(self, id: int) -> VirtualFile | None:
        """The file with that node id."""
        return self._files.get(id)

    def attributes(self, id: int) -> Attributes:
        """The attributes of a file. The size is unknown until it is opened, and given as 0."""
        return Attributes(id, False, 0, time.time_ns(), 0.0)

    def entries(self, position: int) -> list[Entry]:
        """The entries of the folder's listing after a position."""
        now_ns = time.time_ns()
        return [Entry(id, file.name, 0, 0, now_ns, id) for id, file in self._files.items() if id > position]

    async def open(self, file: VirtualFile, begin_listing: BeginListing | None = None) -> int:
        """Render a file, or share an earlier rendering; returns the handle of the content. Raises TooManyOpen.

        begin_listing: called for a file that needs a generation.
        """
        generation = await begin_listing() if file.needs_generation and begin_listing else None
        number = generation.number if generation else None
        while content := self._shareable(file, number):
            content.handles += 1
            try:
                await content.ended.wait()
            except BaseException:
                self._drop(content)
                raise
            if content in self._contents:
                return self._handle(content)
            # Otherwise it could not be rendered. This opener tries again, and gets its own error.
        return self._handle(await self._render(file, generation))

    def _shareable(self, file: VirtualFile, generation: int | None) -> _Content | None:
        """The last content of a large file, if it is recent, or if there are too many to render another. A small one
        says the same of a generation at any time.
        """
        if file.needs_generation and not file.shared:
            same = (each for each in self._contents if each.file is file and each.generation == generation)
            return next(same, None)
        contents = [content for content in self._contents if content.file is file] if file.shared else []
        if not contents:
            return None
        last = contents[-1]
        is_recent = last.rendered_at is None or trio.current_time() < last.rendered_at + SHARED_S
        if last.generation == generation and (is_recent or len(contents) >= SHARED_CONTENTS_MAX):
            return last
        if len(contents) >= SHARED_CONTENTS_MAX:
            raise TooManyOpen(f"{len(contents)} versions of {FOLDER_NAME}/{file.name} are open")
        return None

    async def _render(self, file: VirtualFile, generation: Generation | None) -> _Content:
        if len(self._contents) >= CONTENTS_MAX:
            raise TooManyOpen(f"{len(self._contents)} files of {FOLDER_NAME}/ are open")
        content = _Content(file, generation.number if generation else None)
        self._contents.append(content)
        try:
            try:
                content.out = await self._written(file, generation, on_disk=file.shared)
            except OSError:
                if not file.shared:
                    raise
                content.out = await self._written(file, generation, on_disk=False)
            content.rendered_at = trio.current_time()
        except BaseException:
            self._contents.remove(content)
            raise
        finally:
            content.ended.set()
        return content

    async def _written(self, file: VirtualFile, generation: Generation | None, on_disk: bool) -> IO[bytes]:
        """An unnamed file with the content."""
        in_memory = 0 if on_disk else memfd_create(file.name)
        out = os.fdopen(in_memory, "w+b") if in_memory else tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115
        try:
            await file.render(out, generation)
            out.flush()
        except BaseException:
            out.close()
            raise
        return out

    def _handle(self, content: _Content) -> int:
        handle = next(self._handles)
        self._open[handle] = content
        return handle

    def _drop(self, content: _Content) -> None:
        """Remove the content with its last handle."""
        content.handles -= 1
        if not content.handles:
            self._contents.remove(content)
            content.out.close()

    @staticmethod
    def has_handle(handle: int) -> bool:
        """Whether a file handle is a virtual file's."""
        return handle >= HANDLES_FROM

    def content(self, handle: int) -> tuple[int, int]:
        """(file descriptor of the content, its size in bytes)."""
        out = self._open[handle].out
        return out.fileno(), out.tell()

    def close(self, handle: int) -> None:
        """Close a handle of a content."""
        self._drop(self._open.pop(handle))
