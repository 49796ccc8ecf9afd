"""RemoteFiles from the metadata of a store, whatever the store calls the size, time and version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from growfs.remote.interface import RemoteFile

_VERSION_KEYS = ("generation", "ETag", "etag", "md5Hash", "md5", "blob_id", "xet_hash", "Content-MD5", "Digest")
_MTIME_KEYS = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "modified", "created", "modify")
"""The last one is of FTP (RFC 3659, 7.5.3)."""
SECOND_NS = 10**9


def file_from_info(path: str, info: dict[str, Any]) -> RemoteFile:
    """The RemoteFile that fsspec's info of a file describes."""
    size = info.get("size")
    mtime_ns = next((ns for key in _MTIME_KEYS if (ns := to_ns(info.get(key))) is not None), None)
    if mtime_ns is None and isinstance(milliseconds := info.get("modificationTime"), int):  # of WebHDFS
        mtime_ns = to_ns(milliseconds / 1000)
    version = next((text for key in _VERSION_KEYS if (text := str(info.get(key) or "").strip('"'))), "")
    size = None if size is None else int(size)
    return RemoteFile(path, size, mtime_ns, version or version_by_time(size, mtime_ns))


def file_from_headers(path: str, size: int, headers: Mapping[str, str]) -> RemoteFile:
    """The RemoteFile that the headers of a GET describe."""
    return file_from_fields(path, size, headers.get("etag", ""), to_ns(headers.get("last-modified")))


def file_from_fields(path: str, size: int | None, etag: str, mtime_ns: int | None) -> RemoteFile:
    """A RemoteFile with these fields. Its version is the ETag, otherwise the time and size."""
    return RemoteFile(path, size, mtime_ns, etag.strip('"') or version_by_time(size, mtime_ns))


def version_by_time(size: int | None, mtime_ns: int | None) -> str:
    """The version of a file without an ETag; empty if its time or size is unknown."""
    return "" if size is None or mtime_ns is None else f"{mtime_ns}-{size}"


def to_ns(when: Any) -> int | None:
    """Nanoseconds since the epoch, from a datetime, seconds, or an ISO 8601, HTTP or FTP date; None for anything else.

    Also None for a time before 1677 or after 2262, whose number does not fit into 64 bits. Precise to the microsecond,
    so that a moment gives the same number whether a store gives it as a float or as a datetime.
    """
    if isinstance(when, str):
        when = _parsed(when)
    if isinstance(when, (int, float)) and abs(when) < 1e12:
        return fitting(round(when * 1_000_000) * 1000)
    if not isinstance(when, datetime):
        return None
    moment = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return fitting(since_1970 // timedelta(microseconds=1) * 1000)


def fitting(ns: int) -> int | None:
    """A time in nanoseconds since the epoch; None if it does not fit into 64 bits, which is all that SQLite keeps."""
    return ns if -(2**63) <= ns < 2**63 else None


@lru_cache(maxsize=1024)  # many files are stored within the same second
def _parsed(text: str) -> datetime | float | None:
    text = text.strip()
    if text[4:5] == "-":  # as in most manifests, which may have 100 million rows
        try:
            return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1] in "zZ" else text)
        except ValueError:
            pass
    if text[3:5] == ", ":  # as in HTTP
        with suppress(TypeError, ValueError, OverflowError):
            return parsedate_to_datetime(text)
    if re.fullmatch(r"\d{14}(\.\d+)?", text):  # as in FTP
        with suppress(ValueError):
            return datetime.strptime(text[:14], "%Y%m%d%H%M%S")
    with suppress(ValueError):
        return float(text)
    iso = re.sub(r"\.(\d{1,6})\d*", lambda found: "." + found[1].ljust(6, "0"), text)  # Python 3.10 needs 6 digits
    with suppress(ValueError):
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", iso))
    with suppress(TypeError, ValueError, OverflowError):
        return parsedate_to_datetime(text)
    return None
