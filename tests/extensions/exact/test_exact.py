"""Whole epochs (--exact): over the parts of a pass, each file is listed exactly once."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import growfs as api
from growfs.cache.cache_folder import DATABASE, read_only
from growfs.client.epochs import describe
from growfs.errors import GrowfsError
from tests.blocking_server import BlockingServer
from tests.fuse.conftest import SHOW_FILES, only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import epoch, local, mount_status
from tests.generation_readers import Readers as Ranks
from tests.harness import Growfs, files_below, until

FILES = 40
BLOCK = 4096
PARTS = "--part-size", "40%"
ROOMY = *PARTS, "--start", "2/1"
"""So that a pass has few parts: the first one has more than others."""
UNREAD = "--settle", "0"
"""So that a part that is opened by its path makes room although its files are not read."""


def make_remote(folder: Path, files: int = FILES, folders: int = 4, seed: int = 1) -> dict[str, bytes]:
    """Files of different sizes in class folders; returns their content by path."""
    generator = random.Random(seed)
    tree = {}
    for number in range(files):
        path = f"class{number % folders}/{number:04}.bin"
        tree[path] = generator.randbytes(generator.choice([0, 1, 3000, 9000, 30_000]))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(tree[path])
    return tree


def cache_size(tree: dict[str, bytes], share: float) -> int:
    """The size of a cache that holds a share of these files."""
    return int(share * sum(-(-len(content) // BLOCK) * BLOCK for content in tree.values()))


def mount(growfs: Growfs, remote: Path, tree: dict[str, bytes], *flags: object, share: float = 0.6) -> None:
    """Mount with --exact and a cache for a share of the files."""
    growfs.mount(remote, "--exact", "--cache-size", cache_size(tree, share), *flags)


def position(growfs: Growfs) -> tuple[int, int, int]:
    """(pass, part, parts) of the part that began last."""
    exact = mount_status(growfs)["exact"]
    return exact["pass"], exact["part"], exact["parts"]


def until_stored(growfs: Growfs, *position: int) -> None:
    """Wait until the database has the position of the last opened file: after a kill, the next daemon reads it."""

    def is_stored() -> bool:
        with closing(read_only(growfs.cache / DATABASE)) as connection:
            rows = connection.execute("SELECT value FROM meta WHERE key = 'position'").fetchall()
        return rows == [(json.dumps(position),)]

    until(is_stored)


def one_pass(growfs: Growfs, reader: Reader) -> list[set[str]]:
    """The files of each part of the next pass, listed and read by one process."""
    parts = [epoch(reader)]
    number, part, count = position(growfs)
    assert part == 1
    parts += [epoch(reader) for _ in range(count - 1)]
    assert position(growfs) == (number, count, count)
    return parts


def assert_each_once(parts: list[set[str]], tree: dict[str, bytes]) -> None:
    """Each file is in exactly one part."""
    listed = [name for part in parts for name in part]
    assert sorted(listed) == sorted(tree)


@pytest.mark.promise(47)
@pytest.mark.parametrize(("engine", "share"), [("links", 0.65), ("either", 1.0)], indirect=["engine"])
def test_a_pass_lists_each_file_exactly_once_and_fetches_only_streamed_ones(
    growfs: Growfs, reader: Reader, tmp_path: Path, share: float
) -> None:
    """Every part lists all class folders: otherwise ImageFolder would number the classes of each part differently."""
    tree = make_remote(tmp_path / "remote", 80, folders=20)
    mount(growfs, tmp_path / "remote", tree, "--start", "2/1", share=share)
    passes, fetched = [], []
    for _ in range(2):
        assert reader.list() == {f"class{number}" for number in range(20)}
        passes.append(one_pass(growfs, reader))
        assert_each_once(passes[-1], tree)
        until(lambda: growfs.status()["state"] in ("ahead", "complete"))
        fetched.append(growfs.status()["fetch"]["bytes_total"])
    status = growfs.status()
    if share < 1:
        assert len(passes[0]) > 3
        assert passes[0] != passes[1], "each pass has another order"
        assert fetched[1] - fetched[0] <= 1.05 * status["exact"]["streamed_bytes"] < 0.5 * cache_size(tree, 1)
        assert "ImageFolder" in " ".join(status["warnings"])
    assert status["miss"]["files_total"] == 0
    assert status["exact"]["left_out_files"] == 0


@pytest.mark.promise(47, 50)
def test_each_process_that_asks_goes_on_after_the_part_that_the_last_one_read(growfs: Growfs, tmp_path: Path) -> None:
    """A process that ended before it had read much of its part leaves that to the next one."""
    mount(growfs, tmp_path / "remote", make_remote(tmp_path / "remote"), *ROOMY, "--settle", "0")
    numbers = []
    with Ranks() as ranks:
        for reads in (True, True, False, True):
            rank = ranks.new()
            numbers.append(int(rank.next_generation(growfs.mountpoint).name))
            if reads:
                numbers[-1] = int(rank.next_generation(growfs.mountpoint).name)
                for path in rank.names():
                    rank.read(path)
            rank.end()
            until(lambda: not mount_status(growfs)["readers"])
    assert numbers == [2, 4, 5, 6]


@pytest.mark.promise(47)
def test_a_killed_mount_goes_on_with_the_next_part(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    parts: list[set[str]] = []
    count = 100
    while len(parts) < count:
        mount(growfs, tmp_path / "remote", tree, *(PARTS if parts else ROOMY))
        with Reader(growfs.mountpoint) as reader:
            for _ in range(2 if not parts else count):
                parts.append(epoch(reader))
                _, part, count = position(growfs)
                if part == count:
                    break
        until_stored(growfs, 2, part)
        growfs.kill()
        growfs.run("umount", growfs.mountpoint)
    assert_each_once(parts, tree)


@pytest.mark.promise(6, 47)
def test_a_monitor_begins_no_part(growfs: Growfs, tmp_path: Path) -> None:
    """Nor do listings before a restart."""
    tree = make_remote(tmp_path / "remote")
    parts = []
    for has_readers in (False, True, True):
        mount(growfs, tmp_path / "remote", tree, *PARTS, "--settle", "0.1s")
        with Reader(growfs.mountpoint) as monitor, Reader(growfs.mountpoint) as reader:
            shown = monitor.walk()
            for _ in range(2):
                with Reader(growfs.mountpoint) as passer_by:
                    assert passer_by.walk() == monitor.walk() == shown
            parts.append(epoch(reader) if has_readers else shown)
            assert parts[-1] == shown
            assert position(growfs)[:2] == (1, max(1, len(parts) - 1))
        growfs.umount()
    assert parts[0] == parts[1]
    assert not parts[1] & parts[2]


def listings(part: Path) -> tuple[list[str], set[str]]:
    """The names in one folder of a part, in the order of its listing, and all of its files."""
    return os.listdir(part / "class1"), files_below(part)


@pytest.mark.promise(47, 48)
def test_a_run_goes_on_from_a_saved_position_on_another_machine(tmp_path: Path, engine: str) -> None:
    """With a slow link, and with an empty cache in the middle of a pass: the parts are the same.

    What other options or another remote would change is named.
    """
    tree = make_remote(tmp_path / "remote")
    saved: dict[str, Any] = {}
    expected: list[tuple[list[str], set[str]]] = []
    for name, flags in (("first", ()), ("second", ("--bandwidth", "3MB/s", "--refresh", "0.2s"))):
        (tmp_path / name).mkdir()
        command = Growfs(tmp_path / name)
        command.env["GROWFS_ENGINE"] = engine
        mount(command, tmp_path / "remote", tree, *ROOMY, *UNREAD, *flags)
        if saved:
            with pytest.raises(GrowfsError, match="--seed is 0, but was 7; mount with the same options"):
                next(api.epoch(command.mountpoint, **saved | {"catalog": saved["catalog"] | {"seed": 7}}))
            parts = [listings(part) for part in api.epoch(command.mountpoint, **saved)]
            assert parts == expected[saved["part"] - 1 :]
            assert not list(api.epoch(command.mountpoint, **saved | {"part": len(expected) + 1}))
            (tmp_path / "remote/class0/more.bin").write_bytes(bytes(9000))
            until(lambda command=command: command.status()["remote"]["files"] == FILES + 1)  # type: ignore[misc]
            changed = r"has 41 files .* but had 40 .*; begin the next pass with number=4"
            with pytest.raises(GrowfsError, match=changed):
                next(api.epoch(command.mountpoint, 3, catalog=saved["catalog"]))
            later = [files_below(part) for part in api.epoch(command.mountpoint, 3)]
            assert_each_once(later, tree | {"class0/more.bin": b""})
        else:
            for part in api.epoch(command.mountpoint, 2):
                expected.append(listings(part))
                if part.name == "2":
                    saved = json.loads(json.dumps(api.position(part, next=True)))
            assert (saved["number"], saved["part"]) == (2, 3)
        command.umount()


def mount_half(growfs: Growfs, server: BlockingServer, *flags: str) -> list[str]:
    """Mount 40 files of the server with a cache for half of them, which holds two parts; returns their names."""
    names = [f"c/{number:02}.bin" for number in range(40)]
    for name in names:
        server.files[name] = bytes(BLOCK)
    growfs.mount(server.manifest, "--exact", "--cache-size", 20 * BLOCK, "--part-size", "50%", *flags)
    return names


@pytest.mark.promise(3, 47)
@only(*SHOW_FILES)
def test_a_listing_that_waits_for_its_part_holds_up_nobody_and_ends_with_its_process(
    growfs: Growfs, reader: Reader, other: Reader, server: BlockingServer
) -> None:
    """The kernel locks a directory while it is read. A notification about one of its names waits for that lock, and
    every lookup there waits for the notification. The status says how much is missing."""
    names = mount_half(growfs, server, "--refresh", "1s", "--settle", "1s")
    first = epoch(reader)
    other.walk()
    until(lambda: growfs.status()["state"] == "ahead")
    server.blocked = set(names)
    listed = epoch(reader)
    assert not first & listed

    def walk() -> None:
        with pytest.raises(EOFError):  # it ends without an answer
            reader.walk()

    waiting = threading.Thread(target=walk)
    waiting.start()
    until(lambda: mount_status(growfs)["exact"]["waiting"] == 1)
    until(lambda: mount_status(growfs)["exact"]["missing_files"] > 0)
    assert "of the next part" in growfs.run("status", growfs.mountpoint).stdout
    assert other.walk() in (first, listed)
    gone, *_, kept = sorted(listed)
    del server.files[gone]
    until(lambda: "listed 39 files" in growfs.log())
    with subprocess.Popen(["stat", growfs.mountpoint / kept], stdout=subprocess.DEVNULL) as lookup:
        try:
            until(lambda: lookup.poll() == 0)
            reader.kill()
            waiting.join(30)
            assert not waiting.is_alive()
        finally:
            server.unblock()


@pytest.mark.promise(47)
def test_a_directory_that_is_opened_and_not_read_counts_as_no_listing(growfs: Growfs, tmp_path: Path) -> None:
    """Programs open one for openat(2) or fstat(2)."""
    tree = make_remote(tmp_path / "remote", 20, folders=1)
    mount(growfs, tmp_path / "remote", tree, "--part-size", "20%", share=0.5)
    folder, parts = growfs.mountpoint / "class0", list[set[str]]()
    while len(parts) < 2 or position(growfs)[1] < position(growfs)[2]:
        parts.append({f"class0/{name}" for name in os.listdir(folder)})
        for number, path in enumerate(parts[-1]):
            if number == len(parts[-1]) // 2 + 1:
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
            (growfs.mountpoint / path).read_bytes()
    assert_each_once(parts, tree)


@pytest.mark.promise(47)
def test_a_file_that_cannot_be_fetched_is_left_out_and_named(
    growfs: Growfs, reader: Reader, server: BlockingServer
) -> None:
    names = [f"c/{number:02}.bin" for number in range(24)]
    for name in names:
        server.files[name] = bytes(BLOCK)
    server.statuses["c/07.bin"] = 403
    flags = "--exact", "--cache-size", 12 * BLOCK, "--part-size", "50%", "--refresh", "0", "--start", "2/1"
    growfs.mount(server.manifest, *flags)
    parts = one_pass(growfs, reader)
    assert_each_once(parts, dict.fromkeys(set(names) - {"c/07.bin"}, b""))
    assert growfs.status()["exact"]["left_out_files"] == 1
    assert "c/07.bin" in growfs.run("status", growfs.mountpoint).stdout


def test_files_opened_by_name_do_not_keep_the_next_part_away_and_two_jobs_are_warned(
    growfs: Growfs, reader: Reader, other: Reader, tmp_path: Path
) -> None:
    tree = make_remote(tmp_path / "remote")
    warning = "2 programs list the root, and each misses the parts that the others get"
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    parts = [epoch(reader)]
    _, _, count = position(growfs)
    while len(parts) < count:
        missing = sorted(set(tree) - local(growfs))[::3]
        with Reader(growfs.mountpoint) as stranger:
            stranger.read_all(missing)
        parts.append(epoch(reader))
    assert_each_once(parts, tree)
    assert warning not in " ".join(growfs.status()["warnings"])
    epoch(other)
    assert warning in " ".join(growfs.status()["warnings"])


def test_what_the_remote_changes_joins_the_next_pass(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    """Also if the next pass was divided before, as the last part of a pass begins, but has not begun."""
    remote = tmp_path / "remote"
    tree = make_remote(remote)
    mount(growfs, remote, tree, *ROOMY, "--refresh", "0.2s")
    first = epoch(reader)
    gone = min(first)
    (remote / gone).unlink()
    (remote / "class2/new.bin").write_bytes(b"new")
    until(lambda: not (growfs.mountpoint / gone).exists())
    until((growfs.mountpoint / "class2/new.bin").exists)
    _, _, count = position(growfs)
    rest = [epoch(reader) for _ in range(count - 1)]
    assert "class2/new.bin" not in set().union(*rest)
    assert_each_once([first, *rest], tree)
    until(lambda: growfs.status()["state"] == "ahead")
    (remote / "class2/newer.bin").write_bytes(b"newer")
    until(lambda: growfs.log().count("pass 3 has") == 2)
    del tree[gone]
    assert_each_once(one_pass(growfs, reader), tree | {"class2/new.bin": b"", "class2/newer.bin": b""})


def test_each_pass_of_one_part_has_all_that_the_remote_has(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    tree = make_remote(remote, 30)
    mount(growfs, remote, tree, "--refresh", "0.5s", "--start", "2/1", share=1.5)
    assert epoch(reader) == set(tree)
    changed, added = min(tree), "class0/new.bin"
    (remote / changed).write_bytes(bytes(777))
    until(lambda: cached_bytes(growfs, changed) == 777)
    (remote / added).write_bytes(b"new")
    until((growfs.cache / "files" / added).exists)  # it is fetched once the pass has been divided again
    assert epoch(reader) == {*tree, added}


def test_a_mount_starts_with_the_part_that_is_asked_for_whatever_was_before(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_remote(tmp_path / "remote")
    parts = []
    for part_size in ("40%", "20%", "20%"):
        mount(growfs, tmp_path / "remote", tree, "--part-size", part_size, "--start", "3/2")
        with Reader(growfs.mountpoint) as reader:
            parts.append(epoch(reader))
        assert position(growfs)[:2] == (3, 2)
        growfs.umount()
        if len(parts) == 2:
            shutil.rmtree(growfs.cache_dir)
    assert parts[0] != parts[1] == parts[2]
    flags = "--exact", "--cache-size", cache_size(tree, 0.6), *PARTS, "--start", "3/99"
    refused = growfs.mount(tmp_path / "remote", *flags, check=False)
    assert "but no part 99" in refused.stderr


def cached_bytes(growfs: Growfs, path: str) -> int:
    """The size of a cached file."""
    return (growfs.cache / "files" / path).stat().st_size


def test_nothing_is_drawn_for_files_that_the_remote_no_longer_has(
    growfs: Growfs, reader: Reader, tmp_path: Path
) -> None:
    """Those that were deleted or have changed."""
    remote = tmp_path / "remote"
    tree = make_remote(remote)
    mount(growfs, remote, tree, *ROOMY, "--refresh", "0.5s")
    epoch(reader)
    until(lambda: growfs.status()["state"] == "ahead")
    rest = {path: tree[path] for path in local(growfs)}
    for number, path in enumerate(sorted(set(tree) - set(rest))):
        if number % 2:
            (remote / path).unlink()
        else:
            rest[path] = bytes(5000)
            (remote / path).write_bytes(rest[path])
    until(lambda: growfs.status()["remote"]["bytes"] == sum(map(len, rest.values())))
    epoch(reader)
    until(lambda: growfs.status()["state"] == "ahead")
    assert mount_status(growfs)["coverage"]["pass"] == 2


@pytest.mark.promise(17)
def test_new_versions_of_files_that_a_reader_holds_are_held(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    tree = make_remote(remote)
    mount(growfs, remote, tree, *ROOMY, "--refresh", "0.5s")
    for _ in range(2):
        epoch(reader)
    held = reader.walk()
    reader.read(max(held))
    until(lambda: growfs.status()["state"] == "ahead")
    changed = sorted(held)[:-1]
    for path in changed:
        (remote / path).write_bytes(tree[path] + b"1")
    until(lambda: all(cached_bytes(growfs, path) == len(tree[path]) + 1 for path in changed))
    until(lambda: growfs.status()["state"] == "ahead")
    with Reader(growfs.mountpoint) as stranger:
        stranger.read_all(sorted(set(tree) - local(growfs)))
    assert held <= local(growfs)
    assert reader.walk() == held


@pytest.mark.promise(23, 47, 48)
def test_frozen_and_pinned_files_are_in_each_part(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    """Also those that the remote changes. A position is refused once other files are."""
    remote = tmp_path / "remote"
    tree = make_remote(remote)
    frozen = {path for path in tree if path.startswith("class3/")}
    flags = *PARTS, "--freeze", "class3/", "--refresh", "0.5s"
    mount(growfs, remote, tree, *flags)
    growfs.run("pin", growfs.mountpoint, "class0/0000.bin")
    growfs.umount()
    mount(growfs, remote, tree, *flags, "--start", "2/1")
    parts = one_pass(growfs, reader)
    always = frozen | {"class0/0000.bin"}
    assert all(part >= always for part in parts)
    assert_each_once([part - always for part in parts], dict.fromkeys(set(tree) - always, b""))
    for path in sorted(frozen)[:3]:
        (remote / path).write_bytes(bytes(777))
    until(lambda: all(cached_bytes(growfs, path) == 777 for path in sorted(frozen)[:3]))
    for _ in range(3):
        assert epoch(reader) >= always
    saved = describe(growfs.mountpoint, 9)["catalog"]
    growfs.run("unpin", growfs.mountpoint, "class0/0000.bin")
    with pytest.raises(GrowfsError, match="frozen or pinned"):
        next(api.epoch(growfs.mountpoint, 9, catalog=saved))


def test_what_parts_depend_on_cannot_be_set(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    """The remedy for a cache that is to be smaller is named, and one that cannot stream is refused."""
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    epoch(reader)
    for option in ("rotation=never", "turnover=20%"):
        refused = growfs.run("set", growfs.mountpoint, "settle=30s", option, check=False)
        assert "cannot be set while mounted" in refused.stderr
    refused = growfs.run("set", growfs.mountpoint, f"cache-size={20 * BLOCK}", check=False)
    assert refused.returncode
    assert "--start 3/1" in refused.stderr
    growfs.umount()
    small = ["--exact", *PARTS, "--cache-size", cache_size(tree, 0.55)]
    refused = growfs.mount(tmp_path / "remote", *small, check=False)
    assert "--start 3/1" in refused.stderr
    tiny = growfs.mount(tmp_path / "remote", "--exact", "--cache-size", 5 * BLOCK, "--start", "3/1", check=False)
    assert (tiny.returncode, "raise --cache-size" in tiny.stderr) == (1, True)
    growfs.mount(tmp_path / "remote", *small, "--start", "3/1")


def test_a_listing_that_waits_because_too_much_is_pinned_goes_on_once_it_is_unpinned(
    growfs: Growfs, reader: Reader, tmp_path: Path
) -> None:
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    epoch(reader)
    until(lambda: growfs.status()["state"] == "ahead")
    pinned = sorted(path for path in set(tree) - local(growfs) if len(tree[path]) > 8000)[:16]
    growfs.run("pin", growfs.mountpoint, *pinned)
    stops = threading.Event()

    def read_parts() -> None:
        while not stops.is_set():
            epoch(reader)

    reading = threading.Thread(target=read_parts)
    reading.start()
    until(lambda: growfs.status()["state"] == "held" and mount_status(growfs)["exact"]["waiting"])
    before = position(growfs)
    growfs.run("unpin", growfs.mountpoint, *pinned)
    stops.set()
    reading.join(30)
    assert position(growfs) > before
