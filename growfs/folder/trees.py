"""The generations of a folder on the disk: trees of links to cached files, made alike to what a generation shows.

They are hard links. Where there can be none, because the file system has none or is not that of the cache, they are
symbolic.

Nothing here decides which generation begins or ends; `folder_engine` does. Functions that walk a tree run on threads: a
link costs some 20 us, its removal 10.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from pyroaring import BitMap64

from growfs import disk
from growfs.cache.schema import DirectoryPaths, Query
from growfs.errors import GrowfsError
from growfs.folder.layout import CURRENT, GENERATIONS, LINK, cache_of, number_of
from growfs.rotation.rules import Hold

SPARE = ".spare"
"""The tree of a generation that has ended. The next generation is made from it, with the links that it lacks."""


@dataclass(eq=False, slots=True)
class Tree:
    """A generation on the disk."""

    number: int
    path: Path
    hold: Hold
    """Of all that it shows."""
    began_at: float
    """In seconds of trio's clock."""
    is_claimed: bool = False
    """A process has said that it reads there."""
    opens: int = 0
    """How many were counted."""
    unused_at: float = 0.0
    """When to look again for processes that have something open there."""


def check_folder(folder: Path, cache_dir: Path) -> None:
    """Raise GrowfsError if growfs cannot fill this folder. Creates it, and changes nothing else."""
    try:
        disk.make_folder("FOLDER", folder)
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
        disk.make_folder("FOLDER", cache_dir)
        has_hard_links(folder, cache_dir)
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder}: {error.strerror}; name a folder that you can write to"
        ) from None
    if names and cache_of(folder) is None:
        raise GrowfsError(f"{folder}: is not empty, and growfs did not fill it; name an empty folder")


def has_hard_links(folder: Path, cache: Path) -> bool:
    """Whether a file of a cache can have a second name in the folder. Raises OSError where not even symbolic links can
    be made there."""
    source, target = cache / f".link-{os.getpid()}", folder / f".link-{os.getpid()}"
    disk.write_text("FOLDER", source, "")
    try:
        disk.link("FOLDER", source, target)
    except OSError:
        disk.symlink("FOLDER", str(source), target)
        return False
    finally:
        disk.unlink("FOLDER", source)
        disk.unlink("FOLDER", target)
    return True


def claim(folder: Path, cache: Path) -> int:
    """A descriptor with the lock on a folder that is to be filled from a cache: one daemon fills it, from one cache.

    Raises GrowfsError if another one does; what there is stays as it is.
    """
    lock = locked_alone(folder)
    if lock is None:
        raise GrowfsError(f"{folder}: another growfs fills it; end that first: growfs stop {folder}")
    known = cache_of(folder)
    if known and known.exists() and not known.samefile(cache):
        os.close(lock)
        raise GrowfsError(f"{folder}: is filled from another cache, {known}; name another folder, or remove this one")
    return lock


def prepare(folder: Path, cache: Path) -> None:
    """Make what is below a folder before its first generation."""
    disk.symlink("FOLDER", str(cache), folder / LINK)  # first: it makes the folder one of growfs
    disk.make_folder("FOLDER", folder / GENERATIONS)


def existing(folder: Path) -> Iterator[Path]:
    """The trees of earlier daemons, oldest first. What such a daemon left unfinished is removed."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder / GENERATIONS)
        for name in names:
            if not name.isdigit():
                disk.remove_tree("GENERATION", folder / GENERATIONS / name)
        for name in sorted(filter(str.isdigit, names), key=int):
            yield folder / GENERATIONS / name


def place(folder: Path, number: int) -> Path:
    """Where the tree of a generation is."""
    return folder / GENERATIONS / f"{number:04}"


def publish(folder: Path, tree: Path) -> None:
    """Make a tree the current one, for readers from one moment to the next (rename(2))."""
    disk.symlink("CURRENT", f"{GENERATIONS}/{tree.name}", folder / CURRENT)


def current_number(folder: Path) -> int:
    """The number of the generation that the folder shows; 0 where there is none."""
    try:
        return number_of(Path(os.readlink(folder / CURRENT)))
    except (OSError, ValueError):
        return 0


# What a tree holds.


def shown_files(hold: Hold, ask: Query) -> Iterator[tuple[int, str, list[str]]]:
    """The files that a generation shows: (id of a directory, its path, the names in it), for each directory."""
    rows = ask(
        "SELECT r.parent, n.name FROM resident r JOIN node n USING (id) WHERE r.suffix IS NOT NULL AND r.seq <= ?"
        " AND (r.delisted IS NULL OR r.delisted > ?) ORDER BY r.parent",
        hold.last_seq, hold.generation,
    )  # fmt: skip
    paths = DirectoryPaths()
    for parent, group in itertools.groupby(rows, key=itemgetter(0)):
        yield parent, paths.of(ask, parent), [name for _, name in group]


def make_alike(
    tree: Path,
    files: Path,
    wanted: Iterable[tuple[int, str, list[str]]],
    link: Callable[[str, Path, Path], bool] = disk.link,
) -> dict[int, Path]:
    """Link what is wanted, as `shown_files` gives it, and unlink all else; returns the directories by id.

    What was evicted meanwhile is left out. link: makes the links.
    """
    disk.make_folder("GENERATION", tree)
    was_empty = not os.listdir(tree)
    folders = {}
    for id, path, names in wanted:
        folder, source = tree / path, files / path
        disk.make_folder("GENERATION", folder)
        folders[id] = folder
        with os.scandir(folder) as entries:
            there = {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}
        for name in there.difference(names):
            disk.unlink("GENERATION", folder / name)
        for name in names:
            if name not in there:
                link("GENERATION", source / name, folder / name)
    if not was_empty:
        _keep_only(tree, {*folders.values()})
    return folders


def _keep_only(tree: Path, folders: Container[Path]) -> None:
    """Remove the files of all other folders, and the folders that are then empty."""
    for root, _, names in os.walk(tree, topdown=False):
        folder = Path(root)
        if folder not in folders:
            for name in names:
                disk.unlink("GENERATION", folder / name)
            disk.prune_folders("GENERATION", folder, tree)


def keep_inodes(tree: Path, inodes: BitMap64) -> None:
    """Remove the files of a tree that are not cached any more. inodes: of the cached files."""
    for root, _, _ in os.walk(tree, topdown=False):
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) and _inode_of(entry) not in inodes:
                    disk.unlink("GENERATION", Path(entry.path))
        disk.prune_folders("GENERATION", Path(root), tree)


def _inode_of(entry: os.DirEntry[str]) -> int:
    """The inode of a linked file; 0 where a symbolic link leads nowhere."""
    if not entry.is_symlink():
        return entry.inode()
    try:
        return entry.stat().st_ino
    except FileNotFoundError:
        return 0


# Who uses a tree.


def locked_alone(folder: Path) -> int | None:
    """A descriptor with the lock of a folder that no other process has locked, to be closed; None if one has.

    A process that reads a tree has a shared lock on it (flock(2)), which the kernel ends with it, however it ends.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(tree: Path) -> bool:
    """Whether a process has said that it reads there."""
    fd = locked_alone(tree)
    if fd is None:
        return True
    os.close(fd)
    return False
