"""How a page of S3's ListObjectsV2 is read: by a plain GET, at a third of the library's CPU time.

Anything unusual is left to the library, whose own result then counts.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

from growfs.errors import RemoteError
from growfs.remote.http.connection import FallBack
from growfs.remote.interface import RemoteFile, Skipped
from growfs.remote.metadata import file_from_fields, to_ns
from growfs.remote.names import reason_to_skip

ROOT = "ListBucketResult"
ARCHIVED = "archived: restore it, or copy it to another storage class"
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""The storage classes whose objects can be read only once restored (docs.aws.amazon.com: storage-class-intro)."""


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A page of the server's listing: files in its order, with markers and names that cannot be local."""

    files: list[RemoteFile]
    archived: set[str]
    """The paths of files that cannot be read before they are restored."""
    token: str | None
    """The token of the next page."""
    more: bool

    def without_skipped(self, count: int) -> tuple[list[RemoteFile], list[Skipped]]:
        """Of the first `count` files, those that can be local, and the others. Folder markers are in neither list."""
        found: list[RemoteFile] = []
        skipped: list[Skipped] = []
        for file in self.files[:count]:
            if not file.size and (file.path.endswith("/") or not file.path):
                continue
            reason = reason_to_skip(file.path, file.size) or (ARCHIVED if file.path in self.archived else None)
            if reason:
                skipped.append(Skipped(reason, file.path))
            else:
                found.append(file)
        return found, skipped


def parsed(body: bytes, prefix: str) -> KeyPage:
    """The page that the body of a response has. prefix: of all keys. Raises FallBack."""
    try:
        return _parsed(body, prefix)
    except (ET.ParseError, KeyError, ValueError) as error:
        raise FallBack(f"no listing: {type(error).__name__}") from None


def _parsed(body: bytes, prefix: str) -> KeyPage:
    root = ET.fromstring(body)
    if not root.tag.endswith(ROOT):
        raise FallBack(f"no listing: {root.tag}")
    space = root.tag[: -len(ROOT)]
    key, size, etag, time = (space + name for name in ("Key", "Size", "ETag", "LastModified"))
    storage, restored, begin = f"{space}StorageClass", f"{space}RestoreStatus/{space}RestoreExpiryDate", len(prefix)
    encoded = root.findtext(f"{space}EncodingType") == "url"  # otherwise the server ignored the parameter
    found: list[RemoteFile] = []
    archived: set[str] = set()
    for item in root.iterfind(f"{space}Contents"):
        fields = {each.tag: each.text or "" for each in item}
        name = unquote_plus(fields[key]) if encoded else fields[key]
        when = seconds_ns(fields.get(time))
        found.append(file_from_fields(name[begin:], int(fields[size]), fields.get(etag, ""), when))
        if fields.get(storage) in ARCHIVES and item.find(restored) is None:
            archived.add(name[begin:])
    more = root.findtext(f"{space}IsTruncated") == "true"
    return _key_page(found, archived, root.findtext(f"{space}NextContinuationToken"), more)


def from_library(reply: dict[str, Any], prefix: str) -> KeyPage:
    """The same from the library's reply."""
    found: list[RemoteFile] = []
    archived: set[str] = set()
    for item in reply.get("Contents", []):
        when = seconds_ns(item.get("LastModified"))
        path = item["Key"][len(prefix) :]
        found.append(file_from_fields(path, item["Size"], item.get("ETag", ""), when))
        if item.get("StorageClass") in ARCHIVES and not item.get("RestoreStatus", {}).get("RestoreExpiryDate"):
            archived.add(path)
    return _key_page(found, archived, reply.get("NextContinuationToken"), bool(reply.get("IsTruncated")))


def _key_page(files: list[RemoteFile], archived: set[str], token: str | None, more: bool) -> KeyPage:
    """Raises RemoteError if there are more names but the server gives no token for them."""
    if more and not token:
        raise RemoteError(
            "the server says that there are more names, but not how to get them; it does not implement ListObjectsV2"
        )
    return KeyPage(files, archived, token, more)


def seconds_ns(when: Any) -> int | None:
    """Nanoseconds of whole seconds: a listing has milliseconds where HEAD and GET have none (rclone, MinIO)."""
    if isinstance(when, str) and when.endswith("Z"):
        with suppress(ValueError):
            return _utc_ns(when[:19])
    ns = to_ns(when)
    return None if ns is None else ns // 10**9 * 10**9


@lru_cache(maxsize=1024)
def _utc_ns(seconds: str) -> int | None:
    """The time in nanoseconds since 1970. Cached, because many objects were uploaded within the same second."""
    return to_ns(datetime.fromisoformat(f"{seconds}+00:00").timestamp())
