"""A full cache of a larger remote: each generation delists the files listed longest, and no reader loses a file."""

from __future__ import annotations

import csv
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from growfs.scheduler.space import NOTICE_S
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import (
    CAPACITY,
    HALF,
    SIZE,
    admissions,
    epoch,
    full_cache,
    local,
    mount_status,
    mounted_in_a_pid_namespace,
    shuffled,
    wait_for_replacement,
    waited_opens,
)
from tests.harness import Growfs, make_tree, starting_with, until

FILES = 24
TURNOVER = CAPACITY // 2
"""Files that a generation delists, with HALF."""
PACE_S = NOTICE_S / 2 + 0.003
"""Two such pauses end just as the next generation begins, less the milliseconds that its beginning takes."""
EPOCHS_MAX = 120


@pytest.fixture
def rotating(growfs: Growfs, tmp_path: Path) -> set[str]:
    """A mount with a cache of 10 of 40 files, of which each generation delists 5; the names of all 40."""
    return set(full_cache(growfs, tmp_path / "remote", files=FILES))


def next_generation(growfs: Growfs, other: Reader) -> None:
    """List twice with a reader, so that a new generation delists files."""
    number = mount_status(growfs)["generation"]
    epoch(other)
    other.walk()
    assert mount_status(growfs)["generation"] > number


def delisted_files(growfs: Growfs) -> int:
    """How many files are no longer listed, but not deleted yet."""
    return int(mount_status(growfs)["cache"]["left_out_bytes"]) // SIZE


# One reader that lists each epoch.


@pytest.mark.promise(18)
def test_files_smaller_than_a_block_rotate_as_fast_as_others(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", directories=2, files=FILES // 2, size=100)
    growfs.mount(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, *HALF)
    growfs.until_cached(CAPACITY)
    first = epoch(reader)
    epoch(reader)
    wait_for_replacement(growfs)
    assert len(reader.walk() - first) >= TURNOVER


@only("libfuse")
def test_a_worker_plans_what_many_files_list(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    growfs.env[SETUP_VARIABLE] = "from growfs.scheduler import rotating; rotating.FEW_FILES = 0"
    full_cache(growfs, tmp_path / "remote", files=FILES)
    seen = epoch(reader)
    until(lambda: epoch(reader) - seen)
    assert "no worker could compute" not in growfs.log()


@pytest.mark.promise(18, 20)
def test_each_epoch_shows_new_files_until_all_were_seen_and_one_pass_follows_another(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    tree = set(full_cache(growfs, tmp_path / "remote", files=8, capacity=4))
    seen = epoch(reader)
    while seen != tree:
        cache = wait_for_replacement(growfs, capacity=4)["cache"]
        assert cache["bytes"] <= cache["limit_bytes"] == 4 * SIZE
        until(lambda: len(local(growfs)) == 4)
        shown = epoch(reader)
        assert shown - seen
        seen |= shown
    assert mount_status(growfs)["state"] in ("held", "rotating")
    for number in (2, 3):
        seen = set()
        while seen != tree:
            assert wait_for_replacement(growfs, capacity=4)["coverage"]["pass"] >= number
            seen |= epoch(reader)
    status = mount_status(growfs)
    assert status["fetch"]["files_total"] > 2 * len(tree)
    assert status["evict"]["files_total"] > len(tree)
    assert status["miss"]["files_total"] == 0
    rows = {row["path"]: row for row in usage(growfs)}
    assert set(rows) == tree
    assert all(int(row["fetches"]) >= 2 for row in rows.values())


@pytest.mark.promise(18)
def test_files_as_large_as_a_quarter_of_the_cache_rotate(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    tree = set(full_cache(growfs, tmp_path / "remote", "--turnover", "1%", files=12, capacity=4))
    seen = epoch(reader)
    assert len(epoch(reader)) == 2  # two of the largest files are delisted, whatever the turnover
    while seen != tree:
        wait_for_replacement(growfs, capacity=4)
        seen |= epoch(reader)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(18)
def test_short_epochs_see_the_listing_change(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    """The daemon looks for evictable files once per pause, and a pause lasts two of these epochs.

    So each look can coincide with the beginning of a generation. If the daemon gave up then, every later look would
    coincide with one, too, for as long as the reader kept its pace.
    """
    seen: set[str] = set()
    began = time.monotonic()
    for number in range(EPOCHS_MAX):
        time.sleep(max(0.0, began + number * PACE_S - time.monotonic()))
        seen |= epoch(reader)
        if seen == rotating:
            return
    pytest.fail(f"{len(seen)} of {len(rotating)} files in {EPOCHS_MAX} epochs")


@pytest.mark.promise(7, 16, 18)
def test_folders_that_are_samples_come_and_go(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    """Each with an image and its mask; and a new version of a file takes the place of the old one."""
    remote = tmp_path / "remote"
    for number in range(12):
        for name in ("image.png", "mask.json"):
            path = remote / f"patient{number:02}" / "scan" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1" * SIZE)
    growfs.mount(remote, "--cache-size", 12 * SIZE, "--refresh", "1s", *HALF)
    growfs.until_cached(12)
    seen: set[str] = set()
    while len(seen) < 24:
        shown = epoch(reader)
        assert len(shown) >= 6
        with Reader(growfs.mountpoint) as other:
            assert other.list() == {path.partition("/")[0] for path in other.walk()}, "no folder is empty"
        seen |= shown
        if mount_status(growfs)["generation"] > 1:
            wait_for_replacement(growfs, capacity=12)
    for path in remote.rglob("*.*"):
        path.write_bytes(b"2" * SIZE)

    def has_old() -> bool:
        return any(Path(growfs.mountpoint / name).read_bytes()[:1] == b"1" for name in epoch(reader))

    until(lambda: not has_old())


def test_the_ledger_has_the_history_of_each_file(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    first = epoch(reader)
    second = epoch(reader)
    status = wait_for_replacement(growfs)
    rows = {row["path"]: row for row in usage(growfs)}
    assert set(rows) == first | local(growfs)
    assert {path for path, row in rows.items() if row["local"] == "1"} == local(growfs)
    for path in first - second:
        assert (rows[path]["first_shown"], rows[path]["last_shown"], rows[path]["fetches"]) == ("1", "1", "1")
    for path in second:
        assert (rows[path]["first_shown"], rows[path]["last_shown"]) == ("1" if path in first else "2", "2")
    for path in local(growfs) - second:
        assert rows[path]["first_shown"] == rows[path]["last_shown"] == ""
    assert {row["size"] for row in rows.values()} == {str(SIZE)}
    assert status["coverage"]["files"] == len(rotating)


def usage(growfs: Growfs) -> list[dict[str, str]]:
    with (growfs.mountpoint / ".growfs/ledger.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Holds.


def not_shown_yet(growfs: Growfs) -> int:
    """Local files that no generation has listed yet."""
    status = mount_status(growfs)
    return int(status["cache"]["files"] - status["listed"]["files"] - status["cache"]["left_out_bytes"] // SIZE)


@pytest.mark.promise(17)
def test_a_reader_that_listed_once_keeps_all_its_files(
    growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader
) -> None:
    """As with ImageFolder: a walk, then epochs in random order by new child processes. The cache has free space."""
    tree = full_cache(growfs, tmp_path / "remote", files=FILES)
    mine = reader.walk()
    growfs.run("set", growfs.mountpoint, f"cache-size={2 * CAPACITY * SIZE}")
    growfs.until_cached(2 * CAPACITY)
    seen: set[str] = set()
    for number in range(5):
        seen |= epoch(other)
        reader.request("read_in_children", *shuffled(mine, number))
        if mount_status(growfs)["generation"] > 2:
            growfs.until_cached(2 * CAPACITY)
    while seen != set(tree):
        until(lambda: not_shown_yet(growfs) > 0)
        seen |= epoch(other)
    reader.request("read_in_children", *mine)
    status = mount_status(growfs)
    assert status["miss"]["files_total"] == 0
    assert status["evict"]["files_total"] > 0
    assert mine <= local(growfs)


@pytest.fixture
def looks_often(growfs: Growfs) -> None:
    """Have the daemon look for readers that are silent, and save what was opened, every 0.1 s."""
    growfs.env[SETUP_VARIABLE] = (
        "from growfs.cache import usage; from growfs.rotation import readers\n"
        "usage.SAVE_EVERY_S = readers.SILENCE_EVERY_S = 0.1"
    )


@pytest.mark.promise(17)
@pytest.mark.parametrize("end", ["lists again", "is silent", "ends"])
def test_a_hold_lasts_until(
    growfs: Growfs, looks_often: None, rotating: set[str], reader: Reader, other: Reader, end: str
) -> None:
    mine, cached = epoch(reader), local(growfs)
    next_generation(growfs, other)
    until(lambda: delisted_files(growfs) == TURNOVER)
    held = {row["pid"]: row["held_bytes"] for row in mount_status(growfs)["readers"]}
    assert held == {reader.pid: TURNOVER * SIZE, other.pid: 0}
    assert local(growfs) == cached
    reader.read_all(mine)
    if end == "lists again":
        reader.walk("class0")
        until(lambda: not local(growfs) & {path for path in mine if path.startswith("class0")})
        assert local(growfs) >= {path for path in mine if path.startswith("class1")}
        reader.walk("class1")
    elif end == "is silent":
        growfs.run("set", growfs.mountpoint, "hold-idle=0")
    else:
        reader.kill()
    wait_for_replacement(growfs)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(2, 17)
def test_open_files_stay_readable_without_a_hold(
    growfs: Growfs, rotating: set[str], reader: Reader, other: Reader
) -> None:
    """An open file is kept even when no reader holds it."""
    mine, cached = other.walk(), local(growfs)
    with ExitStack() as stack:
        files = [stack.enter_context((growfs.mountpoint / path).open("rb")) for path in mine]
        next_generation(growfs, other)
        growfs.run("release", growfs.mountpoint)
        assert all(len(file.read()) == SIZE for file in files)
        assert local(growfs) == cached
    other.walk()  # a listing frees space at once; without it that happens every few seconds
    wait_for_replacement(growfs)
    assert waited_opens(growfs) == 0


# Options.


@pytest.mark.promise(22)
def test_rotation_never_and_always(growfs: Growfs, rotating: set[str], reader: Reader, other: Reader) -> None:
    growfs.run("set", growfs.mountpoint, "rotation=never")
    cached = local(growfs)
    assert [epoch(other) for _ in range(4)] == 4 * [cached]
    assert local(growfs) == cached
    assert mount_status(growfs)["generation"] == 4
    mine = reader.walk()
    reader.read_all(sorted(mine)[1:])
    growfs.run("set", growfs.mountpoint, "rotation=auto")
    next_generation(growfs, other)
    until(lambda: delisted_files(growfs) == TURNOVER)
    growfs.run("set", growfs.mountpoint, "rotation=always")
    assert local(growfs) == cached  # one of the listed files is not opened yet
    reader.read(min(mine))
    other.walk()  # a listing frees space at once; without it that happens every few seconds
    wait_for_replacement(growfs)


@pytest.mark.promise(18)
def test_turnover_can_be_changed_while_mounted(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    epoch(reader)
    for share, files in (("30%", 3), ("0.7", 7), ("20%", 2)):
        growfs.run("set", growfs.mountpoint, f"turnover={share}")
        assert len(epoch(reader)) == CAPACITY - files
        wait_for_replacement(growfs)


# Order.


@pytest.mark.promise(14)
@only("libfuse")
def test_the_admission_order_depends_only_on_the_seed(growfs: Growfs, tmp_path: Path) -> None:
    """For any number of workers, and across a crash in the middle of rotation."""
    orders: list[list[str]] = []
    for run, (workers, crashes) in enumerate([(1, False), (3, True)]):
        growfs.cache_dir = tmp_path / f"cache{run}"
        flags = *HALF, "--seed", "7", "--workers", workers
        growfs.env[SETUP_VARIABLE] = starting_with(workers)
        full_cache(growfs, tmp_path / "remote", *flags, files=12, capacity=4)
        order: list[str] = []
        with Reader(growfs.mountpoint) as reader:
            while len(order) < 12:
                order += [name for name in admissions(growfs) if name not in order]
                reader.walk()
                if crashes and 4 < len(order) < 8:
                    growfs.kill()
                    growfs.mount(tmp_path / "remote", "--cache-size", 4 * SIZE, *flags)
                    order += [name for name in admissions(growfs) if name not in order]
                reader.read_all(reader.walk())
                growfs.until_cached(4)
        orders.append(order)
        growfs.umount()
    assert orders[0] == orders[1]


# Advice in status.


def test_status_advises_a_reader_that_lists_once_and_one_that_opens_by_name(
    growfs: Growfs, rotating: set[str], reader: Reader, other: Reader
) -> None:
    mine = reader.walk()
    assert advice(growfs, reader) is None
    for _ in range(3):
        reader.request("read_in_children", *mine)
    assert advice(growfs, reader).startswith("listed once ")
    often = f" ago, has opened its {len(mine)} files 3.0 times, and will see nothing new until it lists again; "
    assert often in advice(growfs, reader)
    assert advice(growfs, reader).endswith(f"; it sees {len(mine) / FILES:.0%} of the data")
    until(lambda: advice(growfs, reader) in (growfs.mountpoint / ".growfs/status").read_text())  # the seconds pass
    other.read_all(shuffled(rotating))
    named = "% of its opens waited for a download: take file names from a listing or .growfs/index.csv"
    assert named in advice(growfs, other)
    assert waited_opens(growfs) >= FILES - CAPACITY


@only("libfuse")
@pytest.mark.usefixtures("looks_often")
def test_status_advises_to_exclude_files_that_are_never_opened(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", files=10, size=SIZE, suffix=".jpg")
    make_tree(tmp_path / "remote", files=10, size=SIZE, suffix=".json")
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    for _ in range(2):
        reader.read_all(path for path in reader.walk() if path.endswith(".jpg"))
    until(lambda: advice(growfs, reader) == "never opened 50% of the files that it listed; consider --exclude '*.json'")


def advice(growfs: Growfs, reader: Reader) -> Any:
    return next(row["advice"] for row in mount_status(growfs)["readers"] if row["pid"] == reader.pid)


# Readers that cannot be distinguished.


@pytest.mark.promise(21)
def test_what_readers_of_another_pid_namespace_list_stays_for_hold_idle(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    with mounted_in_a_pid_namespace(growfs, tmp_path / "remote", "--cache-size", CAPACITY * SIZE, *HALF):
        growfs.until_cached(CAPACITY)
        shown = epoch(reader)
        growfs.run("set", growfs.mountpoint, "settle=0.1s")
        until(lambda: epoch(reader) != shown)
        until(lambda: delisted_files(growfs) == TURNOVER)
        (one,) = mount_status(growfs)["readers"]
        assert one["pid"] == 0
        assert "is in another pid namespace" in one["advice"]
        assert one["held_bytes"] == TURNOVER * SIZE
        assert shown <= local(growfs)
        assert reader.read_all(shown) == SIZE * len(shown)
        assert waited_opens(growfs) == 0
        growfs.run("release", growfs.mountpoint)
        until(lambda: epoch(reader) and shown - local(growfs))
