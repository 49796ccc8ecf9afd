"""`Inventory`: lists the files of a bucket from Amazon S3 Inventory instead of listing the bucket.

The format: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

from growfs.errors import RemoteError, RemoteMissing, UsageError
from growfs.extensions.manifests.tables import Csv, Parquet, Table
from growfs.remote.interface import RemoteFile, RemoteSpec, Skipped
from growfs.remote.metadata import SECOND_NS
from growfs.remote.stores.base import StoreRemote
from growfs.remote.stores.registry import open_store, store_class
from growfs.remote.stores.s3.listing import ARCHIVED, ARCHIVES

_COLUMNS = ("key", "bucket", "size", "lastmodifieddate", "etag", "islatest", "isdeletemarker", "storageclass")
_YES, _NO = (True, "true", "TRUE"), (False, "false", "FALSE")
_DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\dZ")


class Inventory:
    """The files of a bucket, or those below a prefix of it, from its inventory.

    A cursor is the manifest.json, the number of the data file, and the row in it. An inventory does not say which
    archived objects are restored, so all of them are skipped.
    """

    def __init__(self, manifest: StoreRemote, spec: RemoteSpec) -> None:
        """manifest: a manifest.json, or the folder of an inventory's configuration, of which the newest one is used.

        spec: of the bucket. The data files are read with its options. Raises UsageError if it is not a bucket.
        """
        if not store_class(spec.url).has_inventories:
            raise UsageError(
                f"{manifest.safe_url()}: is an inventory of a bucket; mount the bucket: s3://bucket/prefix"
            )
        self._manifest = manifest
        self._spec = spec
        self._bucket, _, prefix = spec.url.partition("://")[2].rstrip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._data: dict[str, StoreRemote] = {}  # by URL; kept because the first request of each is slow

    def files(self, cursor: Any = None) -> Iterator[tuple[Any, RemoteFile | Skipped]]:
        where, first, after = cursor or (self._newest(), 0, 0)
        found = cursor is not None
        for index, table in enumerate(self._tables(where)):
            if index >= first:
                for row, file in self._listed(table, after if index == first else 0):
                    found = True
                    yield (where, index, row), file
        if self._prefix and not found:
            raise RemoteMissing(
                f"{self._manifest.safe_url(where)}: lists nothing below {self._spec.url}; check the prefix"
            )

    def _newest(self) -> str:
        if not self._manifest.spec.url.endswith("/"):
            return ""
        folders = [name for name in self._manifest.read_folder("") if isinstance(name, str) and _DATED.fullmatch(name)]
        for folder in sorted(folders, reverse=True):
            with suppress(RemoteMissing):
                self._manifest.stat(path := f"{folder}/manifest.json")
                return path
        raise RemoteMissing(
            f"{self._manifest.safe_url()}: contains no folder such as 2026-01-31T01-00Z with a manifest.json; use the"
            " folder of an inventory's configuration, or a manifest.json"
        )

    def _tables(self, where: str) -> Iterator[Table]:
        safe_url = self._manifest.safe_url(where)
        with self._manifest.translating(where), self._manifest.as_file(where) as stream:
            content = stream.read(64 << 20)
        try:
            manifest = json.loads(content)
            source, target, kind = manifest["sourceBucket"], manifest["destinationBucket"], manifest["fileFormat"]
            names = manifest["fileSchema"].split(",")
            files = [(str(file["key"]), str(file.get("MD5checksum", ""))) for file in manifest["files"]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise RemoteError(f"{safe_url}: is not a manifest.json of an S3 Inventory ({what})") from None
        if source != self._bucket:
            raise RemoteError(
                f"{safe_url}: is the inventory of s3://{source}, not of {self._spec.url}; mount that bucket"
            )
        if kind not in ("CSV", "Parquet"):
            raise RemoteError(f"{safe_url}: its files are {kind}; configure the inventory to write CSV or Parquet")
        url = f"s3://{target.rpartition(':')[2]}"
        data = self._data.setdefault(url, open_store(replace(self._spec, url=url)))
        for key, md5 in files:  # a Parquet file is never read as a whole, so its MD5 stays unknown
            yield Csv(data, key, md5.lower(), names=names) if kind == "CSV" else Parquet(data, key)

    def _listed(self, table: Table, after: int) -> Iterator[tuple[int, RemoteFile | Skipped]]:
        is_csv, prefix = isinstance(table, Csv), self._prefix
        for row, (key, bucket, size, when, etag, latest, marker, storage) in table.rows(_COLUMNS, after):
            if not key or latest in _NO or marker in _YES:
                continue
            if is_csv:
                key = unquote_plus(key, errors="surrogateescape")
            if not key.startswith(prefix) or (key.endswith("/") and size in (0, "0", None, "")):
                continue  # outside the prefix, or a marker that stands for a folder
            if bucket and bucket != self._bucket:
                raise table.error(row, f"is of s3://{bucket}, not of {self._spec.url}")
            if storage in ARCHIVES:
                yield row, Skipped(ARCHIVED, key[len(prefix) :])
                continue
            mtime_ns = table.mtime_ns(row, when)
            yield (
                row,
                RemoteFile(
                    key[len(prefix) :],
                    table.size(row, size),
                    mtime_ns and mtime_ns // SECOND_NS * SECOND_NS,  # the precision of HEAD and GET
                    (etag or "").strip('"'),
                ),
            )
