"""Restricts writes by this thread and all processes that it starts to a few places, with Landlock.

See landlock(7); the constants are from linux/landlock.h. Files that are already open stay writable.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from growfs.syscalls import checked

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls; the same on all architectures
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38  # prctl(2)

_WRITE = 1 << 1
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and create files and folders of any kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # from versions 2 and 3 on

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of the kernel's Landlock; 0 if it has none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)))


def allow_writes(folders: Iterable[Path], files: Iterable[Path]) -> bool:
    """Allow writing, creating and removing only below folders, and writing to files. Everything else fails with EACCES.

    Returns False if the kernel cannot do that. Threads that are already running are not restricted. Raises OSError.
    """
    known = version()
    if not known:
        return False
    contents = _WRITE | (_TRUNCATE if known >= 3 else 0)
    everything = contents | _CHANGE_FOLDERS | (_REFER if known >= 2 else 0)
    handled = struct.pack("=Q", everything)
    rules = checked(_libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0))
    try:
        for places, allowed in ((folders, everything), (files, contents)):
            for place in places:
                _allow(rules, place, allowed)
        checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        checked(_libc.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return True


def _allow(rules: int, place: Path, allowed: int) -> None:
    try:
        fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:  # no machine has all of the devices
        return
    try:
        checked(_libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0))
    finally:
        os.close(fd)
