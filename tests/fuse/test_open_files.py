"""A file that is open or mapped never changes, shrinks or disappears, whatever happens to its name."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fuse.conftest import SHOW_FILES, only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import CAPACITY, epoch, full_cache, waited_opens
from tests.harness import Growfs, make_tree, mapped_only, until
from tests.unit.test_races import make_flat

NAME = "class0/0000.bin"
MAPPED_SIZE = 5 * 4096
OLD_SIZE = 300_000  # more than the kernel's readahead, so that later reads reach the daemon


@contextmanager
def opened_and_mapped(path: Path) -> Iterator[tuple[int, mmap.mmap]]:
    """A descriptor, and a mapping whose descriptor is closed; little of the file is read so far."""
    fd = os.open(path, os.O_RDONLY)
    mapped_fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(mapped_fd, 0, prot=mmap.PROT_READ)
    os.close(mapped_fd)
    try:
        yield fd, mapped
    finally:
        mapped.close()
        os.close(fd)


def replace(path: Path, content: bytes) -> None:
    """Replace a remote file by another version, with a different modification time."""
    os.utime(path.parent)
    path.with_suffix(".new").write_bytes(content)
    later = path.stat().st_mtime_ns + 5 * 10**9 if path.exists() else time.time_ns()
    os.utime(path.with_suffix(".new"), ns=(later, later))
    path.with_suffix(".new").rename(path)


def until_size(file: Path, size: int) -> None:
    """Wait until a file has that size."""
    until(lambda: file.stat().st_size == size)


def relist(growfs: Growfs) -> None:
    """List the remote every 0.1 s until the test ends."""
    growfs.run("set", growfs.mountpoint, "refresh=0.1")


@pytest.mark.promise(2)
def test_an_open_file_survives_replacements(growfs: Growfs, tmp_path: Path) -> None:
    old = make_tree(tmp_path / "remote", files=2, size=OLD_SIZE)[NAME]
    new = b"new" * OLD_SIZE
    growfs.mount(tmp_path / "remote")
    file = growfs.mountpoint / NAME
    before = file.stat()
    with opened_and_mapped(file) as (fd, mapped):
        replace(tmp_path / "remote" / NAME, new)
        relist(growfs)
        until_size(file, len(new))
        assert file.read_bytes() == new
        after = file.stat()
        assert after.st_ino != before.st_ino
        assert after.st_mtime_ns == (tmp_path / "remote" / NAME).stat().st_mtime_ns
        for _ in range(2):
            assert os.pread(fd, len(new), 0) == mapped[:] == old
            mapped.madvise(mmap.MADV_DONTNEED)  # its pages are read again
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert Path(f"/proc/self/fd/{fd}").read_bytes() == old
        assert os.fstat(fd).st_ino == before.st_ino
        assert os.fstat(fd).st_size == OLD_SIZE
        # With links, the new file shows before it is committed.
        until(lambda: growfs.status()["cache"]["orphan_bytes"] >= OLD_SIZE)
        fds, versions = [fd, os.open(file, os.O_RDONLY)], [old, new]
        for number in (1, 2):
            versions.append(bytes([number]) * (OLD_SIZE + number))
            replace(tmp_path / "remote" / NAME, versions[-1])
            until_size(file, OLD_SIZE + number)
            fds.append(os.open(file, os.O_RDONLY))
        assert [os.pread(each, len(new), 0) for each in fds] == versions
        assert len({os.fstat(each).st_ino for each in fds}) == len(fds)
        for each in fds[1:]:
            os.close(each)
    until(lambda: growfs.status()["cache"]["orphan_bytes"] == 0)


@only(*SHOW_FILES)
@pytest.mark.promise(2, 29)
def test_a_file_whose_cached_copy_was_deleted_or_forged_is_fetched_again(growfs: Growfs, tmp_path: Path) -> None:
    """Also while it is open."""
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=OLD_SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", "4")
    with opened_and_mapped(growfs.mountpoint / NAME) as (fd, mapped):
        (growfs.cache / "files" / NAME).unlink()
        assert (growfs.mountpoint / NAME).read_bytes() == os.pread(fd, OLD_SIZE, 0) == mapped[:] == tree[NAME]
    (growfs.cache / "files" / "class0/0001.bin").unlink()
    (growfs.cache / "files" / "class0/0002.bin").unlink()
    (growfs.cache / "files" / "class0/0002.bin").write_bytes(b"forged")
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree


@pytest.mark.promise(1, 2)
def test_an_open_during_replacements_gets_one_whole_version(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    versions = [bytes([number]) * (100_000 + number) for number in range(4)]
    replace(tmp_path / "remote" / NAME, versions[0])
    growfs.mount(tmp_path / "remote")
    relist(growfs)
    file, done = growfs.mountpoint / NAME, threading.Event()

    def contents() -> set[bytes]:
        found = set()
        while not done.is_set():
            with file.open("rb") as opened:
                found.add(opened.read())
                assert os.fstat(opened.fileno()).st_size == opened.tell()
        return found

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(contents) for _ in range(2)]
        try:
            for version in versions[1:]:
                replace(tmp_path / "remote" / NAME, version)
                until_size(file, len(version))
        finally:
            done.set()
        found = set.union(*(reader.result(30) for reader in readers))
    assert found <= set(versions)
    assert len(found) > 1


@pytest.mark.promise(2, 16)
def test_an_open_file_survives_eviction_and_deletion(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", files=2, size=OLD_SIZE)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    file = growfs.mountpoint / NAME
    with opened_and_mapped(file) as (fd, mapped):
        output = growfs.run("evict", growfs.mountpoint, "class0").stdout
        assert output.startswith("1 file evicted")
        assert "1 kept" in output
        assert os.pread(fd, OLD_SIZE, 0) == mapped[:] == tree[NAME]
        (tmp_path / "remote" / NAME).unlink()
        relist(growfs)
        until(lambda: not file.exists())
        assert NAME not in growfs.names()
        assert os.pread(fd, OLD_SIZE, 0) == mapped[:] == tree[NAME]
        assert os.fstat(fd).st_size == OLD_SIZE
    with pytest.raises(FileNotFoundError):
        file.open("rb")


@pytest.mark.promise(2, 7, 16)
@only("either")
def test_a_replaced_file_stays_listed_and_a_directory_disappears_with_its_last_file_and_can_reappear(
    growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader
) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=1)
    growfs.mount(tmp_path / "remote", "--settle", "1h")
    relist(growfs)
    assert reader.list("class0") == {"0000.bin"}
    replace(tmp_path / "remote" / NAME, b"new")
    until_size(growfs.mountpoint / NAME, 3)
    growfs.until_cached(2)
    assert other.list("class0") == {"0000.bin"}  # a class folder must never be empty
    (tmp_path / "remote" / NAME).unlink()
    until(lambda: set(os.listdir(growfs.mountpoint)) == {"class1"})
    until(lambda: not (growfs.mountpoint / "class0").exists())
    growfs.run("set", growfs.mountpoint, "settle=0")
    replace(tmp_path / "remote" / NAME, b"again")
    until(lambda: growfs.names() == set(tree))
    assert (growfs.mountpoint / NAME).read_bytes() == b"again"


@pytest.mark.promise(16, 17)
@only("either")
def test_a_new_version_takes_the_place_of_nothing_that_a_reader_holds(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    """It waits for the next epoch, which makes room for it, though the cache has the whole remote."""
    tree = full_cache(growfs, tmp_path / "remote", files=CAPACITY)
    assert len(epoch(reader)) == CAPACITY
    new = bytes(len(tree[NAME]))
    replace(tmp_path / "remote" / NAME, new)
    relist(growfs)
    until(lambda: epoch(reader) and (growfs.cache / "files" / NAME).read_bytes() == new)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(3, 6, 16)
@only("either")
def test_evicted_files_leave_the_listing_but_still_open_and_a_remount_shows_new_versions(
    growfs: Growfs, tmp_path: Path
) -> None:
    """A fetch accepts a version newer than the catalog's."""
    tree = make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote", "--refresh", "0")
    growfs.run("pause", growfs.mountpoint)
    assert growfs.names() == set(tree)
    growfs.run("evict", growfs.mountpoint, "*")
    (left,) = growfs.names()
    gone, changed = sorted(set(tree) - {left})
    replace(tmp_path / "remote" / changed, b"changed since it was listed")
    fetched = growfs.status()["fetch"]["files_total"]
    assert (growfs.mountpoint / gone).stat().st_size == len(tree[gone])
    assert (growfs.mountpoint / gone).read_bytes() == tree[gone]
    assert (growfs.mountpoint / changed).read_bytes() == b"changed since it was listed"
    assert (growfs.mountpoint / changed).stat().st_size == len(b"changed since it was listed")
    assert growfs.status()["fetch"]["files_total"] == fetched + 2
    before = (growfs.mountpoint / left).stat()
    growfs.umount()
    replace(tmp_path / "remote" / left, b"changed while nothing was mounted")
    growfs.mount(tmp_path / "remote")
    until(lambda: (growfs.mountpoint / left).read_bytes() == b"changed while nothing was mounted")
    assert (growfs.mountpoint / left).stat().st_ino != before.st_ino


@pytest.mark.promise(1, 3)
@only("either")
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_files_of_unknown_size_are_listed_with_it_and_a_large_one_takes_no_room_from_small_ones(
    growfs: Growfs, tmp_path: Path, place: int
) -> None:
    names = list(make_flat(tmp_path / "remote", 10))
    for name in names:
        os.truncate(tmp_path / "remote" / name, 1 << 20)
    os.truncate(tmp_path / "remote" / names[place], 12 << 20)
    (tmp_path / "list.txt").write_text("\n".join(names))
    growfs.mount(tmp_path / "remote", "--manifest", tmp_path / "list.txt", "--cache-size", "25MiB")
    growfs.run("wait", growfs.mountpoint, "--all")
    status = growfs.status()
    assert (status["evict"]["files_total"], status["fetch"]["failed"]) == (0, 0)
    assert status["coverage"]["files_seen"] == 10, "at once, beside the state complete"
    assert growfs.names() == set(names)
    for name in names:
        assert (growfs.mountpoint / name).stat().st_size == (tmp_path / "remote" / name).stat().st_size
        assert (growfs.mountpoint / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()


@only("either")
def test_the_coverage_counts_at_once_what_was_evicted_again(growfs: Growfs, tmp_path: Path) -> None:
    names = make_flat(tmp_path / "remote", 20)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * 4096, "--rotation", "never", "--wait-files", "1")
    for name in names:  # each takes the place of another
        (growfs.mountpoint / name).read_bytes()
    status = growfs.status()
    assert (status["fetch"]["failed"], status["coverage"]["files_seen"]) == (0, 20)


@pytest.mark.promise(2, 19, 28)
def test_a_mapped_file_without_a_descriptor_is_not_evicted_and_counts_once_it_is_replaced(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=4, size=MAPPED_SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 3 * MAPPED_SIZE, "--rotation", "never")
    growfs.until_cached(3)
    local = sorted(growfs.names())
    (missing,) = set(tree) - set(local)
    with ExitStack() as stack:
        addresses = [stack.enter_context(mapped_only(growfs.mountpoint / path)) for path in local[:2]]
        assert (growfs.mountpoint / missing).read_bytes() == tree[missing]
        assert growfs.names() == {*local[:2], missing}
        growfs.run("evict", growfs.mountpoint, *local[:2])
        assert growfs.names() == {*local[:2], missing}
        growfs.run("set", growfs.mountpoint, f"cache-size={5 * MAPPED_SIZE}")
        replace(tmp_path / "remote" / local[0], b"new")
        relist(growfs)
        until_size(growfs.mountpoint / local[0], 3)
        until(lambda: growfs.status()["cache"]["orphan_bytes"] == MAPPED_SIZE)
        assert [ctypes.string_at(address, MAPPED_SIZE) for address in addresses] == [tree[path] for path in local[:2]]
    until(lambda: growfs.status()["cache"]["orphan_bytes"] == 0)
    growfs.run("evict", growfs.mountpoint, local[1])
    assert local[1] not in growfs.names()
