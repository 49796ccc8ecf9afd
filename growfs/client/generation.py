"""The generations of a mount, or of a folder that `growfs fill` keeps filled, for a program that reads there.

A program holds its generation by having the tree open, in a folder with a shared lock (flock(2)). The kernel ends both
when the program ends. So reading in a folder does not depend on the daemon: if it is gone, the newest existing
generation serves. In a mount, everything goes through paths, which works for all users and in containers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from growfs.daemon.place import front_end_at
from growfs.errors import GrowfsError
from growfs.paths import absolute_path
from growfs.proc import become
from growfs.vfs.attributes import CURRENT, FOLDER_NAME, GENERATION_VARIABLE, GENERATIONS

ATTEMPTS = 10
"""A generation may end after it was chosen and before it is locked; then there is a newer one."""


@dataclass(frozen=True, slots=True)
class Held:
    """The generation that this process reads. lock: its descriptor."""

    tree: Path
    lock: int

    def end(self) -> None:
        """End the hold."""
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        os.close(self.lock)


_held: dict[Path, Held] = {}
"""By folder."""
_asking = threading.Lock()
"""Held while a thread asks and locks."""


def _forget() -> None:
    """In a fork, hold nothing: a worker may live longer than its parent reads the generation. The thread that asks does
    not exist there.
    """
    global _asking
    _asking = threading.Lock()
    for held in _held.values():
        os.close(held.lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def next_generation(folder: str | os.PathLike[str], number: int | None = None) -> Path:
    """See `growfs.next_generation`."""
    with _asking:
        folder = absolute_path(Path(folder)).resolve()
        return _next_generation(folder, int(_held[folder].tree.name) if folder in _held else 0, number)


@contextmanager
def hold_part(folder: Path, cache: Path, number: int, part: int) -> Iterator[None]:
    """Wait until a filled folder has a part of a pass, and hold it, unless this process holds something else
    meanwhile. Raises GrowfsError.
    """
    from growfs.daemon.control_client import call

    for _ in range(ATTEMPTS):
        tree = Path(call(cache, "part", answer_s=None, number=number, part=part)["path"])
        with _asking:
            if _hold(folder, tree):
                held = _held[folder]
                break
    else:
        raise GrowfsError(f"{folder}: its generations end before they can be locked; see growfs status {folder}")
    try:
        yield
    finally:
        if _held.get(folder) is held:
            _held.pop(folder).end()


def _next_generation(folder: Path, after: int | None, number: int | None = None) -> Path:
    """after, number: see FrontEnd.next."""
    for _ in range(ATTEMPTS):
        tree = _ask(folder, after, number)
        if _hold(folder, tree):
            return tree
    if number:
        raise GrowfsError(
            f"{tree}: has ended, so it can no longer be listed; only the generation after the newest can begin"
        )
    raise GrowfsError(f"{folder}: its generations end before they can be locked; see growfs status {folder}")


def _hold(folder: Path, tree: Path) -> bool:
    """Hold a tree, instead of what this process has held; False if the tree has ended."""
    lock = _lock(tree)  # also of the same tree: the descriptor may be of a mount that is gone
    if lock is None:
        return False
    before, _held[folder] = _held.get(folder), Held(tree, lock)
    if before:
        before.end()
    return True


def begin_generation(folder: Path) -> Path:
    """As `next_generation`, without a hold, for a caller about which nothing is known."""
    folder = absolute_path(folder).resolve()
    return _ask(folder, None, holds=False)


def run_in(folder: Path, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command that runs in the next generation, and holds it until the command ends.

    The command has the path of the generation in GENERATION_VARIABLE, and as its working directory.
    """
    folder = absolute_path(folder).resolve()
    tree = _next_generation(folder, None)
    os.set_inheritable(_held[folder].lock, True)
    try:
        os.chdir(tree)
        become(*command, env={**os.environ, GENERATION_VARIABLE: str(tree)})
    except OSError as error:
        raise GrowfsError(f"{command[0]}: {error.strerror}; name a program that can be run") from None


def _ask(folder: Path, after: int | None, number: int | None = None, holds: bool = True) -> Path:
    """The next generation, or the one with that number. Raises GrowfsError."""
    front_end = front_end_at(folder)
    return front_end.next(after, number, holds) if front_end else _of_mount(folder, after, number)


def _of_mount(mountpoint: Path, after: int | None, number: int | None) -> Path:
    """The next generation of a mount."""
    trees = mountpoint / FOLDER_NAME / GENERATIONS
    try:
        if not trees.is_dir():
            raise GrowfsError(
                f"{mountpoint}: is neither a growfs mount nor a folder filled by growfs fill; mount it first: growfs"
                f" mount URL {mountpoint}"
            )
        return trees / str(number or int((trees / f"after-{CURRENT if after is None else after}").read_bytes()))
    except OSError as error:
        raise GrowfsError(f"{mountpoint}: no generation can begin: {error.strerror}; see growfs status") from None


def _lock(tree: Path) -> int | None:
    """A descriptor of a tree, with a shared lock; None if the tree has ended, or is about to. Raises GrowfsError."""
    try:
        lock = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise GrowfsError(f"{tree}: cannot be opened: {error.strerror}; see growfs status") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(tree)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
