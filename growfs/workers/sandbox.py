"""Landlock (landlock(7)): this thread, and all that it starts, may write to a few places of the file system only.

The kernel's headers (linux/landlock.h) have the numbers. What was open before can be written to all the same.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all architectures
_TELL_VERSION = 1
_BENEATH = 1
_NO_NEW_PRIVS = 38  # prctl(2)

_WRITE = 1 << 1
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make whatever there may be in one
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Of the kernel's Landlock; 0 where it has none."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _TELL_VERSION)))


def allow_writes(folders: Iterable[Path], files: Iterable[Path]) -> bool:
    """Refuse (EACCES) to write, make or remove anything but below folders, and to write to others than files.

    False where the kernel cannot do that. Threads that run already are not confined. Raises OSError.
    """
    known = version()
    if not known:
        return False
    contents = _WRITE | (_TRUNCATE if known >= 3 else 0)
    everything = contents | _CHANGE_FOLDERS | (_REFER if known >= 2 else 0)
    asked = struct.pack("=Q", everything)
    rules = _called(_libc.syscall(_CREATE, asked, ctypes.c_size_t(len(asked)), 0))
    try:
        for places, allowed in ((folders, everything), (files, contents)):
            for place in places:
                _allow(rules, place, allowed)
        _called(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _called(_libc.syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)
    return True


def _allow(rules: int, place: Path, allowed: int) -> None:
    try:
        fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:  # as many devices are
        return
    try:
        _called(_libc.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", allowed, fd), 0))
    finally:
        os.close(fd)


def _called(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
