"""`growfs verify`: compares cached files with their digests, in this process, at the lowest disk priority.

If a daemon uses the cache, files that differ are passed to the daemon, which checks again, evicts and refetches them.
Otherwise they are removed here, and the next mount drops their rows, as after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from growfs import disk
from growfs.cache.cache_folder import DATABASE, check_format, locked, read_only
from growfs.cache.recovery import verify_on_medium
from growfs.cache.schema import query_of, set_meta, with_paths
from growfs.client.progress import Bar
from growfs.daemon.control_client import call
from growfs.daemon.running import find_cache, in_mount
from growfs.daemon.status_text import files
from growfs.errors import GrowfsError

BATCH_FILES = 1000


@dataclass(slots=True)
class Verified:
    """The result.

    damaged: the paths of the files that differed from what was fetched. fetched: how many of these were fetched again.
    error: why the last one that was not fetched was not.
    """

    files: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    fetched: int = 0
    error: str | None = None


def verify(place: Path) -> Verified:
    """Verify the cached files. place: a mountpoint, a cache, or a directory of caches. Raises GrowfsError."""
    total = Verified()
    for cache in _caches(place):
        with Bar("verifying") as bar:
            _verify(cache, total, bar)
    return total


def _caches(place: Path) -> list[Path]:
    try:
        return [find_cache(place)]
    except GrowfsError:
        if not in_mount(place) and (found := sorted(path.parent for path in place.glob(f"*/{DATABASE}"))):
            return found
        raise


def _verify(cache: Path, total: Verified, bar: Bar) -> None:
    with locked(cache) as is_ours:
        check_format(cache)
        damaged = _damaged(cache, total, bar)
        if not damaged:
            return
        if not is_ours:
            _refetch(cache, damaged, total, bar)
        else:
            _remove(cache, damaged)
            total.damaged += damaged.values()


def _refetch(cache: Path, damaged: dict[int, str], total: Verified, bar: Bar) -> None:
    """Make the daemon replace files, a few at a time: a request has a limit."""
    ids = list(damaged)
    for start in range(0, len(ids), BATCH_FILES):
        bar.show(f"fetching {files(len(ids))}", start, len(ids))
        answer = call(cache, "refetch", ids=ids[start : start + BATCH_FILES])
        total.damaged += [damaged[id] for id in answer["ids"]]
        total.fetched += answer["fetched"]
        total.error = answer["error"] or total.error


def _damaged(cache: Path, total: Verified, bar: Bar) -> dict[int, str]:
    """The paths of the files that differ from what was fetched, by node id."""
    damaged: dict[int, str] = {}
    try:
        with closing(read_only(cache / DATABASE)) as connection:
            count, bytes = connection.execute(
                "SELECT count(*), coalesce(sum(bytes), 0) FROM resident WHERE suffix IS NOT NULL"
            ).fetchone()
            done_bytes = 0
            rest = "resident r JOIN node n USING (id) WHERE n.is_dir = 0 ORDER BY r.seq"
            # All are read at once: a long query would keep the daemon's write-ahead log from being truncated.
            rows = list(with_paths(query_of(connection), "n.id, r.bytes, r.digest", rest))
            for done, (path, id, size, digest) in enumerate(rows):
                bar.show(f"{done:,} of {files(count)}, {len(damaged):,} damaged", done_bytes, bytes)
                with _unwatched(cache, path) as file:
                    if not verify_on_medium(file, digest):
                        damaged[id] = path
                done_bytes += size
                total.files += 1
                total.bytes += size
    except sqlite3.Error as error:
        raise GrowfsError(f"{cache}: its database cannot be read: {error}") from None
    return damaged


@contextmanager
def _unwatched(cache: Path, path: str) -> Iterator[Path]:
    """Another path of a cached file, in a folder where the links engine does not count opens."""
    file, other = cache / "files" / path, cache / "partial" / f"verify-{os.getpid()}"
    try:
        os.link(file, other)
    except OSError:  # no more links to it can be made, or it has just been evicted
        yield file
        return
    try:
        yield other
    finally:
        other.unlink(missing_ok=True)  # a mount that begins empties the folder


def _remove(cache: Path, damaged: dict[int, str]) -> None:
    """Remove files of a cache that is locked here. Its rows are then no longer trusted as they are."""
    with closing(sqlite3.connect(cache / DATABASE)) as connection, connection:
        set_meta(connection, "clean", 0)
    for path in damaged.values():
        with suppress(FileNotFoundError):
            disk.unlink("SWEEP_STRAY", cache / "files" / path)
