"""The replies to the kernel, with the vfs's attributes and entries as its structures."""

from __future__ import annotations

import os
from struct import Struct

from growfs.disk import BLOCK
from growfs.fuse.protocol import (
    STATX_BASIC_STATS,
    Attr,
    AttrOut,
    Dirent,
    EntryOut,
    OpenOut,
    OutHeader,
    StatfsOut,
    StatxOut,
    StatxTimes,
)
from growfs.vfs.attributes import FILE_TIMEOUT_S, LINK_BIT, Attributes, Capacity, Entry
from growfs.vfs.filesystem import NAME_MAX

_owner = (os.getuid(), os.getgid())

DIRENT_ALIGNMENT = 8
"""FUSE_DIRENT_ALIGN."""
_PADDING = [bytes(count) for count in range(DIRENT_ALIGNMENT)]
_PLUS = Struct(EntryOut.layout.format + Attr.layout.format[1:] + Dirent.layout.format[1:])
_FILE_MODE = Attributes(0, False, 0, 0, 0.0).mode
_LINK_MODE = Attributes(LINK_BIT, False, 0, 0, 0.0).mode


def reply(unique: int, body: bytes = b"") -> bytes:
    """The reply to a request."""
    return reply_header(unique, len(body)) + body


def reply_header(unique: int, size: int) -> bytes:
    """The header of a reply with a body of that size."""
    return OutHeader.layout.pack(OutHeader.size + size, 0, unique)


_OPEN_REPLY = Struct(OutHeader.layout.format + OpenOut.layout.format[1:])


def open_reply(unique: int, fh: int, open_flags: int, backing_id: int = 0) -> bytes:
    """`reply` with an OpenOut, packed in one step: readers of small files wait for this reply most often."""
    return _OPEN_REPLY.pack(_OPEN_REPLY.size, 0, unique, fh, open_flags, backing_id)


def error_reply(unique: int, errno: int) -> bytes:
    """The reply that fails a request with an errno."""
    return OutHeader.layout.pack(OutHeader.size, -errno, unique)


def entry_out(attributes: Attributes) -> bytes:
    """The reply to LOOKUP, and the first part of an entry of READDIRPLUS."""
    s, ns = _duration(attributes.timeout_s)
    return EntryOut.pack(attributes.id, 0, s, s, ns, ns) + _attr(attributes)


def dirent(entry: Entry) -> bytes:
    """An entry of READDIR."""
    name = entry.name.encode()
    head = Dirent.pack(entry.id, entry.position, len(name), entry.attributes.mode >> 12)
    return head + name + _PADDING[-len(name) % DIRENT_ALIGNMENT]


def direntplus(entry: Entry) -> bytes:
    """An entry of READDIRPLUS: `entry_out` and `dirent`. For a file, packed in one step: there may be a million."""
    if entry.is_dir or entry.is_virtual_file:
        return entry_out(entry.attributes) + dirent(entry)
    id, name, _, size, mtime_ns, position = entry
    encoded = name.encode()
    s, ns = divmod(mtime_ns, 10**9)
    length = len(encoded)
    timeout = int(FILE_TIMEOUT_S)
    mode = _LINK_MODE if id & LINK_BIT else _FILE_MODE
    head = _PLUS.pack(
        *(id, 0, timeout, timeout, 0, 0),
        *(id, size, -(-size // 512), s, s, s, ns, ns, ns, mode, 1, *_owner, 0, BLOCK, 0),
        *(id, position, length, mode >> 12),
    )
    return head + encoded + _PADDING[-length % DIRENT_ALIGNMENT]


def attr_out(attributes: Attributes) -> bytes:
    """The reply to GETATTR."""
    return AttrOut.pack(*_duration(attributes.timeout_s)) + _attr(attributes)


def statx_out(attributes: Attributes) -> bytes:
    """The reply to STATX: the same as GETATTR's. It has no birth time, because no remote has one."""
    seconds, ns = divmod(attributes.mtime_ns, 10**9)
    head = StatxOut.pack(
        *_duration(attributes.timeout_s),
        mask=STATX_BASIC_STATS,
        blksize=BLOCK,
        attributes=0,
        nlink=1,
        uid=_owner[0],
        gid=_owner[1],
        mode=attributes.mode,
        ino=attributes.id,
        size=attributes.size,
        blocks=attributes.blocks,
        attributes_mask=0,
    )
    return head + StatxTimes.pack(seconds, ns, 0, 0, seconds, ns, seconds, ns)


def statfs_out(capacity: Capacity) -> bytes:
    """The reply to STATFS."""
    return StatfsOut.pack(
        blocks=capacity.blocks,
        bfree=capacity.free,
        bavail=capacity.free,
        files=0,
        ffree=0,
        bsize=BLOCK,
        namelen=NAME_MAX,
        frsize=BLOCK,
    )


def _duration(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1e9)


def _attr(attributes: Attributes) -> bytes:
    seconds, ns = divmod(attributes.mtime_ns, 10**9)
    return Attr.pack(
        ino=attributes.id,
        size=attributes.size,
        blocks=attributes.blocks,
        atime=seconds,
        mtime=seconds,
        ctime=seconds,
        atimensec=ns,
        mtimensec=ns,
        ctimensec=ns,
        mode=attributes.mode,
        nlink=1,
        uid=_owner[0],
        gid=_owner[1],
        rdev=0,
        blksize=BLOCK,
        flags=0,
    )
