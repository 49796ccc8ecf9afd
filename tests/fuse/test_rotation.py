"""A full cache over a larger remote: each listing anew leaves out what was shown for longest, and nobody is robbed."""

from __future__ import annotations

import csv
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from growfs.scheduler.drawer import SPACE_PAUSE_S
from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotating import (
    HALF,
    ROOM,
    SIZE,
    admissions,
    epoch,
    full_cache,
    local,
    replaced,
    shuffled,
    told,
    waits,
)
from tests.harness import GROWFS, Growfs, make_tree, until

FILES = 40
TURNOVER = ROOM // 2
"""Files that a generation leaves out, with HALF."""
PACE_S = SPACE_PAUSE_S / 2 + 0.003
"""Two of it end while a generation begins that began so long before, less the milliseconds that beginning takes."""
EPOCHS_MAX = 120


@pytest.fixture
def rotating(growfs: Growfs, tmp_path: Path) -> set[str]:
    """A mount with room for 10 of 40 files, of which each generation leaves out 5; all of their names."""
    return set(full_cache(growfs, tmp_path / "remote", files=FILES))


def next_generation(growfs: Growfs, other: Reader) -> None:
    """Have a reader list twice, so that a new generation leaves files out."""
    number = told(growfs)["generation"]
    epoch(other)
    other.walk()
    assert told(growfs)["generation"] > number


def left_out(growfs: Growfs) -> int:
    """How many files are no longer listed, and not deleted."""
    return int(told(growfs)["cache"]["left_out_bytes"]) // SIZE


# One reader that lists anew.


@pytest.mark.promise(18, 20)
def test_each_epoch_shows_files_never_seen_until_all_were(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    seen = epoch(reader)
    while seen != rotating:
        shown = epoch(reader)
        assert shown - seen
        seen |= shown
        cache = replaced(growfs)["cache"]
        assert cache["bytes"] <= cache["limit_bytes"] == ROOM * SIZE
        assert len(local(growfs)) == ROOM
    status = told(growfs)
    assert status["miss"]["files_total"] == 0
    assert status["evict"]["files_total"] >= FILES - ROOM
    assert status["state"] in ("held", "rotating")


@pytest.mark.promise(20)
def test_then_comes_the_next_pass(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    tree = full_cache(growfs, tmp_path / "remote", files=12, room=6)
    epoch(reader)
    epoch(reader)
    for number in (1, 2, 3):
        seen: set[str] = set()
        while seen != set(tree):
            assert replaced(growfs, room=6)["coverage"]["pass"] >= number
            seen |= epoch(reader)
    status = told(growfs)
    assert status["fetch"]["files_total"] > 2 * len(tree)
    assert status["miss"]["files_total"] == 0
    rows = {row["path"]: row for row in usage(growfs)}
    assert set(rows) == set(tree)
    assert all(int(row["fetches"]) >= 2 for row in rows.values())


@pytest.mark.promise(18)
def test_files_as_large_as_a_quarter_of_the_cache_rotate(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    tree = set(full_cache(growfs, tmp_path / "remote", "--turnover", "1%", files=12, room=4))
    seen = epoch(reader)
    assert len(epoch(reader)) == 2  # two of the largest files make way, whatever the turnover
    while seen != tree:
        replaced(growfs, room=4)
        seen |= epoch(reader)
    assert waits(growfs) == 0


@pytest.mark.promise(18)
def test_short_epochs_see_the_listing_change(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    """The pause between two looks for room is as long as two of them: each look may fall upon a generation's beginning.

    A look that then gives up is followed by one that falls upon the next, for as long as the reader keeps its pace.
    """
    seen: set[str] = set()
    began = time.monotonic()
    for number in range(EPOCHS_MAX):
        time.sleep(max(0.0, began + number * PACE_S - time.monotonic()))
        seen |= epoch(reader)
        if seen == rotating:
            return
    pytest.fail(f"{len(seen)} of {len(rotating)} files in {EPOCHS_MAX} epochs")


@pytest.mark.promise(7, 18)
def test_directories_keep_a_file_of_each_kind(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    for number in range(48):
        path = tmp_path / "remote" / f"class{number % 4}" / f"{number:02}.{('jpg', 'jpg', 'txt')[number % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 12 * SIZE, *HALF)
    until(lambda: told(growfs)["cache"]["files"] == 12)
    kinds: set[tuple[str, str]] = set()
    seen: set[str] = set()
    while len(seen) < 48:
        shown = epoch(reader)
        seen |= shown
        now = {(str(Path(path).parent), Path(path).suffix) for path in shown}
        assert now >= kinds
        assert now >= {(f"class{number}", ".jpg") for number in range(4)}
        kinds = now
        if told(growfs)["generation"] > 1:
            replaced(growfs, room=12)
    assert len(kinds) == 8


def test_the_ledger_tells_of_each_file(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    first = epoch(reader)
    second = epoch(reader)
    status = replaced(growfs)
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
    """The rows of ledger.csv."""
    with (growfs.mountpoint / ".growfs/ledger.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# What a reader saw.


def not_shown_yet(growfs: Growfs) -> int:
    """Files that are here, and that neither this generation nor one before it listed."""
    status = told(growfs)
    return int(status["cache"]["files"] - status["listed"]["files"] - status["cache"]["left_out_bytes"] // SIZE)


@pytest.mark.promise(17)
def test_nothing_is_left_out_for_one_that_listed_once(
    growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader
) -> None:
    """As ImageFolder does it: a walk, then epochs in random order by new child processes. The cache has room beside."""
    tree = full_cache(growfs, tmp_path / "remote", files=FILES)
    mine = reader.walk()
    growfs.run("set", growfs.mountpoint, f"cache-size={2 * ROOM * SIZE}")
    until(lambda: told(growfs)["cache"]["files"] == 2 * ROOM)
    seen: set[str] = set()
    for number in range(10):
        seen |= epoch(other)
        reader.read_in_children(shuffled(mine, number))
        if told(growfs)["generation"] > 2:
            until(lambda: told(growfs)["cache"]["files"] == 2 * ROOM)
    while seen != set(tree):
        until(lambda: not_shown_yet(growfs) > 0)
        seen |= epoch(other)
    reader.read_in_children(mine)
    status = told(growfs)
    assert status["miss"]["files_total"] == 0
    assert status["evict"]["files_total"] > 0
    assert mine <= local(growfs)


@pytest.mark.promise(17)
@pytest.mark.parametrize("end", ["lists again", "ends", "release"])
def test_what_one_listed_stays_until(
    growfs: Growfs, rotating: set[str], reader: Reader, other: Reader, end: str
) -> None:
    mine, cached = epoch(reader), local(growfs)
    next_generation(growfs, other)
    until(lambda: left_out(growfs) == TURNOVER)
    held = {row["pid"]: row["held_bytes"] for row in told(growfs)["readers"]}
    assert held == {reader.pid: TURNOVER * SIZE, other.pid: 0}
    assert local(growfs) == cached
    reader.read_all(mine)
    if end == "lists again":
        reader.walk("class0")
        until(lambda: not local(growfs) & {path for path in mine if path.startswith("class0")})
        assert local(growfs) >= {path for path in mine if path.startswith("class1")}
        reader.walk("class1")
    elif end == "ends":
        reader.kill()
    else:
        growfs.run("release", growfs.mountpoint)
    replaced(growfs)
    assert waits(growfs) == 0


@pytest.mark.promise(17)
@only("libfuse")
def test_a_long_silence_ends_a_hold(growfs: Growfs, rotating: set[str], reader: Reader, other: Reader) -> None:
    mine = epoch(reader)
    next_generation(growfs, other)
    until(lambda: left_out(growfs) == TURNOVER)
    growfs.run("set", growfs.mountpoint, "hold-idle=0")
    replaced(growfs)
    assert not mine <= local(growfs)


@pytest.mark.promise(17)
def test_one_that_never_listed_holds_what_was_listed_at_its_first_open(
    growfs: Growfs, rotating: set[str], reader: Reader, other: Reader
) -> None:
    mine, cached = other.walk(), local(growfs)
    reader.read(min(mine))
    next_generation(growfs, other)
    until(lambda: left_out(growfs) == TURNOVER)
    reader.read_all(shuffled(mine))
    next_generation(growfs, other)
    assert local(growfs) == cached
    assert waits(growfs) == 0
    reader.kill()
    replaced(growfs)


@pytest.mark.promise(2, 17)
def test_what_is_open_stays_readable(growfs: Growfs, rotating: set[str], reader: Reader, other: Reader) -> None:
    """Also where nobody holds it any more."""
    mine, cached = other.walk(), local(growfs)
    with ExitStack() as stack:
        files = [stack.enter_context((growfs.mountpoint / path).open("rb")) for path in mine]
        next_generation(growfs, other)
        growfs.run("release", growfs.mountpoint)
        assert all(len(file.read()) == SIZE for file in files)
        assert local(growfs) == cached
    other.walk()  # else room is looked for every few seconds
    replaced(growfs)
    assert waits(growfs) == 0


# Options.


@pytest.mark.promise(22)
def test_rotation_never_and_always(growfs: Growfs, rotating: set[str], reader: Reader, other: Reader) -> None:
    growfs.run("set", growfs.mountpoint, "rotation=never")
    cached = local(growfs)
    assert [epoch(other) for _ in range(4)] == 4 * [cached]
    assert local(growfs) == cached
    assert told(growfs)["generation"] == 4
    mine = reader.walk()
    reader.read_all(sorted(mine)[1:])
    growfs.run("set", growfs.mountpoint, "rotation=auto")
    next_generation(growfs, other)
    until(lambda: left_out(growfs) == TURNOVER)
    growfs.run("set", growfs.mountpoint, "rotation=always")
    assert local(growfs) == cached  # one that it was shown is still to be opened
    reader.read(min(mine))
    other.walk()  # else room is looked for every few seconds
    replaced(growfs)


@pytest.mark.promise(22)
def test_rotation_never_from_the_start(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    full_cache(growfs, tmp_path / "remote", "--rotation", "never", *HALF)
    first = epoch(reader)
    assert [epoch(reader) for _ in range(3)] == 3 * [first]
    status = told(growfs)
    assert (status["evict"]["files_total"], status["cache"]["left_out_bytes"]) == (0, 0)


@pytest.mark.promise(18)
def test_turnover_is_set_live(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    epoch(reader)
    for share, files in (("30%", 3), ("0.7", 7), ("20%", 2)):
        growfs.run("set", growfs.mountpoint, f"turnover={share}")
        assert len(epoch(reader)) == ROOM - files
        replaced(growfs)


# Order.


@pytest.mark.promise(14)
@only("libfuse")
def test_the_order_of_admission_is_the_seeds(growfs: Growfs, tmp_path: Path) -> None:
    """Whatever the number of workers, and over a crash in the middle of rotation."""
    orders: list[list[str]] = []
    for run, (workers, crashes) in enumerate([(1, False), (8, False), (8, True)]):
        growfs.cache_dir = tmp_path / f"cache{run}"
        flags = *HALF, "--seed", "7", "--workers", workers
        full_cache(growfs, tmp_path / "remote", *flags, files=24, room=6)
        order: list[str] = []
        with Reader(growfs.mountpoint) as reader:
            while len(order) < 24:
                order += [name for name in admissions(growfs) if name not in order]
                reader.walk()
                if crashes and 6 < len(order) < 15:
                    growfs.kill()
                    growfs.mount(tmp_path / "remote", "--cache-size", 6 * SIZE, *flags)
                    order += [name for name in admissions(growfs) if name not in order]
                reader.read_all(reader.walk())
                until(lambda: told(growfs)["cache"]["files"] == 6)
        orders.append(order)
        growfs.umount()
    assert orders[0] == orders[1] == orders[2]


# What status says.


def test_status_tells_of_one_that_lists_once(growfs: Growfs, rotating: set[str], reader: Reader, other: Reader) -> None:
    mine = reader.walk()
    assert advice(growfs, reader) == ""
    for _ in range(3):
        reader.read_in_children(mine)
    assert advice(growfs, reader).startswith("listed once ")
    often = f" ago, has opened its {len(mine)} files 3.0 times, and will see nothing new until it lists again; "
    assert often in advice(growfs, reader)
    assert advice(growfs, reader).endswith(f"; it sees {len(mine) / FILES:.0%} of the data")
    assert advice(growfs, reader) in (growfs.mountpoint / ".growfs/status").read_text()


def test_status_tells_of_one_that_opens_by_name(growfs: Growfs, rotating: set[str], reader: Reader) -> None:
    reader.read_all(shuffled(rotating))
    assert "% of its opens waited for a download: take file names from a listing or .growfs/index.csv" in advice(
        growfs, reader
    )
    assert waits(growfs) >= FILES - ROOM


@only("libfuse")
def test_status_tells_of_files_that_are_fetched_in_vain(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", files=10, size=SIZE, suffix=".jpg")
    make_tree(tmp_path / "remote", files=10, size=SIZE, suffix=".json")
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    for _ in range(2):
        reader.read_all(path for path in reader.walk() if path.endswith(".jpg"))
    until(lambda: advice(growfs, reader) == "never opened 50% of the files that it listed; consider --exclude '*.json'")


def advice(growfs: Growfs, reader: Reader) -> str:
    """What status advises on a reader."""
    return next(str(told["advice"]) for told in told(growfs)["readers"] if told["pid"] == reader.pid)


# Readers that cannot be told apart.


@pytest.fixture
def foreign(growfs: Growfs, tmp_path: Path) -> Iterator[set[str]]:
    """As `rotating`, mounted from within a pid namespace of its own, so that all readers of the test are foreign."""
    tree = make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    flags = "--cache-dir", growfs.cache_dir, "--cache-size", ROOM * SIZE, "--foreground", *HALF
    command = ["unshare", "--pid", "--fork", "--kill-child", *GROWFS, "mount", tmp_path / "remote", growfs.mountpoint]
    said = tmp_path / "said"
    with (
        said.open("w") as out,
        subprocess.Popen(
            list(map(str, [*command, *flags])), env=growfs.env, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            until(lambda: mounted_at(growfs.mountpoint) or process.poll() is not None)
            if process.poll() is not None and "unshare" in said.read_text():
                pytest.skip("this machine allows no pid namespace")
            until(lambda: told(growfs)["cache"]["files"] == ROOM)
            yield set(tree)
            growfs.umount()
            process.wait(30)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


@pytest.mark.promise(21)
def test_nothing_rotates_for_readers_of_another_pid_namespace(
    growfs: Growfs, foreign: set[str], reader: Reader
) -> None:
    epoch(reader)
    cached = local(growfs)
    assert [epoch(reader) for _ in range(3)] == 3 * [cached]
    status = told(growfs)
    assert status["cache"]["left_out_bytes"] == status["evict"]["files_total"] == 0
    (one,) = status["readers"]
    assert one["pid"] == 0
    assert "is in another pid namespace" in one["advice"]
    assert "--pid=host" in (growfs.mountpoint / ".growfs/status").read_text()
    growfs.run("release", growfs.mountpoint)
    assert waits(growfs) == 0
