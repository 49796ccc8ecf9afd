"""System calls for which Python may have no wrapper, if it was built for an old C library.

The builds of uv and conda are. With those, the calls are made by number (the kernel's syscall tables).
"""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import struct
from collections.abc import Mapping, Sequence

from growfs.errors import GrowfsError

_ENDING_LIMITS = {
    resource.RLIMIT_CPU: ("-t", 1),
    resource.RLIMIT_FSIZE: ("-f", 1024),
    resource.RLIMIT_DATA: ("-d", 1024),
    resource.RLIMIT_AS: ("-v", 1024),
}
"""Limits that end a daemon or its downloads: (option, unit) of the command ulimit of bash."""
_MEMFD_CREATE = {"x86_64": 319, "ppc64le": 360, "s390x": 350}
_PREADV2 = {"x86_64": 327, "ppc64le": 380, "s390x": 376}
"""The numbers of the others are from include/uapi/asm-generic/unistd.h."""
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""The same on every architecture (include/uapi/asm-generic/unistd.h)."""
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6
"""enum fsconfig_command (include/uapi/linux/mount.h)."""
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MS_PRIVATE = 1, 4, 1 << 18
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2  # linux/memfd.h
_F_ADD_SEALS, _ALL_SEALS = 1033, 1 | 2 | 4 | 8  # linux/fcntl.h: F_SEAL_SEAL, SHRINK, GROW, WRITE
_DESCRIPTORS_MIN = 256


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when a process ends (pidfd_open(2)). Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call(434, pid, 0)  # the same on every architecture


def memfd_create(name: str) -> int:
    """A file in memory (memfd_create(2)). Raises OSError."""
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    return _call(_MEMFD_CREATE.get(platform.machine(), 279), name.encode(), flags)


def seal(fd: int) -> None:
    """Make a file in memory read-only, for every process (fcntl(2), F_ADD_SEALS). Raises OSError."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)


def read_page_cache(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a file, as far as its pages are in the page cache; returns the bytes (preadv2(2), RWF_NOWAIT).

    Raises OSError: EAGAIN if the disk has to be read, EOPNOTSUPP if the file system cannot tell.
    """
    if hasattr(os, "RWF_NOWAIT"):
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    import ctypes

    number = _PREADV2.get(platform.machine(), 286)
    start = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer)) if buffer else 0
    return _call(number, fd, struct.pack("@PN", start, len(buffer)), 1, offset, 0, 8)  # RWF_NOWAIT


def bind_mount(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Mount a mount at another path as well, as mount --bind does, but in a peer group of its own.

    So a mount on top of one of them does not appear on the others (mount_namespaces(7)). Needs Linux 5.12. Raises
    OSError.
    """
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    try:
        attributes = struct.pack("QQQQ", 0, 0, _MS_PRIVATE, 0)
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


def create_file_system(kind: str, strings: Mapping[str, str] | None = None, flags: Sequence[str] = ()) -> int:
    """Create a file system of a type (fsopen(2), fsconfig(2)) without mounting it; returns its descriptor.

    No process can see it or wait for it, and it goes away with the descriptor. Needs Linux 5.2. Raises OSError.
    """
    context = _call(_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in (strings or {}).items():
            _call(_FSCONFIG, context, _FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        for flag in flags:
            _call(_FSCONFIG, context, _FSCONFIG_SET_FLAG, flag.encode(), 0, 0)
        _call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, 0, 0, 0)
    except OSError:
        os.close(context)
        raise
    return context


def detached_root(file_system: int) -> int:
    """The root folder of a file system from `create_file_system`, mounted nowhere (fsmount(2)). Raises OSError."""
    return _call(_FSMOUNT, file_system, _FSMOUNT_CLOEXEC, 0)


def check_descriptors() -> int:
    """The number of files that a process may have open. Raises GrowfsError if a mount needs more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _DESCRIPTORS_MIN:
        raise GrowfsError(f"this process may open only {hard} files; raise the limit: ulimit -n {_DESCRIPTORS_MIN}")
    return hard


def raise_limits() -> None:
    """Raise the limits of this process that would end a daemon or its downloads, as far as any user may."""
    for limit in _ENDING_LIMITS:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))


def ending_limits() -> str:
    """Those of these limits that remain, as for ulimit; empty if there are none."""
    limits = ((resource.getrlimit(limit)[1], *command) for limit, command in _ENDING_LIMITS.items())
    return ", ".join(f"ulimit {option} {most // unit}" for most, option, unit in limits if most >= 0)


def check_kernel() -> None:
    """Raise GrowfsError if the kernel, or the rules of a container, refuse something that growfs requires."""
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        raise GrowfsError(
            f"the kernel refuses pidfd_open(2): {error.strerror}; growfs needs Linux 5.3, and in a container seccomp"
            " rules that allow it"
        ) from None


def _call(number: int, *arguments: int | bytes) -> int:
    import ctypes  # only here: Python's own wrappers need no import

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *given))


def checked(result: int) -> int:
    """The result of a C function that a library loaded with use_errno=True has returned.

    Raises the OSError of its errno if the result is negative.
    """
    if result < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
