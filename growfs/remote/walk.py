"""Walks over a tree of folders; several of them are read ahead in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from growfs.remote.interface import Page, RemoteFile, Skipped

PAGE_FILES_MAX = 1000

Entry = RemoteFile | Skipped | str
"""What is in a folder. A string is another folder, by its path from the root."""
Read = Callable[[str], list[Entry]]


def pages(read: Read, parallel: int, cursor: Any = None) -> Iterator[Page]:
    """All files below the root, folder by folder.

    read: returns what is in a folder. It is called from `parallel` threads if that is more than 1.
    cursor: the folders still to read, and the last path that was returned of the last one.
    """
    todo, after = (list(cursor[0]), cursor[1]) if cursor else ([""], "")
    files: list[RemoteFile] = []
    skipped: list[Skipped] = []
    with _reading_ahead(read, parallel) as read_last:
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
def _reading_ahead(read: Read, parallel: int) -> Iterator[Callable[[list[str]], list[Entry]]]:
    """Gives a function that reads the last of some folders, and meanwhile reads ahead those before it."""
    if parallel == 1:
        yield lambda todo: read(todo[-1])
        return
    pending: dict[str, Future[list[Entry]]] = {}

    def read_last(todo: list[str]) -> list[Entry]:
        for folder in reversed(todo[-parallel:]):
            if folder not in pending and (len(pending) < parallel or folder is todo[-1]):
                pending[folder] = pool.submit(read, folder)
        return pending.pop(todo[-1]).result()

    pool = ThreadPoolExecutor(parallel)
    try:
        yield read_last
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
