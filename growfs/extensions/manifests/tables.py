"""Files of rows that replace a listing: text, CSV and Parquet; the first two may be gzipped.

They are streamed, so a hundred million rows need no more memory than a few. The caller knows the meaning of the
columns.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

from growfs.errors import RemoteError, UsageError, pip_install
from growfs.extensions.manifests.layer import SUFFIXES, suffix_of
from growfs.remote.metadata import to_ns
from growfs.remote.stores.base import StoreRemote

Row = tuple[Any, ...]

LINE_CHARS_MAX = 65_536
READ_BYTES = 4 << 20  # for each request; a Parquet file has one such buffer for each column read


class Table:
    """One file of rows, numbered from 1. If md5 is given, a file with another MD5 raises a RemoteError."""

    unit = "line"

    def __init__(self, store: StoreRemote, path: str = "", md5: str = "") -> None:
        """path: relative to the root of the store; empty for the root itself. md5: in hexadecimal."""
        self.store = store
        self.path = path
        self._md5 = md5

    def rows(self, columns: Sequence[str], after: int = 0) -> Iterator[tuple[int, Row]]:
        """The number of each row after row `after`, and its values in `columns`: None or '' if it has none.

        columns: at least two, normalized by normalize(). A table without the first of them raises RemoteError.
        """
        raise NotImplementedError

    def size(self, number: int, value: Any) -> int | None:
        """A value as a size in bytes. Raises RemoteError with the row if it is not one."""
        if value is None or value == "":
            return None
        try:
            if not isinstance(value, str):
                whole = int(value)
                if whole == value and whole >= 0:
                    return whole
            elif value.strip().isdecimal():
                return int(value)
        except (TypeError, ValueError):
            pass
        raise self.error(number, f"has a size that is not a number: {value!r}")

    def mtime_ns(self, number: int, value: Any) -> int | None:
        """A value as nanoseconds since the epoch. Raises RemoteError with the row if it is not a time."""
        if value is None or value == "":
            return None
        mtime_ns = to_ns(value)
        if mtime_ns is None:
            raise self.error(number, f"has an mtime that is not a time: {value!r}")
        return mtime_ns

    def error(self, number: int, what: str) -> RemoteError:
        return RemoteError(f"{self.store.safe_url(self.path)}: {self.unit} {number} {what}")


class Text(Table):
    """One value per line, for the first column. Lines that begin with # have no value."""

    def rows(self, columns: Sequence[str], after: int = 0) -> Iterator[tuple[int, Row]]:
        nothing = (None,) * (len(columns) - 1)
        for number, line in enumerate(self._lines(), 1):
            if number == 1 and line.lstrip().lower().startswith(("<!doctype", "<html", "<?xml")):
                raise self.error(
                    number, "is the start of a web page or XML, not of a list of paths; look for a login page"
                )
            if number > after:
                text = line.strip()
                yield number, ("" if text.startswith("#") else text, *nothing)

    def _lines(self) -> Iterator[str]:
        with self.store.translating(self.path), self.store.as_file(self.path, block_size=READ_BYTES) as stream:
            summed = _Md5Stream(stream)
            raw = io.BufferedReader(summed, READ_BYTES)
            is_gzip = raw.peek(2).startswith(b"\x1f\x8b")  # not by the name: some servers decompress files
            binary = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            text = io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="")
            number = 0
            try:
                while line := text.readline(LINE_CHARS_MAX):
                    number += 1
                    if len(line) == LINE_CHARS_MAX:
                        what = f"is longer than {LINE_CHARS_MAX} characters; is this a list of paths?"
                        raise self.error(number, what)
                    yield line
            except (EOFError, zlib.error, gzip.BadGzipFile):
                raise RemoteError(
                    f"{self.store.safe_url(self.path)}: is cut short or damaged after line {number}; write it again"
                ) from None
            if self._md5 and summed.md5.hexdigest() != self._md5:
                raise RemoteError(
                    f"{self.store.safe_url(self.path)}: is not the file that the inventory lists (its MD5 differs)"
                )


class Csv(Text):
    """Columns named by a header line, or by given names; in that case, each row must have exactly those."""

    def __init__(
        self, store: StoreRemote, path: str = "", md5: str = "", delimiter: str = ",", names: Sequence[str] = ()
    ) -> None:
        super().__init__(store, path, md5)
        self._delimiter = delimiter
        self._given = names

    def rows(self, columns: Sequence[str], after: int = 0) -> Iterator[tuple[int, Row]]:
        reader = csv.reader(self._lines(), delimiter=self._delimiter)
        try:
            names = [normalize(name) for name in self._given or next(reader, [])]
            if columns[0] not in names:
                raise self.error(1, f"has no column {columns[0]!r}")
            width = len(names)
            blank = [""] * width
            chosen = itemgetter(*(names.index(name) if name in names else width for name in columns))
            for row in reader:
                number = reader.line_num
                if number <= after:
                    continue
                if len(row) != width:
                    if self._given and row:
                        raise self.error(number, f"has {len(row)} columns, not {width}")
                    row = (row + blank)[:width]
                row.append("")  # for columns that do not exist
                yield number, chosen(row)
        except csv.Error as error:
            raise self.error(reader.line_num, str(error)) from None


class Parquet(Table):
    """Columns by name. Only the requested columns are read, a few MB of each at a time."""

    unit = "row"

    def __init__(self, store: StoreRemote, path: str = "") -> None:
        """Raises UsageError if the package is missing."""
        super().__init__(store, path)
        if find_spec("pyarrow") is None:
            safe_url = store.safe_url(path)
            raise UsageError(
                f"{safe_url}: Parquet needs a package that is not installed: {pip_install('growfs[inventory]')}"
            )

    def rows(self, columns: Sequence[str], after: int = 0) -> Iterator[tuple[int, Row]]:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        with self.store.translating(self.path), self.store.as_file(self.path, cache_type="none") as stream:
            try:
                file = ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)  # else it reads whole row groups
            except ArrowInvalid as error:
                raise RemoteError(
                    f"{self.store.safe_url(self.path)}: is not a complete Parquet file: {error}"
                ) from None
            names = {normalize(name): name for name in reversed(file.schema_arrow.names)}
            if columns[0] not in names:
                raise RemoteError(f"{self.store.safe_url(self.path)}: has no column {columns[0]!r}")
            present = [names[name] for name in columns if name in names]
            groups = list(range(file.num_row_groups))
            number = 0
            while groups and number + (rows := file.metadata.row_group(groups[0]).num_rows) <= after:
                number += rows
                del groups[0]
            for batch in file.iter_batches(10_000, row_groups=groups, columns=present, use_threads=False):
                nothing = itertools.repeat(None)
                values = [_values(batch.column(names[name])) if name in names else nothing for name in columns]
                for row in zip(*values, strict=False):
                    number += 1
                    if number > after:
                        yield number, row


def open_table(store: StoreRemote) -> Table:
    """The table at the URL of the store. Its suffix determines the kind; text if the suffix is unknown."""
    suffix = suffix_of(store.spec.url)
    if suffix == ".parquet":
        return Parquet(store)
    delimiter = SUFFIXES.get(suffix)
    return Csv(store, delimiter=delimiter) if delimiter else Text(store)


def normalize(name: str) -> str:
    """A column's name without spelling differences: LastModifiedDate and last_modified_date are the same."""
    return name.strip().lower().replace("_", "")


def _values(column: Any) -> list[Any]:
    """The values of a column of a Parquet file: times as seconds since the epoch, bytes as text."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_timestamp(kind):
        microseconds = column.cast(pyarrow.timestamp("us", kind.tz), safe=False).cast(pyarrow.int64())
        return [value and value / 1e6 for value in microseconds.to_pylist()]
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return [value and value.decode(errors="surrogateescape") for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


class _Md5Stream(io.RawIOBase):
    """Reads a stream, and computes the MD5 of the bytes read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.md5 = hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self.md5.update(data)
        buffer[: len(data)] = data
        return len(data)
