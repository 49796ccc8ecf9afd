"""Which files of watched directories are opened, written to, renamed or deleted: fanotify(7) for root, else inotify(7).

fanotify also reports the process, and loses no event. The kernel keeps the inodes of watched directories in memory, so
both have a limit on directories (sysctl fs.fanotify.max_user_marks, fs.inotify.max_user_watches).
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from growfs.syscalls import checked

# The same bits in both (include/uapi/linux/inotify.h and fanotify.h).
OPEN, MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO, DELETE, DELETE_SELF = 0x20, 0x2, 0x8, 0x40, 0x80, 0x200, 0x400
IS_DIRECTORY = 0x4000_0000
OVERFLOW = 0x4000
GONE = 0x8000
"""The directory was deleted, and its watch with it (IN_IGNORED)."""
UNKNOWN = 0
"""In place of the id of a process."""


class FileEvent(NamedTuple):
    """Something that happened to a file. mask: bits of the above. pid: of the process, in this pid namespace."""

    watch: int
    mask: int
    name: str
    pid: int = UNKNOWN


class Inotify:
    """Events from inotify(7), for any user. Some are lost if many files are opened in a moment."""

    def __init__(self) -> None:
        from inotify_simple import INotify

        self._inotify = INotify()

    def watch(self, directory: Path, mask: int) -> int:
        """Add events of a directory's files; returns the number of the watch. Works on any thread. Raises OSError."""
        from inotify_simple import flags

        number: int = self._inotify.add_watch(directory, mask | flags.ONLYDIR)
        return number

    def read(self) -> list[FileEvent]:
        """The events so far, in their order."""
        return [FileEvent(event.wd, event.mask, event.name) for event in self._inotify.read(timeout=0)]

    def fileno(self) -> int:
        """A descriptor that is readable while there are events."""
        number: int = self._inotify.fileno()
        return number

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()


# include/uapi/linux/fanotify.h
_CLOEXEC, _NONBLOCK, _UNLIMITED_QUEUE = 0x1, 0x2, 0x10
_REPORT_DIR_FID, _REPORT_NAME = 0x400, 0x800
_MARK_ADD = 0x1
_EVENT_ON_CHILD = 0x0800_0000
_EVENT = struct.Struct("=IBxHQii")
"""struct fanotify_event_metadata: event_len, vers, metadata_len, mask, fd, pid."""
_INFO = struct.Struct("=BxH8xIi")
"""struct fanotify_event_info_fid: info_type, len, fsid, and of struct file_handle: handle_bytes, handle_type."""
_HANDLE = struct.Struct("=Ii")
_HANDLE_BYTES_MAX = 128
_AT_FDCWD = -100
_READ_BYTES = 1 << 18


class Fanotify:
    """Events from fanotify(7): for root, since Linux 5.9. directory: see `file_events`."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError if the kernel refuses, or cannot watch the file system of this directory."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = _CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE | _REPORT_DIR_FID | _REPORT_NAME
        self._fd = checked(self._libc.fanotify_init(flags, os.O_RDONLY))
        self._numbers: dict[bytes, int] = {}
        """Of the watches, by the file handle of the directory."""
        self._last_number = 0
        try:
            self.watch(directory, DELETE_SELF)
        except OSError:
            self.close()
            raise

    def watch(self, directory: Path, mask: int) -> int:
        """See Inotify."""
        path = os.fsencode(directory)
        handle = ctypes.create_string_buffer(_HANDLE.pack(_HANDLE_BYTES_MAX, 0), _HANDLE.size + _HANDLE_BYTES_MAX)
        mount = ctypes.c_int()
        checked(self._libc.name_to_handle_at(_AT_FDCWD, path, handle, ctypes.byref(mount), 0))
        size, _ = _HANDLE.unpack_from(handle)
        number = self._numbers.setdefault(handle.raw[: _HANDLE.size + size], self._last_number + 1)
        self._last_number = max(self._last_number, number)
        added = ctypes.c_uint64(mask | DELETE_SELF | IS_DIRECTORY | _EVENT_ON_CHILD)
        checked(self._libc.fanotify_mark(self._fd, _MARK_ADD, added, _AT_FDCWD, path))
        return number

    def read(self) -> list[FileEvent]:
        """See Inotify."""
        events: list[FileEvent] = []
        gone: list[bytes] = []
        with suppress(BlockingIOError):
            for _ in range(64):  # not for ever: events may be queued as fast as they are read
                self._parse(os.read(self._fd, _READ_BYTES), events, gone)
        return [*events, *(FileEvent(self._numbers.pop(handle, 0), GONE, "") for handle in gone)]

    def _parse(self, content: bytes, events: list[FileEvent], gone: list[bytes]) -> None:
        """gone: the deleted directories. The kernel may merge that with an earlier event, before those of the files."""
        start = 0
        while start < len(content):
            length, _, skipped, mask, _, pid = _EVENT.unpack_from(content, start)
            if mask & OVERFLOW:
                events.append(FileEvent(0, OVERFLOW, ""))
            else:
                info = start + skipped
                _, info_length, size, _ = _INFO.unpack_from(content, info)
                name_at = info + _INFO.size + size
                handle = content[name_at - size - _HANDLE.size : name_at]
                if mask & DELETE_SELF:
                    gone.append(handle)
                elif number := self._numbers.get(handle):
                    name = content[name_at : content.index(b"\0", name_at, info + info_length)]
                    events.append(FileEvent(number, mask, os.fsdecode(name), pid))
            start += length

    def fileno(self) -> int:
        """See Inotify."""
        return self._fd

    def close(self) -> None:
        """See Inotify."""
        os.close(self._fd)


FileEvents = Inotify | Fanotify
"""A queue of events."""


def file_events(directory: Path | None) -> FileEvents:
    """The best kind of queue. Raises OSError or ImportError.

    directory: one of those to watch, or above them. None: the processes do not matter.
    """
    if directory is not None:
        with suppress(OSError):  # not root, an older kernel, or a file system without file handles
            return Fanotify(directory)
    return Inotify()
