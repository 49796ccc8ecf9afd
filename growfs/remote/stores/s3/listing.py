"""How a page of S3's ListObjectsV2 is read: by a plain GET, at a third of the library's CPU time.

A request that cannot be made so is left to the library.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from growfs.errors import RemoteError
from growfs.remote.interface import RemoteFile, Skipped
from growfs.remote.metadata import file_from_fields, to_ns
from growfs.remote.names import reason_to_skip

ENCODED = {"EncodingType": "url"}
"""A parameter that makes a listing encode its keys, as XML cannot carry all characters."""
LOST_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ufffe\\uffff]|&#(x0*([0-8bcef]|1[0-9a-f])|0*([0-8]|1[124-9]|2[0-9]|3[01]));",
    re.IGNORECASE,
)
"""Characters and references to them that are not allowed in XML 1.0 (https://www.w3.org/TR/xml/#charsets)."""
ARCHIVED = "archived: restore it, or copy it to another storage class"
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""The storage classes whose objects can be read only once restored (docs.aws.amazon.com: storage-class-intro)."""


class NotAListing(Exception):
    """A response that is not a page of a listing, though its status is 200. The text says why."""


class KeyPage(NamedTuple):
    """A page of the server's listing: files in its order, with markers and names that cannot be local."""

    files: list[RemoteFile]
    reasons: dict[str, str]
    """Why a file, by its path, cannot be read or requested."""
    token: str | None
    """The token of the next page."""
    more: bool
    unsure: tuple[str, str] | None = None
    """Both readings of a path, if it is unknown what the server writes as '+': a space, or a plus."""

    def without_skipped(self, count: int) -> tuple[list[RemoteFile], list[Skipped]]:
        """Of the first `count` files, those that can be local, and the others. Folder markers are in neither list."""
        found: list[RemoteFile] = []
        skipped: list[Skipped] = []
        for file in self.files[:count]:
            if not file.size and (file.path.endswith("/") or not file.path):
                continue
            reason = reason_to_skip(file.path, file.size) or self.reasons.get(file.path)
            if reason:
                skipped.append(Skipped(reason, file.path))
            else:
                found.append(file)
        return found, skipped


def parsed(body: bytes, prefix: str, plus: str | None = " ") -> KeyPage:
    """The page that the body of a response has. Raises NotAListing.

    prefix: of all keys. plus: what '+' stands for in an encoded key; None if unknown.
    """
    try:
        try:
            root = ET.fromstring(body)
        except ET.ParseError:  # a name may have bytes that XML cannot carry
            root = ET.fromstring(_CONTROLS.sub(LOST_CHARACTER, body.decode(errors="replace")))
        return _parsed(root, prefix, plus)
    except (ET.ParseError, KeyError, ValueError) as error:
        raise NotAListing(f"{type(error).__name__}: {error}") from None


def _parsed(root: ET.Element, prefix: str, plus: str | None) -> KeyPage:
    space = root.tag.removesuffix("ListBucketResult")
    if space == root.tag:
        raise NotAListing(f"<{root.tag}>")
    truncated = root.findtext(f"{space}IsTruncated")
    if truncated not in ("true", "false"):
        raise NotAListing("it does not say whether there are more names")
    storage, restored = f"{space}StorageClass", f"{space}RestoreStatus/{space}RestoreExpiryDate"
    items = []
    for item in root.iterfind(f"{space}Contents"):
        fields = {each.tag: each.text or "" for each in item}
        if fields.get(storage) in ARCHIVES and item.find(restored) is not None:
            del fields[storage]
        items.append(fields)
    encoding, token = root.findtext(f"{space}EncodingType"), root.findtext(f"{space}NextContinuationToken")
    return _key_page(items, space, encoding, token, truncated == "true", prefix, plus)


def from_library(reply: dict[str, Any], prefix: str, plus: str | None = " ") -> KeyPage:
    """The same from the library's reply to a request with ENCODED, whose keys the library leaves as they are."""
    if "IsTruncated" not in reply:
        raise NotAListing("it does not say whether there are more names")
    items = reply.get("Contents", [])
    for item in items:
        if item.get("RestoreStatus", {}).get("RestoreExpiryDate"):
            item.pop("StorageClass", None)
    more = bool(reply["IsTruncated"])
    return _key_page(items, "", reply.get("EncodingType"), reply.get("NextContinuationToken"), more, prefix, plus)


def _key_page(
    items: list[dict[str, Any]],
    space: str,
    encoding: str | None,
    token: str | None,
    more: bool,
    prefix: str,
    plus: str | None,
) -> KeyPage:
    """items: their fields, under S3's names after `space`; without the storage class if they were restored.

    Raises RemoteError if there are more names but the server gives no token for them.
    """
    if more and not token:
        raise RemoteError(
            "the server says that there are more names, but not how to get them; it does not implement ListObjectsV2"
        )
    key, size, etag, time, storage = (space + name for name in ("Key", "Size", "ETag", "LastModified", "StorageClass"))
    is_encoded, begin = encoding == "url", len(prefix)  # otherwise the server ignored the parameter
    keys = [item[key] for item in items]
    plus = (_plus_in(keys) or plus) if is_encoded else "+"
    found: list[RemoteFile] = []
    reasons: dict[str, str] = {}
    for sent, item in zip(keys, items, strict=True):
        name = _decoded(sent, plus or " ") if is_encoded else sent
        path = name[begin:]
        found.append(file_from_fields(path, int(item[size]), item.get(etag, ""), seconds_ns(item.get(time))))
        if LOST_CHARACTER in name and quote(LOST_CHARACTER) not in sent.upper():
            reasons[path] = "the listing cannot show its name: it is not UTF-8, or contains a control character"
        elif item.get(storage) in ARCHIVES:
            reasons[path] = ARCHIVED
    example = next((sent for sent in keys if "+" in sent), "") if plus is None else ""
    unsure = (_decoded(example, " ")[begin:], _decoded(example, "+")[begin:]) if example else None
    return KeyPage(found, reasons, token, more, unsure)


def _decoded(key: str, plus: str) -> str:
    return unquote(key.replace("+", plus) if plus != "+" else key)


def _plus_in(keys: list[str]) -> str | None:
    """What the server writes as '+', as far as these encoded keys show it; None if they do not.

    AWS writes a space (and botocore expects that); a server that writes a space as %20 leaves a plus as it is.
    """
    if not any("+" in key for key in keys):
        return " "
    if any("%20" in key for key in keys):
        return "+"
    return " " if any("%2B" in key or "%2b" in key for key in keys) else None


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
