"""Every error that growfs reports to a user or to a reading process: one line, an errno, an exit code.

The message says what happened, to what, and what to do next. Only a bug prints a traceback. Errors are pickled on
their way from a worker process, so each takes its message as the only argument.
"""

from __future__ import annotations

import errno
import shlex
import sys


class GrowfsError(Exception):
    """An error that a user can act on; `str(error)` is the whole line."""

    exit_code = 1
    errno = errno.EIO
    skip_reason = ""
    """Why a pass does not try a file again that fails with it, in a few words; empty if it does."""


class UsageError(GrowfsError):
    """The command line names something that does not exist, or contradicts itself."""

    exit_code = 2
    errno = errno.EINVAL


class NoRoom(GrowfsError):
    """The cache is full, and everything in it is open, pinned or the last file of its directory."""

    errno = errno.ENOSPC


class DiskFull(NoRoom):
    """The disk of the cache has no space or quota left: there may be some soon."""


class DiskFailed(GrowfsError):
    """The disk of the cache cannot be written, for a reason other than being full."""

    errno = errno.EIO


class TooManyOpen(GrowfsError):
    """The daemon has as many open descriptors as it may have (RLIMIT_NOFILE)."""

    errno = errno.ENFILE


class TooLarge(GrowfsError):
    """A single file is larger than the whole cache may be."""

    errno = errno.EFBIG


class RemoteError(GrowfsError):
    """The remote refused a request, and would refuse it again."""

    retry_after_s = 0.0
    """How many seconds the store asks not to be contacted (Retry-After)."""


class RemoteMissing(RemoteError):
    """There is no such prefix or object (S3 NoSuchKey; HTTP 404)."""


class RemoteUnavailable(RemoteError):
    """All requests may fail like this: the remote cannot be reached, or refuses access."""


class RemoteDenied(RemoteUnavailable):
    """The credentials are missing, wrong or not sufficient (HTTP 401 and 403)."""


class CredentialsRefused(RemoteDenied):
    """The store refused the credentials themselves, as wrong or expired."""


class BucketMissing(RemoteDenied):
    """There is no such bucket (S3 NoSuchBucket), perhaps only for a moment: that says nothing about its files."""


class RemoteChanged(RemoteError):
    """The object is no longer the version that was requested."""


class RemoteBusy(RemoteUnavailable):
    """The request can be retried: unreachable, timed out, throttled, 5xx, or cut short."""


class RemoteThrottled(RemoteBusy):
    """The store asks for fewer requests (HTTP 429 and 503; S3 SlowDown)."""


class NotMade(RemoteError):
    """The user's producer has failed on a file as often as allowed."""

    skip_reason = "the producer failed on it"


class NoSuchName(GrowfsError):
    """The name is neither in the catalog nor that of a virtual file."""

    errno = errno.ENOENT


class NameTooLong(GrowfsError):
    """The name is longer than Linux file systems allow."""

    errno = errno.ENAMETOOLONG


class Stale(GrowfsError):
    """The node was replaced by a newer version or removed. The kernel looks the name up again (open(2), ESTALE)."""

    errno = errno.ESTALE


class NotBegun(GrowfsError):
    """A generation cannot begin now: the cache's disk refuses to write it, or has fewer files than --show-files."""

    errno = errno.EAGAIN


class TimedOut(GrowfsError):
    """What a process waits for has not arrived within --miss-timeout."""

    errno = errno.ETIMEDOUT


class Unreadable(GrowfsError):
    """The disk of the cache fails to read data that was written to it."""

    errno = errno.EIO


class NotHere(GrowfsError):
    """The file is not cached, and the mount was started with --on-miss error."""

    errno = errno.ENOENT


def unexpected(error: Exception, what: str = "") -> RemoteError:
    """The error for an exception that growfs does not know. what: the beginning of the text."""
    text = f"{what}unexpected {type(error).__name__}: {error}"
    if isinstance(error, ImportError):  # no other request would do better
        return RemoteError(f"{text}; if a package was upgraded or removed, unmount, and mount again")
    return RemoteBusy(text)


def pip_install(*words: str) -> str:
    """The command that installs packages, or an extra such as `growfs[report]`, for the Python that runs growfs."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])
