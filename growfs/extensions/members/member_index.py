"""The index of an archive: its members, and where their bytes are. `IndexCache` keeps indexes on disk.

Finding the members means reading the archive, so an index is kept for each version of each archive, and for the
function that found the members. An index has one JSON line per member, or one line with the reason why there are none.
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
"""The version of the index files, and of the results of growfs's index functions. Raised when either changes."""


class UnreadableArchive(Exception):
    """No members can be found in a file. The text is a reason, short enough to be counted by."""


class IndexCache:
    """Owns the folder `members` of a cache, with a file for each index."""

    def __init__(self, cache: Path, identity: str) -> None:
        """identity: of the function that finds the members, and of its code; another identity reads other indexes."""
        self._folder = cache / "members"
        self._partial = cache / "partial"
        self._identity = identity

    def path(self, archive: str, version: str) -> Path:
        """The path of the index of this version of the archive, whether or not it exists."""
        key = json.dumps([FORMAT, self._identity, archive, version])
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]

    def write(self, index: Path, members: Iterable[Member]) -> None:
        """Write an index; if iterating members raises UnreadableArchive, the index contains only that reason.

        Raises OSError, and any other error of iterating members; the index is not written then.
        """
        for folder in (self._folder, self._partial):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self._partial, prefix="index-", delete=False) as draft:
            try:
                try:
                    for member in members:
                        draft.write(json.dumps(member) + "\n")
                except UnreadableArchive as reason:
                    draft.seek(0)
                    draft.truncate()
                    draft.write(json.dumps(str(reason)) + "\n")
                draft.flush()
                os.fsync(draft.fileno())  # otherwise it could exist after a power loss, but be empty
                os.replace(draft.name, index)
            except BaseException:
                os.unlink(draft.name)
                raise

    def read(self, index: Path, skip: int = 0) -> Iterator[Member]:
        """The members in an index, without the first `skip`.

        Raises UnreadableArchive if the index has a reason instead, and OSError if there is no index.
        """
        with index.open() as lines:
            for line in islice(lines, skip, None):
                entry = json.loads(line)
                if isinstance(entry, str):
                    raise UnreadableArchive(entry)
                yield Member(*entry)

    def keep_only(self, names: set[str]) -> None:
        """Delete every index whose file name is not in names."""
        if self._folder.exists():
            for index in self._folder.iterdir():
                if index.name not in names:
                    index.unlink(missing_ok=True)
