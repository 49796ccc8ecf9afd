"""The generations of a folder on disk: trees of links to cached files, made to match a generation.

They are hard links. If the file system has none, or is not that of the cache, they are symbolic. No link is followed
on the way to a tree or within one.

Nothing here decides which generation begins or ends; `folder_engine` does. Functions that walk a tree run on threads:
making a link takes some 20 us, removing it 10.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from growfs import disk, trust
from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import open_cache_dir
from growfs.cache.schema import DirectoryPaths, Query
from growfs.errors import GrowfsError
from growfs.extensions.fill.front_end import LINK, find
from growfs.rotation.rules import Generation
from growfs.trust import OpenFolder
from growfs.vfs.attributes import CURRENT, GENERATIONS, PASSES

REMEDY = "choose another folder"


@dataclass(eq=False, slots=True)
class Tree:
    """A generation on disk."""

    path: Path
    """For this process alone: see `OpenFolder.here`."""
    generation: Generation
    """What it shows; what it lists is unknown if an earlier daemon made it."""
    is_claimed: bool = False
    """Whether a process has announced that it reads there."""
    opens: int = 0
    """The number of counted opens."""
    unused_at: float = 0.0
    """When to check again for processes that have files open there."""

    @property
    def number(self) -> int:
        """The number of its generation."""
        return self.generation.number

    @property
    def name(self) -> str | None:
        """The name of its generation besides its number."""
        return self.generation.name


def check_folder(folder: Path, cache_dir: Path) -> None:
    """Raise GrowfsError if growfs cannot fill this folder. Creates it, and changes nothing else."""
    try:
        with open_top(folder, makes=True) as top:
            names = [name for name in os.listdir(top.fd) if not name.startswith(".")]
            if names and not find(top.here):
                raise GrowfsError(f"{folder}: is not empty, and growfs did not fill it; choose an empty folder")
            with suppress(FileNotFoundError), trust.open_below(top, GENERATIONS, REMEDY):
                pass
            with open_cache_dir(cache_dir, makes=True) as cache:
                has_hard_links(top, cache.path)
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder}: {error.strerror}; choose a folder that you can write to"
        ) from None


def open_top(folder: Path, makes: bool = False) -> OpenFolder:
    """Open a folder to be filled. makes: create it, if it is missing.

    Raises GrowfsError if another user could make growfs delete and write elsewhere from there, or OSError.
    """
    return trust.open_folder(folder, REMEDY, True, trust.MADE if makes else None, names=(LINK, CURRENT))


def open_trees(top: OpenFolder, makes: bool = False) -> OpenFolder:
    """Open the folder of the trees. Raises as `open_top`."""
    return trust.open_below(top, GENERATIONS, REMEDY, trust.MADE if makes else None, deep=True)


def has_hard_links(top: OpenFolder, cache: Path) -> bool:
    """Whether a file of a cache can have a second name in the folder. Raises OSError if not even symbolic links can be
    made there."""
    source, target = cache / f".link-{os.getpid()}", top.here / f".link-{os.getpid()}"
    disk.write_text("FOLDER", source, "")
    try:
        disk.link("FOLDER", source, target)
    except OSError:
        try:
            disk.symlink("FOLDER", str(source), target)
        except OSError as error:
            error.filename = str(top.path)
            raise
        return False
    finally:
        disk.unlink("FOLDER", source)
        disk.unlink("FOLDER", target)
    return True


def claim(top: OpenFolder, cache: Path) -> None:
    """Lock a folder to be filled from a cache until its descriptor is closed: one daemon fills it, from one cache.

    Raises GrowfsError if another one does; existing contents stay as they are.
    """
    if not _lock_alone(top.fd):
        raise GrowfsError(f"{top.path}: another growfs is filling it; stop that one first: growfs stop {top.path}")
    known = find(top.here)
    if known and known.cache.exists() and not known.cache.samefile(cache):
        raise GrowfsError(
            f"{top.path}: is filled from another cache, {known.cache}; choose another folder, or remove this one"
        )


def prepare(top: OpenFolder, cache: Path, has_passes: bool) -> None:
    """Mark a folder as one of growfs, before its first generation. has_passes: generations are parts of passes."""
    disk.symlink("FOLDER", str(cache), top.here / LINK)
    disk.remove_tree("FOLDER", top.here / PASSES)  # of an earlier daemon
    if has_passes:
        os.close(trust.open_plain(PASSES, trust.MADE, below=top.fd))


def existing(trees: OpenFolder) -> Iterator[str]:
    """The names of the trees of earlier daemons, oldest first. Trees that such a daemon left unfinished are removed."""
    names = os.listdir(trees.fd)
    for name in names:
        if not name.isdigit():
            disk.remove_tree("GENERATION", trees.here / name)
    yield from sorted(filter(str.isdigit, names), key=int)


def publish(top: OpenFolder, name: str) -> None:
    """Make a tree the current one, atomically for readers (rename(2))."""
    disk.symlink("CURRENT", f"{GENERATIONS}/{name}", top.here / CURRENT)


def publish_part(top: OpenFolder, part: str, name: str) -> None:
    """Show a tree as a part of a pass, such as 3/7."""
    os.close(trust.open_plain(f"{PASSES}/{os.path.dirname(part)}", trust.MADE, below=top.fd))
    disk.symlink("FOLDER", f"../../{GENERATIONS}/{name}", top.here / PASSES / part)


def withdraw_part(top: OpenFolder, part: str) -> None:
    """Undo that."""
    with suppress(FileNotFoundError):
        passes = trust.open_plain(PASSES, trust.MADE, below=top.fd)
        disk.unlink("FOLDER", part, passes)
        disk.remove_empty("FOLDER", os.path.dirname(part), passes)
        os.close(passes)


def current_number(top: OpenFolder) -> int:
    """The number of the generation that the folder shows; 0 if there is none."""
    try:
        return int(os.path.basename(os.readlink(top.here / CURRENT)))
    except (OSError, ValueError):
        return 0


# Contents of a tree.


def shown_files(generation: Generation, ask: Query) -> Iterator[tuple[int, str, list[str]]]:
    """The files that a generation shows: (id of a directory, its path, the names in it), for each directory.

    A directory that it shows without files is among them.
    """
    rows = ask(
        "SELECT iif(n.is_dir, n.id, r.parent), iif(n.is_dir, '', n.name), r.seq"
        " FROM resident r JOIN node n USING (id) WHERE r.seq <= ? ORDER BY 1",
        generation.last_seq,
    )
    shown = ((directory, name) for directory, name, seq in rows if seq in generation.listed)
    paths = DirectoryPaths()
    for directory, group in itertools.groupby(shown, key=itemgetter(0)):
        yield directory, paths.of(ask, directory), [name for _, name in group if name]


def make_alike(
    trees: OpenFolder,
    name: str,
    wanted: Iterable[tuple[int, str, list[str]]],
    files: Path,
    target: str | None = None,
) -> dict[int, Path]:
    """Link the wanted files, from `shown_files`, and unlink all others; returns the directories by id.

    Files evicted meanwhile are left out. name: of the tree. files: the cached files. target: their path from the tree,
    if the links are symbolic.
    """
    top = trust.open_plain(name, trust.MADE, below=trees.fd)
    try:
        was_empty = not os.listdir(top)
        folders, kept = {}, set()
        for id, path, names in wanted:
            folder = trust.open_plain(path, trust.MADE, below=top)
            try:
                _make_alike(folder, names, files / path, target and _target(target, path))
            finally:
                os.close(folder)
            folders[id] = trees.here / name / path
            kept.add(path)
        if not was_empty:
            _keep_only(top, kept)
    finally:
        os.close(top)
    return folders


def _make_alike(folder: int, names: list[str], source: Path, target: str | None) -> None:
    with os.scandir(folder) as entries:
        there = {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}
    for name in there.difference(names):
        disk.unlink("GENERATION", name, folder)
    for name in names:
        if name in there:
            continue
        if target is None:
            disk.link("GENERATION", source / name, name, folder)
        else:
            disk.link_by_path("GENERATION", source / name, name, folder, f"{target}/{name}")


def _target(target: str, path: str) -> str:
    """The path of a directory of the cached files, from the same directory of a tree."""
    return os.path.normpath(os.path.join("../" * len(Path(path).parts), target, path))


def _keep_only(top: int, kept: set[str]) -> None:
    """Remove the files of all other folders, and the folders that this leaves empty. kept: relative paths."""
    for root, folders, names, fd in os.fwalk(".", topdown=False, dir_fd=top):
        path = root.removeprefix(".").removeprefix("/")
        if path not in kept:
            for name in names:
                disk.unlink("GENERATION", name, fd)
        for name in folders:
            if os.path.join(path, name) not in kept:
                disk.remove_empty("GENERATION", name, fd)


def keep_inodes(trees: OpenFolder, tree: str, inodes: BitMap64) -> None:
    """Remove the files of a tree that are no longer cached. inodes: of the cached files."""
    for _, folders, _, fd in os.fwalk(tree, topdown=False, dir_fd=trees.fd):
        with os.scandir(fd) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) and _inode_of(entry) not in inodes:
                    disk.unlink("GENERATION", entry.name, fd)
        for name in folders:
            disk.remove_empty("GENERATION", name, fd)


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
    if _lock_alone(fd):
        return fd
    os.close(fd)
    return None


def _lock_alone(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(tree: Path) -> bool:
    """Whether a process has announced that it reads there."""
    fd = locked_alone(tree)
    if fd is None:
        return True
    os.close(fd)
    return False
