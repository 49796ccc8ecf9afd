"""The C structures of the kernel's FUSE protocol as dataclasses that pack and unpack. No I/O.

Each class names its struct in include/uapi/linux/fuse.h of the kernel's source, and members have the names used there.
The byte order is the machine's own. Members that the header calls padding, unused, dummy, reserved or spare are written
as zero, and skipped when read.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import ClassVar, TypeVar

T = TypeVar("T", bound="Structure")

INIT_EXT = 1 << 30
"""FUSE_INIT_EXT: flags2 is valid."""


class Malformed(ValueError):
    """A message is shorter than its structure, or a name in it has no end."""


class Structure:
    """A C struct. A subclass is a dataclass whose fields are the members, in the order of `layout`."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[Struct]

    @classmethod
    def unpack(cls: type[T], message: bytes, offset: int = 0) -> T:
        """Read one from a message. Raises Malformed if the message is too short."""
        try:
            return cls(*cls.layout.unpack_from(message, offset))
        except error:
            raise Malformed(f"{cls.__name__} wants {cls.layout.size} bytes of {len(message)} from {offset}") from None

    def pack(self) -> bytes:
        """Its bytes."""
        return self.layout.pack(*[getattr(self, member) for member in self.__slots__])


# Every message begins with one of these.


@dataclass(slots=True)
class InHeader(Structure):
    """fuse_in_header, without extensions. pid: the id of the calling thread; 0 if that is in another pid namespace."""

    layout = Struct("=IIQQIII4x")
    len: int
    opcode: int
    unique: int
    nodeid: int
    uid: int
    gid: int
    pid: int


@dataclass(slots=True)
class OutHeader(Structure):
    """fuse_out_header. error: 0 or a negative errno. In a notification unique is 0, and error is its code."""

    layout = Struct("=IiQ")
    len: int
    error: int
    unique: int


# The bodies of requests.


@dataclass(slots=True)
class InitIn(Structure):
    """fuse_init_in."""

    layout = Struct("=IIIII44x")
    major: int
    minor: int
    max_readahead: int
    flags: int
    flags2: int

    @property
    def all_flags(self) -> int:
        """Both halves."""
        return self.flags | (self.flags2 << 32 if self.flags & INIT_EXT else 0)


@dataclass(slots=True)
class ReadIn(Structure):
    """fuse_read_in, for READ, READDIR and READDIRPLUS."""

    layout = Struct("=QQIIQI4x")
    fh: int
    offset: int
    size: int
    read_flags: int
    lock_owner: int
    flags: int


@dataclass(slots=True)
class ReleaseIn(Structure):
    """fuse_release_in, for RELEASE and RELEASEDIR."""

    layout = Struct("=QIIQ")
    fh: int
    flags: int
    release_flags: int
    lock_owner: int


@dataclass(slots=True)
class InterruptIn(Structure):
    """fuse_interrupt_in. unique: the request that is interrupted."""

    layout = Struct("=Q")
    unique: int


# The bodies of replies and notifications.


@dataclass(slots=True)
class InitOut(Structure):
    """fuse_init_out."""

    layout = Struct("=IIIIHHIIHHIIH22x")
    major: int
    minor: int
    max_readahead: int
    flags: int
    max_background: int
    congestion_threshold: int
    max_write: int
    time_gran: int
    max_pages: int
    map_alignment: int
    flags2: int
    max_stack_depth: int
    request_timeout: int


@dataclass(slots=True)
class Attr(Structure):
    """fuse_attr. blocks: of 512 bytes, whatever blksize is. Times are signed, because they may be before 1970."""

    layout = Struct("=QQQqqqIIIIIIIIII")
    ino: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atimensec: int
    mtimensec: int
    ctimensec: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    blksize: int
    flags: int


@dataclass(slots=True)
class AttrOut(Structure):
    """fuse_attr_out without its fuse_attr."""

    layout = Struct("=QI4x")
    attr_valid: int
    attr_valid_nsec: int


@dataclass(slots=True)
class EntryOut(Structure):
    """fuse_entry_out without its fuse_attr."""

    layout = Struct("=QQQQII")
    nodeid: int
    generation: int
    entry_valid: int
    attr_valid: int
    entry_valid_nsec: int
    attr_valid_nsec: int


@dataclass(slots=True)
class StatxOut(Structure):
    """fuse_statx_out with its fuse_statx, up to the times."""

    layout = Struct("=QI4x16xIIQIIIH2xQQQQ")
    attr_valid: int
    attr_valid_nsec: int
    mask: int
    blksize: int
    attributes: int
    nlink: int
    uid: int
    gid: int
    mode: int
    ino: int
    size: int
    blocks: int
    attributes_mask: int


@dataclass(slots=True)
class StatxTimes(Structure):
    """The rest of fuse_statx: a fuse_sx_time for each time, and device numbers (zero)."""

    layout = Struct("=qI4xqI4xqI4xqI4x16x112x")
    atime: int
    atime_nsec: int
    btime: int
    btime_nsec: int
    ctime: int
    ctime_nsec: int
    mtime: int
    mtime_nsec: int


@dataclass(slots=True)
class OpenOut(Structure):
    """fuse_open_out, for OPEN and OPENDIR."""

    layout = Struct("=QIi")
    fh: int
    open_flags: int
    backing_id: int


@dataclass(slots=True)
class StatfsOut(Structure):
    """fuse_statfs_out with its fuse_kstatfs."""

    layout = Struct("=QQQQQIII4x24x")
    blocks: int
    bfree: int
    bavail: int
    files: int
    ffree: int
    bsize: int
    namelen: int
    frsize: int


@dataclass(slots=True)
class Dirent(Structure):
    """fuse_dirent without its name. type: the file type bits of st_mode, shifted right by 12 (d_type in readdir(3))."""

    layout = Struct("=QQII")
    ino: int
    off: int
    namelen: int
    type: int


@dataclass(slots=True)
class InvalEntryOut(Structure):
    """fuse_notify_inval_entry_out without its name."""

    layout = Struct("=QII")
    parent: int
    namelen: int
    flags: int


@dataclass(slots=True)
class InvalInodeOut(Structure):
    """fuse_notify_inval_inode_out."""

    layout = Struct("=Qqq")
    ino: int
    off: int
    len: int


# The argument of an ioctl.


@dataclass(slots=True)
class BackingMap(Structure):
    """fuse_backing_map: the argument of BACKING_OPEN."""

    layout = Struct("=iI8x")
    fd: int
    flags: int
