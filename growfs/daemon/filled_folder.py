"""The names below a folder of `growfs fill`. Imports nothing, for programs that only read there."""

from __future__ import annotations

import os
from pathlib import Path

CURRENT = "current"
"""A symbolic link to the newest generation."""
GENERATIONS = "generations"
LINK = ".growfs"
"""A symbolic link to the cache's folder, which contains the control socket."""
DEFAULT_CACHE = ".cache"
"""The cache directory unless --cache-dir names another: hard links need the same file system."""


def cache_of(folder: Path) -> Path | None:
    """The folder of the cache that a folder is filled from; None if `growfs fill` did not make it."""
    try:
        return Path(os.readlink(folder / LINK))
    except OSError:
        return None


def newest(folder: Path) -> Path:
    """The newest generation, as a path that stays valid when the next one begins. Raises OSError."""
    return folder / os.readlink(folder / CURRENT)


def name_of(number: int) -> str:
    """The name of a generation's tree."""
    return f"{number:04}"


def number_of(tree: Path) -> int:
    """The number of a generation, from the name of its tree."""
    return int(tree.name)
