"""`ManifestRemote`: a remote whose listing is a file of paths, or the inventory of a bucket."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from growfs.extensions.manifests.inventory import Inventory
from growfs.extensions.manifests.layer import is_web_table, suffix_of
from growfs.extensions.manifests.tables import Table, open_table
from growfs.remote.interface import Page, Remote, RemoteFile, RemoteSpec, RemoteWrapper, Skipped
from growfs.remote.names import reason_to_skip
from growfs.remote.stores.registry import open_store, store_class, store_name

PAGE_FILES_MAX = 10_000

_COLUMNS = ("path", "size", "mtime", "version", "etag")


class ManifestRemote(RemoteWrapper):
    """Lists the files of a manifest; stats and fetches through another remote.

    A path in two rows is listed twice, because detecting that would require remembering all paths. The catalog takes
    the first.
    """

    def __init__(self, open_source: Callable[[RemoteSpec], Remote], spec: RemoteSpec, url: str) -> None:
        """open_source, spec: as for a Layer. url: of the manifest; its folder is the remote if that is spec.url."""
        if url == spec.url and is_web_table(url):
            spec = replace(spec, url=url.split("?")[0].rsplit("/", 1)[0] + "/")
        super().__init__(open_source(spec))
        self._manifest = _open(spec, url)

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        found = self._manifest.files(cursor)
        while batch := list(itertools.islice(found, PAGE_FILES_MAX)):
            page = Page([], [], batch[-1][0])
            for _, file in batch:
                if isinstance(file, Skipped):
                    page.skipped.append(file)
                elif reason := reason_to_skip(file.path, file.size):
                    page.skipped.append(Skipped(reason, file.path))
                else:
                    page.files.append(file)
            yield page

    def still_has(self, file: RemoteFile) -> bool:
        """Never: a file without a row is not wanted, whether or not the store has it."""
        return False


def _open(spec: RemoteSpec, url: str) -> Inventory | PathTable:
    """The manifest at url. If it is in the same store as the files, it is read with their options, else with none."""
    manifest = open_store(replace(spec, url=url) if store_name(url) == store_name(spec.url) else RemoteSpec(url))
    manifest.load_library()
    if suffix_of(url) == ".json" or url.endswith("/"):
        return Inventory(manifest, spec)
    return PathTable(open_table(manifest), spec.url, store_class(spec.url).is_percent_encoded)


class PathTable:
    """The rows of a table with a column of paths. A cursor: the number of a row.

    As `Inventory`, it yields each file, whatever its name, with the cursor that continues after it.
    """

    def __init__(self, table: Table, root: str, is_percent_encoded: bool) -> None:
        """root: the URL that the paths are relative to. is_percent_encoded: whether URLs below it are encoded."""
        self._table = table
        self._root = root.rstrip("/") + "/"
        self._is_percent_encoded = is_percent_encoded

    def files(self, cursor: Any = None) -> Iterator[tuple[Any, RemoteFile]]:
        table = self._table
        for row, (path, size, when, version, etag) in table.rows(_COLUMNS, cursor or 0):
            if path:
                version = str(version or etag or "").strip().strip('"')
                file = RemoteFile(self._below(row, path), table.size(row, size), table.mtime_ns(row, when), version)
                yield row, file

    def _below(self, row: int, path: str) -> str:
        path = path.removeprefix("./")
        if path.startswith(self._root):
            path = path[len(self._root) :]
            if self._is_percent_encoded:
                path = unquote(path, errors="surrogateescape")  # unlike a path in the manifest
        if "://" in path or (path.startswith("/") and self._root.startswith("/")):
            raise self._table.error(row, "names a file outside the remote")
        return path
