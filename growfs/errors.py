"""Every error that growfs tells a person or a reader: one line, an errno, an exit code.

The message says what happened, to what, and what to do next. Only a bug prints a traceback.
Instances are pickled on their way from a worker process, so each takes its message alone.
"""

from __future__ import annotations

import errno


class GrowfsError(Exception):
    """Something that a person can act on; `str(error)` is the whole line."""

    exit_code = 1
    errno = errno.EIO


class UsageError(GrowfsError):
    """The command line asks for something that does not exist or contradicts itself."""

    exit_code = 2
    errno = errno.EINVAL


class NoRoom(GrowfsError):
    """Everything in the cache is open, pinned or a directory's last file."""

    errno = errno.ENOSPC


class TooManyOpen(GrowfsError):
    """The daemon may not have more descriptors (RLIMIT_NOFILE)."""

    errno = errno.ENFILE


class TooLarge(GrowfsError):
    """One file alone is larger than the whole cache may be."""

    errno = errno.EFBIG


class RemoteError(GrowfsError):
    """The remote did not do what was asked, and asking again will not change that."""


class RemoteMissing(RemoteError):
    """No such bucket, prefix or object (S3 NoSuchBucket, NoSuchKey; HTTP 404)."""


class RemoteDenied(RemoteError):
    """No credentials, wrong ones, or not allowed (HTTP 401 and 403)."""


class RemoteChanged(RemoteError):
    """The object is no longer the version that was asked for."""


class RemoteBusy(RemoteError):
    """Worth another try: unreachable, timed out, throttled (429, 503 SlowDown), 5xx, cut short."""


class NotMade(RemoteError):
    """The user's producer failed on a file as often as it may."""


class NoSuchName(GrowfsError):
    """Neither in the catalog nor virtual."""

    errno = errno.ENOENT


class NameTooLong(GrowfsError):
    """No file system of this machine has such names."""

    errno = errno.ENAMETOOLONG


class Stale(GrowfsError):
    """The node has a newer version, or is gone; the kernel looks the name up again (open(2), ESTALE)."""

    errno = errno.ESTALE


class Unreadable(GrowfsError):
    """The cache's disk does not give back what was written to it."""

    errno = errno.EIO


class NotHere(GrowfsError):
    """The file is not resident, and the mount was told not to wait."""

    errno = errno.ENOENT
