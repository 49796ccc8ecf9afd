"""Writes S3 Inventories in Amazon's documented formats: of a bucket on moto's server, to another bucket there."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus

import pytest

from tests.needs import use
from tests.servers import S3Server

CSV_COLUMNS = [
    "Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag", "StorageClass"
]  # fmt: skip
PARQUET_COLUMNS = [re.sub(r"(?<=.)(?=[A-Z][a-z])", "_", name).lower() for name in CSV_COLUMNS]
"""The same in snake case; ETag is e_tag."""


@dataclass
class InventoryBucket:
    """The bucket that inventories of source are written to, by put; objects lists source."""

    source: S3Server
    name: str
    put: Callable[[str, bytes], None]
    objects: Callable[[str], list[dict[str, Any]]]

    def write(
        self,
        rows: Sequence[dict[str, Any]],
        kind: str = "CSV",
        parts: int = 2,
        folder: str = "",
        pack: Callable[[bytes], bytes] = lambda data: data,
        **changes: Any,
    ) -> str:
        """Write an inventory of rows in `parts` data files; returns the URL of its manifest.json.

        rows: objects as list_objects_v2 returns them, or with the columns of a Parquet inventory. pack: applied to
        each data file after its size and MD5 went into the manifest. changes: replace entries of the manifest.json.
        """
        folder = folder or f"inv/{self.source.bucket}/{uuid.uuid4().hex}/2026-01-02T01-00Z"
        files = []
        for number in range(parts):
            part = [self._row(row) for row in rows[number::parts]]
            data = csv_gz(part) if kind == "CSV" else parquet(part)
            key = f"{folder.rpartition('/')[0]}/data/{uuid.uuid4()}.{'csv.gz' if kind == 'CSV' else 'parquet'}"
            self.put(key, pack(data))
            files.append({"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()})
        manifest = {
            "sourceBucket": self.source.bucket,
            "destinationBucket": f"arn:aws:s3:::{self.name}",
            "version": "2016-11-30",
            "creationTimestamp": "1514944800000",
            "fileFormat": kind,
            "fileSchema": ", ".join(CSV_COLUMNS) if kind == "CSV" else "message s3.inventory { required binary key; }",
            "files": files,
            **changes,
        }
        self.put(f"{folder}/manifest.json", json.dumps(manifest).encode())
        return f"s3://{self.name}/{folder}/manifest.json"

    def _row(self, entry: dict[str, Any]) -> list[Any]:
        values = {
            "bucket": self.source.bucket,
            "key": entry.get("Key"),
            "is_latest": True,
            "is_delete_marker": False,
            "size": entry.get("Size"),
            "last_modified_date": entry.get("LastModified"),
            "e_tag": str(entry.get("ETag", "")).strip('"'),
            "storage_class": entry.get("StorageClass", "STANDARD"),
            **entry,
        }
        return [values.get(column) for column in PARQUET_COLUMNS]


def csv_gz(rows: Sequence[Sequence[Any]]) -> bytes:
    """All fields quoted, keys URL-encoded, no header."""

    def encoded(value: Any, column: str) -> Any:
        if isinstance(value, datetime):
            return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
        if isinstance(value, bool):
            return str(value).lower()
        return quote_plus(value, safe="/", errors="surrogateescape") if column == "Key" and value else value

    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([encoded(*cell) for cell in zip(row, CSV_COLUMNS, strict=False)] for row in rows)
    return gzip.compress(text.getvalue().encode())


def parquet(rows: Sequence[Sequence[Any]]) -> bytes:
    pyarrow = use("pyarrow")
    from pyarrow.parquet import write_table

    kinds = {"is_latest": "bool_", "is_delete_marker": "bool_", "size": "int64"}
    schema = pyarrow.schema(
        (
            name,
            pyarrow.timestamp("ms", "UTC")
            if name == "last_modified_date"
            else getattr(pyarrow, kinds.get(name, "string"))(),
        )
        for name in PARQUET_COLUMNS
    )
    columns = [[row[number] for row in rows] for number in range(len(PARQUET_COLUMNS))]
    written = io.BytesIO()
    write_table(pyarrow.table(columns, schema=schema), written, row_group_size=7)
    return written.getvalue()


@pytest.fixture(scope="session")
def inventories(moto_s3: S3Server) -> Iterator[InventoryBucket]:
    with moto_s3.client() as client:
        client.create_bucket(Bucket="growfs-inventory")
        yield InventoryBucket(
            moto_s3,
            "growfs-inventory",
            lambda key, data: client.put_object(Bucket="growfs-inventory", Key=key, Body=data) and None,
            lambda prefix: client.list_objects_v2(Bucket=moto_s3.bucket, Prefix=prefix).get("Contents", []),
        )
