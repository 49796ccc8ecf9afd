"""Recovery when a daemon starts: after a clean stop all rows count, otherwise only those whose files can be trusted.

After a crash, a row counts if it names the very file that was admitted: with the same inode number and modification
time, or the same digest. (The change time would not do: each link to a file changes it.) If its row is not durable,
that is, not covered by a syncfs, the content decides: a disk that failed may have lost it, and was mounted again since.
After a power loss, which may have taken all such content, the row must be durable. A file without a row is deleted.
Readers therefore never get a half-written file.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from growfs import disk
from growfs.cache.database import Database
from growfs.cache.schema import id_at, query_of, set_meta, with_paths
from growfs.errors import TooManyOpen
from growfs.remote import digest

log = logging.getLogger(__name__)


class Identity(NamedTuple):
    """Identifies the file on disk that was admitted, by its inode number and modification time."""

    ino: int
    """As the signed 64-bit number with the same bits, which SQLite can store. Some file systems use all 64."""
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        """The identity of a file."""
        return cls(stat.st_ino - (stat.st_ino >> 63 << 64), stat.st_mtime_ns)


def verify_content(path: Path, expected: str, flags: int = 0) -> Identity | None:
    """The identity that a file has now, if its content has the digest `expected`; else None.

    flags: as in `digest.of`. Raises TooManyOpen, which says nothing about the file.
    """
    try:
        stat = path.lstat()
        is_same = S_ISREG(stat.st_mode) and digest.of(path, flags=flags) == expected
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpen(f"{path}: {error.strerror}; raise the limit (ulimit -n) and mount again") from None
        return None
    return Identity.of(stat) if is_same else None


def verify_on_medium(path: Path, expected: str) -> bool:
    """Whether a file's content is on the medium: the page cache may have data that a failing disk has lost.

    The page cache keeps its data for readers meanwhile, if the file system can read past it.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
    except OSError:
        with suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return verify_content(path, expected) is not None
    return verify_content(path, expected, os.O_DIRECT) is not None


def set_identity(writer: sqlite3.Connection, id: int, identity: Identity) -> None:
    """Record which file on disk is the resident one."""
    writer.execute("UPDATE resident SET ino = ?, file_mtime_ns = ? WHERE id = ?", (*identity, id))


def boot_id() -> str:
    """A text that is different for each boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def recover(database: Database, folder: Path) -> None:
    """Make rows and files agree, before anything reads either."""
    disk.fresh_folder("SWEEP_PARTIAL", folder / "partial")
    files = folder / "files"
    clean_by_default = not files.exists()  # without a database, all files are deleted
    database.stopped_cleanly = bool(database.meta("clean", clean_by_default))
    if not database.stopped_cleanly:
        durable_only = database.meta("boot_id") != boot_id()
        lost = database.write_now(lambda writer: _drop_untrusted(writer, files, durable_only))
        strays = [path for path, _ in disk.walk_files(files) if not _has_row(database, str(path.relative_to(files)))]
        for path in strays:
            disk.unlink("SWEEP_STRAY", path)
            disk.prune_folders("SWEEP_FOLDER", path.parent, files)
        log.info(
            "the last daemon did not stop cleanly, or the cache contains files that are not its own: %d files dropped;"
            " %d unfinished or foreign files removed",
            lost,
            len(strays),
        )

    def begin(writer: sqlite3.Connection) -> None:
        set_meta(writer, "clean", 0)
        set_meta(writer, "boot_id", boot_id())

    database.write_durably(begin)


def _drop_untrusted(writer: sqlite3.Connection, files: Path, durable_only: bool) -> int:
    lost = list(_untrusted(writer, files, durable_only))
    for id in lost:
        writer.execute("DELETE FROM resident WHERE id = ?", (id,))
        writer.execute("UPDATE node SET drawn = 0 WHERE id = ?", (id,))  # the current pass may draw it again
    while writer.execute(
        "DELETE FROM resident WHERE id IN (SELECT r.id FROM resident r JOIN node n USING (id)"
        " WHERE n.is_dir = 1 AND NOT EXISTS (SELECT 1 FROM resident c WHERE c.parent = r.id))"
    ).rowcount:
        pass
    return len(lost)


def _untrusted(writer: sqlite3.Connection, files: Path, durable_only: bool) -> Iterator[int]:
    columns = "n.id, n.size, r.ino, r.file_mtime_ns, r.digest, r.durable"
    rest = "resident r JOIN node n USING (id) WHERE n.is_dir = 0"
    for name, id, size, ino, mtime_ns, expected, durable in list(with_paths(query_of(writer), columns, rest)):
        path = files / name
        try:
            stat = path.lstat()
        except OSError:
            yield id
            continue
        if S_ISDIR(stat.st_mode):
            disk.remove_tree("SWEEP_STRAY", path)
        found = Identity.of(stat)
        if (durable_only and not durable) or (found.ino, stat.st_size) != (ino, size):
            yield id
        elif not durable or found.mtime_ns != mtime_ns:
            if identity := verify_content(path, expected):
                set_identity(writer, id, identity)
            else:
                yield id


def _has_row(database: Database, path: str) -> bool:
    if any("\ud800" <= letter <= "\udfff" for letter in path):  # it is not UTF-8; all names in the catalog are
        return False
    return database.row("SELECT 1 FROM resident WHERE id = ?", id_at(database.rows, path)) is not None
