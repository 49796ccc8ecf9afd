"""`Books`: what was found in each archive, kept on the local disk, so that no archive is read twice.

A book is a text file of a line of JSON for each member, written whole or not at all. Its name is a digest of all that
decides what is in it; so nothing is ever written to one that is there, whichever processes do it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from growfs.producers.archives import Member

FORMAT = 1
"""Of a book, and of what growfs's own functions find."""


class Unfit(Exception):
    """A file of which no members can be shown; the text is a reason that can be counted."""


class Books:
    """Owns a folder of books, below that of a cache. identity: of the function that finds members, as it is now."""

    def __init__(self, cache: Path, identity: str) -> None:
        self._folder = cache / "members"
        self._drafts = cache / "partial"
        self._identity = identity

    def path(self, path: str, version: str) -> Path:
        """Where the book of an archive is, or will be."""
        key = json.dumps([FORMAT, self._identity, path, version])
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]

    def write(self, book: Path, members: Iterable[Member]) -> None:
        """Make a book, of a reason alone where members raises Unfit. Raises OSError, and what else members does."""
        for folder in (self._folder, self._drafts):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self._drafts, prefix="book-", delete=False) as draft:
            try:
                try:
                    for member in members:
                        draft.write(json.dumps(member) + "\n")
                except Unfit as reason:
                    draft.seek(0)
                    draft.truncate()
                    draft.write(json.dumps(str(reason)) + "\n")
                draft.flush()
                os.fsync(draft.fileno())  # else it may be there after a power loss, and be empty
                os.replace(draft.name, book)
            except BaseException:
                os.unlink(draft.name)
                raise

    def read(self, book: Path, after: int = 0) -> Iterator[Member]:
        """The members that a book has, but for the first few. Raises Unfit, and OSError where there is no such book."""
        with book.open() as lines:
            for line in islice(lines, after, None):
                told = json.loads(line)
                if isinstance(told, str):
                    raise Unfit(told)
                yield Member(*told)

    def keep(self, names: set[str]) -> None:
        """Throw all other books away."""
        if self._folder.exists():
            for book in self._folder.iterdir():
                if book.name not in names:
                    book.unlink(missing_ok=True)
