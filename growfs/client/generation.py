"""The generations of a folder that `growfs fill` keeps filled, for a program that reads there.

A program holds its generation by a shared lock on the tree (flock(2)), which the kernel releases when the program ends.
So reading does not depend on the daemon: if it is gone, the newest existing generation serves.
"""

from __future__ import annotations

import fcntl
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from growfs.errors import GrowfsError
from growfs.folder.layout import CURRENT, cache_of, newest, number_of
from growfs.paths import absolute_path

ANSWER_S = 10.0
"""How long the daemon may be silent. While it makes a generation, it sends a line each second."""
ATTEMPTS = 10
"""A generation may end after it was chosen and before it is locked; then there is a newer one."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The generation that a process reads. lock: its descriptor. process: the one that has locked it, not a fork."""

    tree: Path
    lock: int
    process: int

    def end(self) -> None:
        """End the hold; in a fork, end only its own share."""
        if self.process == os.getpid():
            fcntl.flock(self.lock, fcntl.LOCK_UN)
        os.close(self.lock)


_held: dict[Path, _Held] = {}
"""By folder."""
_asking = threading.Lock()
"""Held while a thread asks and locks."""


def _renew_lock() -> None:
    """Replace the lock in a fork, where the thread that held it does not exist."""
    global _asking
    _asking = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def next_generation(folder: str | os.PathLike[str]) -> Path:
    """See `growfs.next_generation`."""
    return next_part(Path(folder))[0]


def next_part(folder: Path) -> tuple[Path, dict[str, Any]]:
    """As `next_generation`; also returns the numbers of the generation, and with --exact those of its part."""
    with _asking:
        return _next_generation(absolute_path(folder).resolve())


def _next_generation(folder: Path) -> tuple[Path, dict[str, Any]]:
    before = _held.get(folder)
    after = number_of(before.tree) if before and before.process == os.getpid() else 0
    for _ in range(ATTEMPTS):
        tree, answer = _ask(folder, after)
        if before and tree == before.tree and after:
            return tree, answer
        lock = _lock(tree)
        if lock is not None:
            _held[folder] = _Held(tree, lock, os.getpid())
            if before:
                before.end()
            return tree, answer
    raise GrowfsError(f"{folder}: its generations end before they can be locked; see growfs status {folder}")


def begin_generation(folder: Path) -> Path:
    """As `next_generation`, without a hold, for a caller about which nothing is known."""
    folder = absolute_path(folder).resolve()
    try:
        return _ask(folder, number_of(newest(folder)), holds=False)[0]
    except OSError:  # there is none yet
        return _ask(folder, 0, holds=False)[0]


def run_in(folder: Path, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command that runs in the next generation, and holds it until the command ends."""
    tree = next_generation(folder)
    os.set_inheritable(_held[absolute_path(folder).resolve()].lock, True)
    try:
        os.chdir(tree)
        os.execvp(command[0], list(command))
    except OSError as error:
        raise GrowfsError(f"{command[0]}: {error.strerror}; name a program that can be run") from None


def _ask(folder: Path, after: int, holds: bool = True) -> tuple[Path, dict[str, Any]]:
    """The next generation, and the answer of the daemon. If none answers, the newest existing generation, with a
    warning. Raises GrowfsError.
    """
    cache = cache_of(folder)
    if cache is None:
        from growfs.fuse.mounting import mounted_at

        if mounted_at(folder):
            raise GrowfsError(f"{folder}: is a mount; there, a new generation begins when a program lists the files")
        raise GrowfsError(f"{folder}: growfs fill does not fill it; start that first: growfs fill URL {folder}")
    from growfs.daemon.control_client import call

    try:
        answer = call(cache, "next", answer_s=ANSWER_S, after=after, holds=holds)
        return Path(answer["path"]), answer
    except GrowfsError as error:
        try:
            tree = newest(folder)
        except OSError:
            raise GrowfsError(f"{folder / CURRENT}: there is no generation yet, and {error}") from None
        warnings.warn(f"{folder}: no new generation, training goes on with {tree.name}: {error}", stacklevel=6)
        return tree, {}


def _lock(tree: Path) -> int | None:
    """A descriptor with a shared lock on a tree; None if the tree has ended, or is about to."""
    try:
        lock = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(tree)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
