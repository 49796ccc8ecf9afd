"""The generations of a folder on disk: trees of links to cached files, made to match a generation.

They are hard links. If the file system has none, or is not that of the cache, they are symbolic.

Nothing here decides which generation begins or ends; `folder_engine` does. Functions that walk a tree run on threads:
making a link takes some 20 us, removing it 10.
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
from growfs.rotation.holds import Hold
from growfs.rotation.rules import Generation

SPARE = ".spare"
"""The tree of a generation that has ended. It is reused for the next generation, which only adds missing links."""


@dataclass(eq=False, slots=True)
class Tree:
    """A generation on disk."""

    number: int
    path: Path
    hold: Hold
    """A hold on all of its files."""
    began_at: float
    """In seconds, on trio's clock."""
    is_claimed: bool = False
    """Whether a process has announced that it reads there."""
    opens: int = 0
    """The number of counted opens."""
    unused_at: float = 0.0
    """When to check again for processes that have files open there."""


def check_folder(folder: Path, cache_dir: Path) -> None:
    """Raise GrowfsError if growfs cannot fill this folder. Creates it, and changes nothing else."""
    try:
        disk.make_folder("FOLDER", folder)
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
        disk.make_folder("FOLDER", cache_dir)
        has_hard_links(folder, cache_dir)
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder}: {error.strerror}; choose a folder that you can write to"
        ) from None
    if names and cache_of(folder) is None:
        raise GrowfsError(f"{folder}: is not empty, and growfs did not fill it; choose an empty folder")


def has_hard_links(folder: Path, cache: Path) -> bool:
    """Whether a file of a cache can have a second name in the folder. Raises OSError if not even symbolic links can be
    made there."""
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
    """A descriptor with the lock on a folder to be filled from a cache: one daemon fills it, from one cache.

    Raises GrowfsError if another one does; existing contents stay as they are.
    """
    lock = locked_alone(folder)
    if lock is None:
        raise GrowfsError(f"{folder}: another growfs fills it; end that first: growfs stop {folder}")
    known = cache_of(folder)
    if known and known.exists() and not known.samefile(cache):
        os.close(lock)
        raise GrowfsError(f"{folder}: is filled from another cache, {known}; choose another folder, or remove this one")
    return lock


def prepare(folder: Path, cache: Path) -> None:
    """Create the contents of a folder before its first generation."""
    disk.symlink("FOLDER", str(cache), folder / LINK)  # first: it marks the folder as one of growfs
    disk.make_folder("FOLDER", folder / GENERATIONS)


def existing(folder: Path) -> Iterator[Path]:
    """The trees of earlier daemons, oldest first. Trees that such a daemon left unfinished are removed."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder / GENERATIONS)
        for name in names:
            if not name.isdigit():
                disk.remove_tree("GENERATION", folder / GENERATIONS / name)
        for name in sorted(filter(str.isdigit, names), key=int):
            yield folder / GENERATIONS / name


def place(folder: Path, number: int) -> Path:
    """The path of a generation's tree."""
    return folder / GENERATIONS / f"{number:04}"


def publish(folder: Path, tree: Path) -> None:
    """Make a tree the current one, atomically for readers (rename(2))."""
    disk.symlink("CURRENT", f"{GENERATIONS}/{tree.name}", folder / CURRENT)


def current_number(folder: Path) -> int:
    """The number of the generation that the folder shows; 0 if there is none."""
    try:
        return number_of(Path(os.readlink(folder / CURRENT)))
    except (OSError, ValueError):
        return 0


# Contents of a tree.


def shown_files(generation: Generation, ask: Query) -> Iterator[tuple[int, str, list[str]]]:
    """The files that a generation shows: (id of a directory, its path, the names in it), for each directory.

    A directory that it shows without files is among them.
    """
    rows = ask(
        "SELECT iif(n.is_dir, n.id, r.parent), iif(n.is_dir, '', n.name), r.seq, r.delisted"
        " FROM resident r JOIN node n USING (id) WHERE r.seq <= ? ORDER BY 1",
        generation.last_seq,
    )
    shown = ((directory, name) for directory, name, *row in rows if generation.shows(*row))
    paths = DirectoryPaths()
    for directory, group in itertools.groupby(shown, key=itemgetter(0)):
        yield directory, paths.of(ask, directory), [name for _, name in group if name]


def make_alike(
    tree: Path,
    files: Path,
    wanted: Iterable[tuple[int, str, list[str]]],
    link: Callable[[str, Path, Path], bool] = disk.link,
) -> dict[int, Path]:
    """Link the wanted files, from `shown_files`, and unlink all others; returns the directories by id.

    Files evicted meanwhile are left out. link: makes the links.
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
    """Remove the files of all other folders, and the folders that this leaves empty."""
    for root, _, names in os.walk(tree, topdown=False):
        folder = Path(root)
        if folder not in folders:
            for name in names:
                disk.unlink("GENERATION", folder / name)
            disk.prune_folders("GENERATION", folder, tree)


def keep_inodes(tree: Path, inodes: BitMap64) -> None:
    """Remove the files of a tree that are no longer cached. inodes: of the cached files."""
    for root, _, _ in os.walk(tree, topdown=False):
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) and _inode_of(entry) not in inodes:
                    disk.unlink("GENERATION", Path(entry.path))
        disk.prune_folders("GENERATION", Path(root), tree)


def _inode_of(entry: os.DirEntry[str]) -> int:
    """The inode of a linked file; 0 if a symbolic link is dangling."""
    if not entry.is_symlink():
        return entry.inode()
    try:
        return entry.stat().st_ino
    except FileNotFoundError:
        return 0


# Users of a tree.


def locked_alone(folder: Path) -> int | None:
    """A descriptor with the lock of a folder, to be closed; None if another process has locked the folder.

    A process that reads a tree has a shared lock on it (flock(2)), which the kernel releases when the process ends in
    any way.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(tree: Path) -> bool:
    """Whether a process has announced that it reads there."""
    fd = locked_alone(tree)
    if fd is None:
        return True
    os.close(fd)
    return False
