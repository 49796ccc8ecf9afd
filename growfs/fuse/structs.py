"""The C structures of the kernel's FUSE protocol. No I/O.

Each has the name of its struct in include/uapi/linux/fuse.h of the kernel's source without "fuse_", and the names of
its members. The byte order is the machine's own. Members that the header calls padding, unused, dummy, reserved or
spare are written as zero, and skipped when read.
"""

from __future__ import annotations

from collections import namedtuple
from struct import Struct, error
from typing import Any

Members = Any
"""The members of a structure that was read, by name: all are integers."""


class Malformed(ValueError):
    """A message is shorter than its structure, or a name in it has no end."""


class Structure:
    """A C struct. format: as in the module struct. members: the names of its members, in order."""

    def __init__(self, name: str, format: str, members: str) -> None:
        self.name = name
        self.layout = Struct(f"={format}")
        self.size = self.layout.size
        self.members: Any = namedtuple(name, members)  # type: ignore[misc]  # mypy reads literals only

    def unpack(self, message: bytes, offset: int = 0) -> Members:
        """Read a structure from a message. Raises Malformed if the message is too short."""
        try:
            return self.members._make(self.layout.unpack_from(message, offset))
        except error:
            raise Malformed(f"{self.name} wants {self.size} bytes of {len(message)} from {offset}") from None

    def pack(self, *first: int, **others: int) -> bytes:
        """The bytes of a structure with these members."""
        return self.layout.pack(*self.members(*first, **others))


# Every message begins with one of these. pid: the id of the calling thread; 0 if that is in another pid namespace.
# error: 0 or a negative errno. In a notification unique is 0, and error is its code.

InHeader = Structure("InHeader", "IIQQIII4x", "len opcode unique nodeid uid gid pid")
OutHeader = Structure("OutHeader", "IiQ", "len error unique")

# The bodies of requests. ReadIn is also for READDIR and READDIRPLUS, and ReleaseIn for RELEASEDIR. InterruptIn.unique:
# the interrupted request.

InitIn = Structure("InitIn", "IIIII44x", "major minor max_readahead flags flags2")
ReadIn = Structure("ReadIn", "QQIIQI4x", "fh offset size read_flags lock_owner flags")
ReleaseIn = Structure("ReleaseIn", "QIIQ", "fh flags release_flags lock_owner")
InterruptIn = Structure("InterruptIn", "Q", "unique")

# The bodies of replies and notifications. AttrOut and EntryOut are without their Attr. StatxOut has its fuse_statx up
# to the times, and StatxTimes the rest: a fuse_sx_time for each time, and device numbers (zero). Times are signed,
# because they may be before 1970. blocks: of 512 bytes, regardless of blksize. Dirent.type: the file type bits of
# st_mode, shifted right by 12 (d_type in readdir(3)).

InitOut = Structure(
    "InitOut",
    "IIIIHHIIHHIIH22x",
    "major minor max_readahead flags max_background congestion_threshold max_write time_gran max_pages map_alignment"
    " flags2 max_stack_depth request_timeout",
)
Attr = Structure(
    "Attr",
    "QQQqqqIIIIIIIIII",
    "ino size blocks atime mtime ctime atimensec mtimensec ctimensec mode nlink uid gid rdev blksize flags",
)
AttrOut = Structure("AttrOut", "QI4x", "attr_valid attr_valid_nsec")
EntryOut = Structure("EntryOut", "QQQQII", "nodeid generation entry_valid attr_valid entry_valid_nsec attr_valid_nsec")
StatxOut = Structure(
    "StatxOut",
    "QI4x16xIIQIIIH2xQQQQ",
    "attr_valid attr_valid_nsec mask blksize attributes nlink uid gid mode ino size blocks attributes_mask",
)
StatxTimes = Structure(
    "StatxTimes",
    "qI4xqI4xqI4xqI4x16x112x",
    "atime atime_nsec btime btime_nsec ctime ctime_nsec mtime mtime_nsec",
)
OpenOut = Structure("OpenOut", "QIi", "fh open_flags backing_id")
StatfsOut = Structure("StatfsOut", "QQQQQIII4x24x", "blocks bfree bavail files ffree bsize namelen frsize")
Dirent = Structure("Dirent", "QQII", "ino off namelen type")
InvalEntryOut = Structure("InvalEntryOut", "QII", "parent namelen flags")
InvalInodeOut = Structure("InvalInodeOut", "Qqq", "ino off len")

BackingMap = Structure("BackingMap", "iI8x", "fd flags")
"""The argument of the ioctl BACKING_OPEN."""
