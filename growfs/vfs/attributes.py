"""The results of stat(2), statfs(2) and readdir(3), and how long the kernel may cache them; growfs's own names.

Imports little, for programs that only read a mount.
"""

from __future__ import annotations

import stat
from typing import NamedTuple

from growfs.cache import NODES_FROM
from growfs.remote.names import RESERVED

FOLDER_NAME = RESERVED
"""The folder of growfs's own files in a mount."""
GENERATIONS, CURRENT = "generations", "current"
"""The folder there with the generations, and the link to the newest one; without a mount, both are in the front end."""
PASSES = "passes"
"""The folder with the parts of passes (--exact), in the same place."""
PARTS = "parts.json"
"""The file in the folder of a pass that says how many parts it has, and what decides their files."""
GENERATION_VARIABLE = "GROWFS_GENERATION"
"""The environment variable with the path of the generation, for the command of `growfs next`."""

FILE_TIMEOUT_S = 86_400.0
"""How long the kernel may cache a file's name and attributes. They change only with the node id; the kernel is then
notified.
"""
DIRECTORY_TIMEOUT_S = 1.0
"""The same for a directory. The kernel checks each directory of a path, so with 0 it would ask at every open."""

LINK_BIT = 1 << 41
"""Set in the id of a link to a cached file; the rest is the file's own id, which applies while it is not a link."""

GENERATION_SHIFT = 42
"""From this bit on, an id has the number of a generation if its node was found below .growfs/generations/ and is a
directory there. A directory must have an id of its own in each tree: the kernel has one name for each, so that the
working directory of a process would move. Files have the same id everywhere, so that the kernel caches each once.
"""


PASS_BIT = 1 << 62
"""Set in such an id if the node was found below .growfs/passes/; the number is then that of the part's name."""


class Attributes(NamedTuple):
    """The result of stat(2). mtime_ns: since the epoch. timeout_s: how long the kernel may cache it."""

    id: int
    is_dir: bool
    size: int
    mtime_ns: int
    timeout_s: float

    @property
    def mode(self) -> int:
        """Type and permissions: all users may read."""
        if self.id & LINK_BIT:
            return stat.S_IFLNK | 0o777
        return stat.S_IFDIR | 0o555 if self.is_dir else stat.S_IFREG | 0o444

    @property
    def blocks(self) -> int:
        """In units of 512 bytes (stat(2))."""
        return -(-self.size // 512)


class Capacity(NamedTuple):
    """The result of statfs(2), in blocks of disk.BLOCK bytes. Inodes are not limited, and not counted: `df -i`."""

    blocks: int
    free: int


class Entry(NamedTuple):
    """A name in a listing, with its attributes. position: where the listing continues after it."""

    id: int
    name: str
    is_dir: int
    size: int
    mtime_ns: int
    position: int

    @property
    def attributes(self) -> Attributes:
        """The attributes. A listed file is resident, so its size is known."""
        timeout_s = 0.0 if self.is_virtual_file else DIRECTORY_TIMEOUT_S if self.is_dir else FILE_TIMEOUT_S
        return Attributes(self.id, bool(self.is_dir), self.size, self.mtime_ns, timeout_s)

    @property
    def is_virtual_file(self) -> bool:
        """Whether it is a file of .growfs/, or `current`: each lookup may have a different result."""
        return not (self.is_dir or NODES_FROM <= self.id < 1 << GENERATION_SHIFT)
