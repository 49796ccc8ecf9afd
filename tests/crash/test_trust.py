"""Which cached files the next start keeps after a crash, after a power loss, and after files were altered."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from growfs import disk
from growfs.daemon.running import is_dead
from growfs.remote import digest
from tests.crash.scene import Scene
from tests.harness import Growfs, make_tree, until


@pytest.fixture
def scene(growfs: Growfs) -> Scene:
    """A mount whose files are all local."""
    folder = growfs.mountpoint.parent / "remote"
    scene = Scene(growfs, str(folder), make_tree(folder, directories=2, files=4, size=5000))
    scene.mount()
    scene.complete()
    return scene


@contextmanager
def database(growfs: Growfs) -> Iterator[sqlite3.Connection]:
    """The database of a cache that is not mounted."""
    with closing(sqlite3.connect(growfs.cache / "catalog.sqlite", isolation_level=None)) as rows:
        yield rows


def remount_and_count_fetches(scene: Scene) -> int:
    """Mount again, and return how many files had to be fetched."""
    scene.mount("", "--no-wait")
    assert scene.growfs.content().items() <= scene.tree.items()
    scene.complete()
    scene.check_whole()
    return int(scene.growfs.status()["fetch"]["files_total"])


def lose_power(growfs: Growfs, files: int) -> set[int]:
    """Simulate another boot, with durable rows of this many files; returns their inodes."""
    with database(growfs) as rows:
        rows.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot_id'")
        rows.execute("UPDATE resident SET durable = 0")
        rows.execute(
            "UPDATE resident SET durable = 1 WHERE id IN (SELECT r.id FROM resident r JOIN node n USING (id)"
            " WHERE n.is_dir = 0 ORDER BY r.seq LIMIT ?)",
            (files,),
        )
        durable = {inode for (inode,) in rows.execute("SELECT ino FROM resident WHERE durable = 1")}
    rows.close()
    return durable


@pytest.mark.promise(9)
def test_a_dead_mount_is_detected_at_once(growfs: Growfs, scene: Scene) -> None:
    os.stat(growfs.mountpoint)  # the kernel caches the attributes for a second
    growfs.kill()
    assert is_dead(growfs.mountpoint)
    scene.check()


@pytest.mark.promise(29)
def test_a_power_loss_keeps_only_the_files_of_durable_rows(growfs: Growfs, scene: Scene) -> None:
    """A row of another file does not count."""
    growfs.kill()
    durable = lose_power(growfs, files=3)
    path = next(path for path, stat in disk.walk_files(growfs.cache / "files") if stat.st_ino in durable)
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)
    assert remount_and_count_fetches(scene) == len(scene.tree) - 2


@pytest.mark.promise(29)
def test_a_clean_stop_makes_all_files_durable(growfs: Growfs, scene: Scene) -> None:
    """And what a daemon left in `partial` is removed."""
    growfs.umount()
    (growfs.cache / "partial" / "1030").write_bytes(b"half")
    with database(growfs) as rows:
        assert rows.execute("SELECT count(*) FROM resident WHERE durable = 0").fetchone() == (0,)
        rows.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot_id'")
    assert remount_and_count_fetches(scene) == 0


def truncate(path: Path) -> None:
    path.chmod(0o600)
    os.truncate(path, 100)


def extend(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + b"more")


def replace(path: Path) -> None:
    content = path.read_bytes()[::-1]
    path.unlink()
    path.write_bytes(content)


def overwrite(path: Path) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"altered")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path) -> None:
    target = path.parent.parent.parent.parent / "elsewhere"
    target.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(target)


ALTERATIONS: list[Callable[[Path], None]] = [Path.unlink, truncate, extend, replace, overwrite, make_link]


@pytest.mark.promise(29)
def test_after_an_unclean_stop_altered_files_are_fetched_again(growfs: Growfs, scene: Scene) -> None:
    growfs.kill()
    for path, alter in zip(scene.tree, [*ALTERATIONS, make_folder], strict=False):
        alter(growfs.cache / "files" / path)
    assert remount_and_count_fetches(scene) == len(ALTERATIONS) + 1


@pytest.mark.promise(29)
def test_after_a_clean_stop_altered_files_are_fetched_again_when_opened(growfs: Growfs, scene: Scene) -> None:
    growfs.umount()
    for path, alter in zip(scene.tree, ALTERATIONS, strict=False):
        alter(growfs.cache / "files" / path)
    scene.mount()
    assert growfs.content() == scene.tree
    scene.check_whole()
    assert growfs.status()["miss"]["files_total"] == len(ALTERATIONS)


@pytest.mark.promise(29)
def test_a_crash_loses_no_file_and_files_without_a_row_are_removed(growfs: Growfs, scene: Scene) -> None:
    """Where only the modification time differs, the digest decides."""
    growfs.kill()
    path = growfs.cache / "files" / next(iter(scene.tree))
    before = path.stat()
    path.chmod(0o600)
    os.utime(path)
    for name in (b"stray", b"class0/stray", b"new/folder/stray", b"class0/0000.bin.x", b"caf\xe9"):
        stray = growfs.cache / "files" / os.fsdecode(name)
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"no row")
    assert remount_and_count_fetches(scene) == 0
    assert path.stat().st_ino == before.st_ino
    growfs.umount()
    with database(growfs) as rows:
        row = rows.execute("SELECT digest FROM resident WHERE ino = ?", (before.st_ino,)).fetchone()
    assert row == (digest.of(path),)


@pytest.mark.promise(29)
def test_the_digest_decides_if_a_disk_lost_what_was_not_synced(growfs: Growfs, scene: Scene) -> None:
    """The file system still knows the file's inode, size and time, but its content was never written."""
    growfs.kill()
    path = growfs.cache / "files" / next(iter(scene.tree))
    before = path.stat()
    path.chmod(0o600)
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with database(growfs) as rows:
        rows.execute("UPDATE resident SET durable = 0")
    rows.close()
    assert remount_and_count_fetches(scene) == 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"no database at all" * 1000,
    "header only": lambda content: content[:100] + bytes(len(content) - 100),
    "first page only": lambda content: content[:4096] + os.urandom(len(content) - 4096),
    "half": lambda content: content[: len(content) // 2],
}


def test_a_damaged_database_is_reported_in_one_line_or_created_anew(growfs: Growfs, scene: Scene) -> None:
    growfs.umount()
    growfs.tolerate_log = True
    path = growfs.cache / "catalog.sqlite"
    for damage, of in DAMAGES.items():
        for log in growfs.cache.glob("catalog.sqlite-*"):
            log.unlink()
        whole = path.read_bytes()
        path.write_bytes(of(whole))
        result = scene.mount("", "--no-wait", check=False)
        if result.returncode == 0:
            scene.complete()
            scene.check_whole()
            growfs.umount()
            continue
        assert result.returncode == 1, damage
        (line,) = result.stderr.splitlines()
        assert str(path) in line, damage
        assert f"delete {growfs.cache}" in line, damage
        assert growfs.cache.exists()
        until(lambda: not os.path.ismount(growfs.mountpoint))
        path.write_bytes(whole)
