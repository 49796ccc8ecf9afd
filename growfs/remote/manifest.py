"""`ManifestRemote`: a file of paths stands in for a listing. It is streamed: ten million lines need no memory."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from growfs.errors import RemoteError
from growfs.remote.fsspec_remote import FsspecRemote, to_ns
from growfs.remote.names import reason_to_skip
from growfs.remote.protocol import Page, Progress, Remote, RemoteFile, Skipped

PAGE_LINES_MAX = 10_000
LINE_CHARS_MAX = 65_536
SUFFIXES = {".txt": None, ".csv": ",", ".tsv": "\t"}  # to the delimiter of a table's columns


class ManifestRemote:
    """Lists what a manifest says, and stats and fetches through another remote. A page's cursor: lines consumed.

    A path that stands in two lines is told twice: to know, one would have to remember all of them.
    """

    def __init__(self, manifest: FsspecRemote, remote: Remote, root: str) -> None:
        """root: the URL that the manifest's paths are relative to."""
        self._manifest = manifest
        self._remote = remote
        self._root = root.rstrip("/") + "/"
        self._delimiter = SUFFIXES.get(suffix_of(manifest.spec.url))

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        rows = ((line, row) for line, row in self._rows() if line > (cursor or 0))
        while batch := list(itertools.islice(rows, PAGE_LINES_MAX)):
            page = Page([], [], batch[-1][0])
            for file in (self._file(line, row) for line, row in batch if row.get("path")):
                if reason := reason_to_skip(file.path):
                    page.skipped.append(Skipped(reason, file.path))
                else:
                    page.files.append(file)
            yield page

    def stat(self, path: str) -> RemoteFile:
        return self._remote.stat(path)

    def fetch(self, file: RemoteFile, target: Path, progress: Progress) -> RemoteFile:
        return self._remote.fetch(file, target, progress)

    def _rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Each line's number and columns. A text file has one column, path."""
        if self._delimiter is None:
            for number, line in enumerate(self._lines(), 1):
                text = line.rstrip("\r\n")
                yield number, {} if text.lstrip().startswith("#") else {"path": text.strip()}
            return
        table = csv.DictReader(self._lines(), delimiter=self._delimiter, restval="")
        try:
            names = [name.strip().lower() for name in table.fieldnames or ()]
            if "path" not in names:
                raise self._wrong(1, "has no column 'path'")
            table.fieldnames = names
            for row in table:
                yield table.line_num, row
        except csv.Error as error:
            raise self._wrong(table.line_num, str(error)) from None

    def _lines(self) -> Iterator[str]:
        manifest = self._manifest
        with manifest.told(), manifest.fs.open(manifest.root or manifest.spec.url, "rb") as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
            for number in itertools.count(1):
                line = text.readline(LINE_CHARS_MAX)
                if not line:
                    return
                if len(line) == LINE_CHARS_MAX:
                    raise self._wrong(number, f"is longer than {LINE_CHARS_MAX} characters; is this a list of paths?")
                yield line

    def _file(self, line: int, row: dict[str, str]) -> RemoteFile:
        path = row["path"].removeprefix("./")
        if path.startswith(self._root):
            path = path[len(self._root) :]
            if self._root.startswith("http"):
                path = unquote(path, errors="surrogateescape")  # a URL is quoted, a path is not
        if "://" in path or (path.startswith("/") and self._root.startswith("/")):
            raise self._wrong(line, "names a file outside the remote")
        size, when = row.get("size") or None, row.get("mtime") or None
        if size is not None and not size.strip().isdecimal():
            raise self._wrong(line, f"has a size that is no number: {size!r}")
        mtime_ns = to_ns(when)
        if when is not None and mtime_ns is None:
            raise self._wrong(line, f"has an mtime that is no time: {when!r}")
        version = (row.get("version") or row.get("etag") or "").strip().strip('"')
        return RemoteFile(path, None if size is None else int(size), mtime_ns, version)

    def _wrong(self, line: int, what: str) -> RemoteError:
        return RemoteError(f"{self._manifest.shown()}: line {line} {what}")


def suffix_of(url: str) -> str:
    return Path(url.split("?")[0]).suffix.lower()
