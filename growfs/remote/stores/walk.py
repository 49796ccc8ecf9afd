"""The walk over a tree of folders, some of which are read ahead side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from growfs.remote.protocol import Page, RemoteFile, Skipped

PAGE_FILES_MAX = 1000

Entry = RemoteFile | Skipped | str
"""What is in a folder; a text is another folder, with its path from the root."""
Read = Callable[[str], list[Entry]]


def pages(read: Read, side_by_side: int, cursor: Any = None) -> Iterator[Page]:
    """All that is below the root, folder by folder.

    read: gives what is in a folder, from its path; from that many threads where side_by_side is more than 1.
    cursor: the folders still to read, and the last path that was told of the last one.
    """
    todo, after = (list(cursor[0]), cursor[1]) if cursor else ([""], "")
    files: list[RemoteFile] = []
    skipped: list[Skipped] = []
    with _reading(read, side_by_side) as read_last:
        while todo:
            found = read_last(todo)
            for entry in sorted((entry for entry in found if not isinstance(entry, str)), key=lambda entry: entry.path):
                if entry.path <= after:
                    continue
                if isinstance(entry, RemoteFile):
                    files.append(entry)
                else:
                    skipped.append(entry)
                if len(files) + len(skipped) >= PAGE_FILES_MAX:
                    yield Page(files, skipped, (tuple(todo), entry.path))
                    files, skipped = [], []
            todo[-1:] = [entry for entry in found if isinstance(entry, str)]
            after = ""
    if files or skipped:
        yield Page(files, skipped, ((), ""))


@contextmanager
def _reading(read: Read, side_by_side: int) -> Iterator[Callable[[list[str]], list[Entry]]]:
    """Reads the last of some folders, and meanwhile those that come next."""
    if side_by_side == 1:
        yield lambda todo: read(todo[-1])
        return
    coming: dict[str, Future[list[Entry]]] = {}

    def read_last(todo: list[str]) -> list[Entry]:
        for folder in reversed(todo[-side_by_side:]):
            if folder not in coming and (len(coming) < side_by_side or folder is todo[-1]):
                coming[folder] = pool.submit(read, folder)
        return coming.pop(todo[-1]).result()

    pool = ThreadPoolExecutor(side_by_side)
    try:
        yield read_last
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
