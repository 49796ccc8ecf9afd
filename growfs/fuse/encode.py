"""Encodes the vfs's attributes and entries as the kernel's structures."""

from __future__ import annotations

import os
from struct import Struct

from growfs.disk import BLOCK
from growfs.fuse import protocol, structs
from growfs.vfs.attributes import FILE_TIMEOUT_S, Attributes, Capacity, Entry
from growfs.vfs.filesystem import NAME_MAX

_owner = (os.getuid(), os.getgid())


def entry_out(attributes: Attributes) -> bytes:
    """The reply to LOOKUP, and the first part of an entry of READDIRPLUS."""
    name_s, name_ns = _duration(attributes.name_timeout_s)
    attr_s, attr_ns = _duration(attributes.timeout_s)
    return structs.EntryOut(attributes.id, 0, name_s, attr_s, name_ns, attr_ns).pack() + _attr(attributes)


def dirent(entry: Entry) -> bytes:
    """An entry of READDIR."""
    name = entry.name.encode()
    return protocol.dirent(structs.Dirent(entry.id, entry.position, len(name), entry.attributes.mode >> 12), name)


def direntplus(entry: Entry) -> bytes:
    """An entry of READDIRPLUS: `entry_out` and `dirent`. A file's is packed in one step: there may be a million."""
    if entry.is_dir:
        return entry_out(entry.attributes) + dirent(entry)
    id, name, _, size, mtime_ns, position = entry
    encoded = name.encode()
    s, ns = divmod(mtime_ns, 10**9)
    uid, gid = _owner
    length = len(encoded)
    timeout = int(FILE_TIMEOUT_S)
    head = _FILE.pack(
        *(id, timeout, timeout, id, size, -(-size // 512), s, s, s, ns, ns, ns),
        *(_FILE_MODE, 1, uid, gid, BLOCK, id, position, length, _FILE_MODE >> 12),
    )
    return head + encoded + _PADDING[-length % protocol.DIRENT_ALIGNMENT]


_FILE = Struct("=Q8xQQ8xQQQqqqIIIIIII4xI4xQQII")
"""structs.EntryOut, Attr and Dirent. Members that are zero for files are padding."""
_FILE_MODE = Attributes(0, False, 0, 0, 0.0).mode
_PADDING = [bytes(count) for count in range(protocol.DIRENT_ALIGNMENT)]


def attr_out(attributes: Attributes) -> bytes:
    """The reply to GETATTR."""
    return structs.AttrOut(*_duration(attributes.timeout_s)).pack() + _attr(attributes)


def statx_out(attributes: Attributes) -> bytes:
    """The reply to STATX: the same as GETATTR's. It has no birth time, because no remote has one."""
    seconds, ns = divmod(attributes.mtime_ns, 10**9)
    head = structs.StatxOut(
        *_duration(attributes.timeout_s),
        mask=int(protocol.StatxMask.BASIC_STATS),
        blksize=BLOCK,
        attributes=0,
        nlink=attributes.links,
        uid=_owner[0],
        gid=_owner[1],
        mode=attributes.mode,
        ino=attributes.id,
        size=attributes.size,
        blocks=attributes.blocks,
        attributes_mask=0,
    )
    return head.pack() + structs.StatxTimes(seconds, ns, 0, 0, seconds, ns, seconds, ns).pack()


def statfs_out(capacity: Capacity) -> bytes:
    """The reply to STATFS."""
    return structs.StatfsOut(
        blocks=capacity.blocks,
        bfree=capacity.free,
        bavail=capacity.free,
        files=0,
        ffree=0,
        bsize=BLOCK,
        namelen=NAME_MAX,
        frsize=BLOCK,
    ).pack()


def _duration(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1e9)


def _attr(attributes: Attributes) -> bytes:
    seconds, ns = divmod(attributes.mtime_ns, 10**9)
    return structs.Attr(
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
        nlink=attributes.links,
        uid=_owner[0],
        gid=_owner[1],
        rdev=0,
        blksize=BLOCK,
        flags=0,
    ).pack()
