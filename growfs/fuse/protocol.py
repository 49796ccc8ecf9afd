"""The kernel's FUSE protocol: constants, structures, messages, and the negotiation of a version. No I/O.

Each name is that of include/uapi/linux/fuse.h in the kernel's source, without its prefix. So are the names of the
members of structures. The byte order is the machine's own. Members that the header calls padding, unused, dummy,
reserved or spare are written as zero, and skipped when read.

Supported versions: 7.28 (Linux 4.20, the first that caches links; passthrough came with 7.40, Linux 6.9) to 7.45. A
kernel with a later minor version falls back to ours, see "Version negotiation" in the header. An older kernel, or one
without the features that an engine needs, is refused (`KernelTooOld`).
"""

from __future__ import annotations

import enum
import struct
from collections import namedtuple
from typing import Any, NamedTuple

MAJOR = 7
"""FUSE_KERNEL_VERSION."""
MINOR_MIN, MINOR_MAX = 28, 45
"""FUSE_KERNEL_MINOR_VERSION of the first kernel with FUSE_CACHE_SYMLINKS, and of the last one supported here."""
MIN_READ_BUFFER = 8192
"""FUSE_MIN_READ_BUFFER: the smallest buffer for read(2) of /dev/fuse, in bytes."""
STACK_DEPTH_MAX = 2
"""FILESYSTEM_MAX_STACK_DEPTH (include/linux/fs.h): how many file systems may be stacked on top of a disk's.

With passthrough, the mount counts as the layer with the number max_stack_depth. Its files may be on a file system with
a lower number: 1 allows file systems on disk (0), and an overlay on top of the mount; 2 also allows files on an overlay
(a container's root), but nothing on top.
"""


class Opcode(enum.IntEnum):
    """enum fuse_opcode."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


class Notify(enum.IntEnum):
    """enum fuse_notify_code: those that are sent."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3


class InitFlag(enum.IntFlag):
    """INIT request/reply flags: those that are requested. Flags from bit 32 on are in flags2."""

    ASYNC_READ = 1 << 0
    DO_READDIRPLUS = 1 << 13
    PARALLEL_DIROPS = 1 << 18
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37
    NO_EXPORT_SUPPORT = 1 << 38
    ALLOW_IDMAP = 1 << 40


class OpenFlag(enum.IntFlag):
    """Flags in the reply to OPEN (FOPEN_)."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    PASSTHROUGH = 1 << 7


STATX_BASIC_STATS = 0x7FF
"""The fields that a statx has (linux/stat.h)."""


class KernelTooOld(ValueError):
    """The kernel's protocol lacks a feature that an engine needs."""


# Structures.

Members = Any
"""The members of a structure that was read, by name: all are integers."""


class Malformed(ValueError):
    """A message is shorter than its structure, or a name in it has no end."""


class Structure:
    """A C struct. format: as in the module struct. members: the names of its members, in order."""

    def __init__(self, name: str, format: str, members: str) -> None:
        self.name = name
        self.layout = struct.Struct(f"={format}")
        self.size = self.layout.size
        self.members: Any = namedtuple(name, members)  # type: ignore[misc]  # mypy reads literals only

    def unpack(self, message: bytes, offset: int = 0) -> Members:
        """Read a structure from a message. Raises Malformed if the message is too short."""
        try:
            return self.members._make(self.layout.unpack_from(message, offset))
        except struct.error:
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


def _iow(number: int, size: int) -> int:
    """_IOW of asm-generic/ioctl.h: direction, size of the argument, magic, number."""
    return 1 << 30 | size << 16 | 229 << 8 | number  # 229: FUSE_DEV_IOC_MAGIC


BACKING_OPEN = _iow(1, BackingMap.size)
"""FUSE_DEV_IOC_BACKING_OPEN. ioctl(2) returns the backing id."""
BACKING_CLOSE = _iow(2, 4)
"""FUSE_DEV_IOC_BACKING_CLOSE. Its argument is a pointer to the backing id."""


# Messages.

HEADER = InHeader.size


class FuseRequest(NamedTuple):
    """A message from the kernel, and the fields of its fuse_in_header that are used. Its body starts at HEADER.

    tid: the thread that makes the system call.
    """

    opcode: int
    unique: int
    nodeid: int
    tid: int
    message: bytes


def parse_request(message: bytes) -> FuseRequest:
    """Parse the header. Raises Malformed if the message's length is not the one in the header."""
    if len(message) < HEADER:
        raise Malformed(f"a message of {len(message)} bytes")
    length, opcode, unique, nodeid, _, _, tid = InHeader.layout.unpack_from(message)
    if length != len(message):
        raise Malformed(f"a message of {len(message)} bytes, whose header says {length}")
    return FuseRequest(opcode, unique, nodeid, tid, message)


def parse_name(request: FuseRequest) -> bytes:
    """The name in the body of a LOOKUP. Raises Malformed if it does not end where the message ends."""
    text, end, rest = request.message[HEADER:].partition(b"\0")
    if not end or rest:
        raise Malformed("a name does not end where its message does")
    return text


def inval_entry(parent: int, name: bytes) -> bytes:
    """The notification that the kernel must look up a name in a directory again."""
    return _notification(Notify.INVAL_ENTRY, InvalEntryOut.pack(parent, len(name), 0) + name + b"\0")


def inval_inode(nodeid: int, offset: int, size: int) -> bytes:
    """The notification that the kernel must forget the attributes of a file, and the pages of a range. offset: negative
    if the pages are to stay.
    """
    return _notification(Notify.INVAL_INODE, InvalInodeOut.pack(nodeid, offset, size))


def _notification(code: Notify, body: bytes) -> bytes:
    return OutHeader.layout.pack(OutHeader.size + len(body), code, 0) + body


def all_flags(init: Members) -> int:
    """Both halves of the flags of an InitIn or InitOut."""
    return int(init.flags | (init.flags2 << 32 if init.flags & InitFlag.INIT_EXT else 0))


def parse_offer(request: FuseRequest) -> Members:
    """The InitIn in the body of an INIT. Before Linux 5.17 it has 16 bytes: it ends with flags."""
    return InitIn.unpack(request.message.ljust(HEADER + InitIn.size, b"\0"), HEADER)


def negotiate(
    offer: Members, wanted: InitFlag, needed: InitFlag, max_background: int, page_bytes: int, stack_depth: int
) -> bytes:
    """The InitOut that answers an InitIn; it sets the wanted and needed flags that the kernel offers.

    Raises KernelTooOld if the kernel does not offer the needed ones.

    page_bytes: the kernel's page size, which is larger on some kernels: READs are limited in pages. stack_depth: see
    STACK_DEPTH_MAX.
    """
    if (offer.major, offer.minor) < (MAJOR, MINOR_MIN) or needed & ~all_flags(offer):
        raise KernelTooOld(f"FUSE {offer.major}.{offer.minor}")
    flags = (wanted | needed) & all_flags(offer)
    return InitOut.pack(
        major=MAJOR,
        minor=min(offer.minor, MINOR_MAX),
        max_readahead=offer.max_readahead,
        flags=flags & 0xFFFFFFFF,
        max_background=max_background,
        congestion_threshold=max_background * 3 // 4,
        # The kernel's own minimum, since nothing is ever written. With its headers, it must fit in MIN_READ_BUFFER.
        max_write=4096,
        time_gran=1,
        max_pages=max(1, (1 << 20) // page_bytes),  # so the largest READ is for 1 MiB
        map_alignment=0,
        flags2=flags >> 32,
        max_stack_depth=stack_depth,
        request_timeout=0,
    )
