"""Options that select what is cached: --freeze, --group, --show-files, --partition and --remote-budget."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from growfs.rotation.pass_order import Pass
from tests.blocking_server import BlockingServer
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
    wait_for_replacement,
    waited_opens,
)
from tests.harness import Growfs, make_tree, until
from tests.layouts import LAYOUTS, make_samples

Done = subprocess.CompletedProcess[str]


def is_refusal(done: Done, *expected: str, exit_code: int = 1) -> bool:
    """Whether a mount was refused with one line of error that contains these texts."""
    line = done.stderr
    assert all(text in line for text in expected), line
    return done.returncode == exit_code and line.startswith("growfs: ") and line.count("\n") == 1


@pytest.mark.promise(23, 25, 26)
@only("libfuse")
def test_what_cannot_be_selected_is_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=4, files=10, size=SIZE)
    growfs.env |= {"RANK": "1", "WORLD_SIZE": "2"}
    for option, value, *expected in (
        ("--freeze", "class[01]/*", "--cache-size"),
        ("--show-files", "11", "11", "10 files", "--cache-size"),
        ("--show-files", "3", "3: 4 directories contain files, and none may be empty; show more"),
        ("--partition", "auto", "GROUP_RANK"),
        ("--partition", "2/2", "0/8"),
        ("--partition", "one", "0/8"),
    ):
        done = growfs.mount(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, option, value, check=False)
        assert is_refusal(done, option, *expected, exit_code=2 if option == "--partition" else 1)
    growfs.env |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "RANK": "9", "WORLD_SIZE": "16"}
    growfs.mount(tmp_path / "remote", "--partition", "auto")
    assert mount_status(growfs)["partition"] == "1/2"


# --freeze.


@pytest.mark.promise(23)
def test_frozen_files_come_first_and_stay(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    frozen = {f"class0/{number:04}.bin" for number in range(10, 14)}
    growfs.mount(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, "--freeze", "class0/001[0-3].bin", *HALF)
    assert frozen <= local(growfs)  # as soon as `mount` returns
    assert set(admissions(growfs)[: len(frozen)]) == frozen
    growfs.until_cached(CAPACITY)
    seen: set[str] = set()
    epoch(reader)
    epoch(reader)
    while len(seen) < 16:
        wait_for_replacement(growfs)
        shown = epoch(reader)
        assert frozen < shown
        seen |= shown
    assert waited_opens(growfs) == 0


@pytest.mark.promise(23)
def test_a_frozen_file_found_by_a_refresh_is_fetched_and_kept(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    full_cache(growfs, tmp_path / "remote", "--freeze", "*/new*", *HALF)
    epoch(reader)
    (tmp_path / "remote/class1/new.bin").write_bytes(b"n" * SIZE)
    growfs.run("set", growfs.mountpoint, "refresh=0.1s")
    until(lambda: mount_status(growfs)["remote"]["files"] == 41)
    growfs.run("set", growfs.mountpoint, "refresh=1h")
    epoch(reader)  # delists files, which makes space
    until(lambda: "class1/new.bin" in epoch(reader))
    for _ in range(4):
        assert "class1/new.bin" in epoch(reader)
        wait_for_replacement(growfs)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(7, 23)
@only("libfuse")
def test_frozen_files_that_fill_the_cache_are_reported(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=CAPACITY, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--cache-size", CAPACITY * SIZE, "--freeze", "class0/*")
    assert "not every directory has a file yet: the cache has no room for them" in done.stdout
    assert growfs.names() == {f"class0/{number:04}.bin" for number in range(CAPACITY)}
    growfs.run("set", growfs.mountpoint, "miss-timeout=1h")
    opening = ["cat", str(growfs.mountpoint / "class1/0000.bin")]
    refused = subprocess.run(opening, capture_output=True, text=True, check=False, timeout=60)
    assert "No space left on device" in refused.stderr, "nothing that may end would make room"


@only("libfuse")
def test_options_that_match_nothing_are_reported(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--freeze", "class0/0000.*", "--freeze", "clas0/*", "--group", "{stem}")
    warnings = growfs.status()["warnings"]
    assert [warning.partition(":")[0] for warning in warnings] == [
        "--freeze clas0/* matches no file, so it freezes nothing; patterns use .gitignore syntax",
        "--group puts no two files together",
    ]
    assert all(f"warning: {warning}\n" in done.stdout for warning in warnings)
    (tmp_path / "remote/clas0").mkdir()
    for name in ("1.jpg", "1.txt"):
        (tmp_path / "remote/clas0" / name).write_bytes(b"x")
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    until(lambda: growfs.status()["warnings"] == [])


@only("libfuse")
def test_a_validation_set_that_rotates_and_files_that_seem_to_belong_together_are_pointed_out(
    growfs: Growfs, tmp_path: Path
) -> None:
    make_samples(tmp_path / "remote", LAYOUTS["carvana"], CAPACITY, SIZE)
    make_tree(tmp_path / "remote/val", directories=1, files=CAPACITY, size=SIZE)
    validation, together = "warning: val/ looks like a validation set", "_mask.gif seem to belong together: --group car"
    for number, (flags, hints) in enumerate(
        [
            ((), {validation, together}),
            (("--freeze", "val/*/0000.bin"), {together}),
            (("--group", "{name}"), {validation}),
            (("--cache-size", "1GB"), set[str]()),
        ]
    ):
        growfs.cache_dir = tmp_path / f"cache{number}"  # a mount of an empty cache waits until they are known
        size = () if "--cache-size" in flags else ("--cache-size", 2 * CAPACITY * SIZE)
        output = growfs.mount(tmp_path / "remote", *size, *flags).stdout
        assert {hint for hint in (validation, together) if hint in output} == hints, flags
        growfs.umount()


# --group.


def make_pairs(remote: Path, directories: int = 2, count: int = 7) -> set[str]:
    """Make `count` pairs of x.jpg and x.json in each directory; returns their paths without the extensions."""
    for suffix in (".jpg", ".json"):
        make_tree(remote, directories=directories, files=count, size=SIZE, suffix=suffix)
    return {f"class{directory}/{number:04}" for directory in range(directories) for number in range(count)}


def unpaired(names: set[str]) -> set[str]:
    """The names whose partner is missing."""
    other = {".jpg": ".json", ".json": ".jpg"}
    return {name for name in names if str(Path(name).with_suffix(other[Path(name).suffix])) not in names}


@pytest.mark.promise(23, 24)
def test_what_is_in_a_group_with_a_frozen_or_pinned_file_stays_listed(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    stems = make_pairs(tmp_path / "remote")
    flags = "--freeze", "class0/0000.jpg", "--group", "{stem}", "--settle", "0", *HALF
    growfs.mount(tmp_path / "remote", "--cache-size", 12 * SIZE, *flags)
    growfs.until_cached(12)
    growfs.run("pin", growfs.mountpoint, "class1/0001.json")
    kept = {f"{stem}.{suffix}" for stem in ("class0/0000", "class1/0001") for suffix in ("jpg", "json")}
    seen: set[str] = set()
    epoch(reader)
    while seen != stems:
        shown = epoch(reader)
        assert not unpaired(shown)
        assert not seen or shown >= kept
        seen |= {name.partition(".")[0] for name in shown}
    assert local(growfs) >= kept
    assert waited_opens(growfs) == 0


@pytest.mark.promise(24)
def test_a_miss_fetches_the_whole_group(growfs: Growfs, server: BlockingServer, reader: Reader) -> None:
    names = ["a.jpg", "a.json", "b.jpg", "b.json", "c.jpg"]
    server.files = {f"folder/{name}": name.encode() for name in names}
    server.blocked = set(server.files)
    growfs.mount(server.manifest, "--no-wait", "--group", "{stem}")
    growfs.run("pause", growfs.mountpoint)
    server.unblock()
    until(lambda: mount_status(growfs)["cache"]["in_flight_bytes"] == 0)
    before = local(growfs)
    assert not before & {"folder/b.jpg"} or "folder/b.json" in before
    for name in ("folder/a.json", "folder/b.jpg"):
        assert reader.read(name)
    assert local(growfs) >= {"folder/a.jpg", "folder/a.json", "folder/b.jpg", "folder/b.json"}
    assert {server.requests[f"folder/{name}"] for name in names[:4]} == {1}


@pytest.mark.promise(24)
def test_a_file_that_fails_keeps_its_group_unlisted(growfs: Growfs, server: BlockingServer, reader: Reader) -> None:
    server.files = {f"folder/{stem}.{suffix}": stem.encode() for stem in "abcd" for suffix in ("jpg", "json")}
    server.statuses = {"folder/b.json": 403}
    growfs.mount(server.manifest, "--group", "{stem}", "--wait-files", 6)
    others = {name for name in server.files if not name.startswith("folder/b")}
    until(lambda: mount_status(growfs)["state"] == "error")
    assert reader.walk() == local(growfs) == others
    with pytest.raises(OSError, match=r"b\.jpg"):
        reader.read("folder/b.jpg")
    assert local(growfs) == others
    server.statuses = {}
    assert reader.read("folder/b.jpg") == 1
    assert local(growfs) == set(server.files)


@pytest.mark.promise(24)
def test_a_group_whose_sizes_are_unknown_is_tried(growfs: Growfs, server: BlockingServer) -> None:
    """By the sizes that are guessed at first, 30 files would take twice as much as the cache has."""
    server.files = {f"{folder}/{number:02}.bin": b"x" * SIZE for folder in "ab" for number in range(30)}
    growfs.mount(server.url, "--group", "{parent}")
    until(lambda: growfs.status()["state"] == "complete")
    assert growfs.names() == set(server.files)
    assert set(server.requests.values()) == {1}


@pytest.mark.promise(24)
def test_a_group_that_never_fits_blocks_no_other_file(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=4, files=3, size=SIZE)
    (tmp_path / "remote/big").mkdir()
    for number in range(12):
        (tmp_path / f"remote/big/{number}.bin").write_bytes(b"x" * SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", 10 * SIZE, "--group", "{parent}", "--no-wait")
    until(lambda: len(local(growfs)) == 9)
    assert (growfs.mountpoint / "big/3.bin").read_bytes() == b"x" * SIZE
    assert len(local(growfs)) == 10


# --show-files.


@pytest.mark.promise(25)
def test_every_generation_lists_exactly_the_requested_number_of_files(
    growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader
) -> None:
    full_cache(growfs, tmp_path / "remote", "--show-files", "7", "--rotation", "never", "--turnover", "30%")
    seen: set[str] = set()
    for number in itertools.count():
        if number == 3:
            assert len(seen) <= CAPACITY
            growfs.run("set", growfs.mountpoint, "rotation=auto")
        shown = reader.walk()
        assert shown == epoch(other)
        assert len(shown) == 7
        reader.read_all(shown)
        seen |= shown
        if len(seen) > 1.5 * CAPACITY:
            break
    assert waited_opens(growfs) == 0


@pytest.mark.promise(24, 25)
@only("libfuse")
def test_every_generation_lists_whole_groups_if_these_make_up_the_number(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    make_pairs(tmp_path / "remote")
    flags = "--cache-size", 20 * SIZE, "--group", "{stem}", "--settle", "0", *HALF
    done = growfs.mount(tmp_path / "remote", *flags, "--show-files", 15, check=False)
    assert is_refusal(done, "--show-files 15", "each group (--group) contains 2 files; show 14 files")
    growfs.mount(tmp_path / "remote", *flags, "--show-files", 14)
    for _ in range(3):
        names = epoch(reader)
        assert len(names) == 14
        assert not unpaired(names)
    growfs.umount()
    for number in range(3):
        (tmp_path / f"remote/class0/{number:04}.txt").write_bytes(b"x" * SIZE)
    done = growfs.mount(tmp_path / "remote/class0", *flags, "--show-files", 14, check=False)
    assert is_refusal(done, "--show-files 14", "groups (--group) contain 2 to 3 files")


# --partition.


@pytest.mark.promise(26)
def test_partitions_cover_the_remote_and_share_only_the_seeds(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=3, files=20, size=SIZE)
    shares, seeds = [], []
    for number in (0, 1):
        growfs.cache_dir = tmp_path / f"node{number}"
        growfs.mount(tmp_path / "remote", "--partition", f"{number}/2")
        growfs.run("wait", growfs.mountpoint, "--all")
        status = mount_status(growfs)
        shares.append(growfs.names())
        seeds.append(set(admissions(growfs)[:3]))
        assert status["partition"] == f"{number}/2"
        assert status["coverage"]["files"] == status["cache"]["files"] == len(shares[-1]) < 45
        growfs.umount()
    assert shares[0] | shares[1] == set(tree)
    assert shares[0] & shares[1] == seeds[0] == seeds[1]


@pytest.mark.promise(20, 26)
def test_files_of_another_share_that_are_opened_do_not_count_for_this_one(
    growfs: Growfs, tmp_path: Path, reader: Reader
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=30, size=SIZE)
    first = Pass(0, 1, (0, 2))
    share = {path for path in tree if first.has(path)}
    share.add(min(tree, key=first.key))  # the directory's first file
    others = sorted(set(tree) - share)
    flags = "--partition", "0/2", "--seed", 0, "--cache-size", len(share) * SIZE, "--settle", 0, "--turnover", "50%"
    growfs.mount(tmp_path / "remote", *flags)
    until(lambda: growfs.status()["state"] == "complete")
    assert local(growfs) == share
    for path in others[:3]:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    assert growfs.status()["state"] != "complete"
    missed = share - local(growfs)
    assert missed
    until(lambda: epoch(reader) and missed <= local(growfs) | growfs.names())
    growfs.umount()
    growfs.mount(tmp_path / "remote", *flags)
    until(lambda: epoch(reader) and local(growfs) == share)


@pytest.mark.promise(4, 26)
def test_a_listing_that_finds_no_change_delists_nothing(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", directories=2, files=40, size=SIZE)
    growfs.mount(tmp_path / "remote", "--partition", "0/2", "--cache-size", 44 * SIZE, "--refresh", "0.5s", *HALF)
    until(lambda: growfs.status()["state"] == "complete")
    share = epoch(reader)
    assert share == local(growfs)
    until(lambda: ", 0 of them new" in growfs.log())
    assert epoch(reader) == epoch(reader) == share


@pytest.mark.promise(26)
def test_a_share_is_cached_once_its_own_files_are(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=20, size=SIZE)
    growfs.mount(tmp_path / "remote", "--partition", "0/2", "--rotation", "never")
    growfs.run("wait", growfs.mountpoint, "--all")
    share = local(growfs)
    for path in set(tree) - share:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    files = {"files": len(share), "files_seen": len(share), "files_cached": len(share)}
    assert growfs.status()["coverage"] == files | {"pass": 1}
    growfs.run("evict", growfs.mountpoint, min(share))
    assert growfs.status()["coverage"] == files | {"files_cached": len(share) - 1, "pass": 1}
    assert "no more files will be fetched" in growfs.run("wait", growfs.mountpoint, "--all", check=False).stderr


# --remote-budget.


@pytest.mark.promise(27)
def test_the_budget_stops_prefetch_but_not_misses(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    flags = "--workers", 1, "--remote-budget", 10 * SIZE, "--refresh", 0
    growfs.mount(tmp_path / "remote", *flags)
    until(lambda: mount_status(growfs)["state"] == "held")
    status = mount_status(growfs)
    drawn = status["cache"]["files"]
    assert 10 <= drawn < 20  # downloads in flight at that moment still complete
    assert status["budget"]["limit_bytes"] == 10 * SIZE
    assert status["budget"]["spent_bytes"] == drawn * SIZE
    assert status["budget"]["resumes_s"] > 0
    assert "today; resumes in " in (growfs.mountpoint / ".growfs/status").read_text()
    assert reader.read(min(set(tree) - local(growfs))) == SIZE
    growfs.umount()
    growfs.mount(tmp_path / "remote", *flags)
    assert mount_status(growfs)["budget"]["spent_bytes"] == (drawn + 1) * SIZE
    assert mount_status(growfs)["cache"]["files"] == drawn + 1
    growfs.run("set", growfs.mountpoint, "remote-budget=0")
    until(lambda: mount_status(growfs)["state"] == "complete")
    assert mount_status(growfs)["budget"] == {"limit_bytes": None, "spent_bytes": len(tree) * SIZE, "resumes_s": None}


@pytest.mark.promise(7, 27)
def test_a_budget_below_one_file_per_directory_does_not_block_the_mount(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=6, files=3, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--workers", 1, "--remote-budget", 1)
    mount_status(growfs)
    if mount_status(growfs)["cache"]["files"] < 6:  # downloads in flight at that moment still complete
        assert "not every directory has a file yet: --remote-budget is spent" in done.stdout
