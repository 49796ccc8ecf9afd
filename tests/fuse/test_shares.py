"""What of the remote comes, stays and goes together: frozen files, groups, exact counts, shares of a job, a budget."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from tests.fuse.conftest import only
from tests.fuse.gated import Gated
from tests.fuse.reader import Reader
from tests.fuse.rotating import HALF, ROOM, SIZE, admissions, epoch, full_cache, local, replaced, told, waits
from tests.harness import Growfs, make_tree, until

Done = subprocess.CompletedProcess[str]


def refused(done: Done, *says: str, exit_code: int = 1) -> bool:
    """Whether a mount was refused in one line that says this."""
    line = done.stderr
    assert all(text in line for text in says), line
    return done.returncode == exit_code and line.startswith("growfs: ") and line.count("\n") == 1


# --freeze.


@pytest.mark.promise(23)
def test_frozen_files_come_first_and_stay(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    frozen = {f"class0/{number:04}.bin" for number in range(10, 14)}
    growfs.mount(tmp_path / "remote", "--cache-size", ROOM * SIZE, "--freeze", "class0/001[0-3].bin", *HALF)
    assert frozen <= local(growfs)  # as soon as `mount` returns
    assert set(admissions(growfs)[: len(frozen)]) == frozen
    until(lambda: told(growfs)["cache"]["files"] == ROOM)
    seen: set[str] = set()
    epoch(reader)
    epoch(reader)
    while len(seen) < 40:
        replaced(growfs)
        shown = epoch(reader)
        assert frozen < shown
        seen |= shown
    assert waits(growfs) == 0


@pytest.mark.promise(23)
def test_what_a_refresh_finds_to_freeze_comes_and_stays(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    full_cache(growfs, tmp_path / "remote", "--freeze", "*/new*", *HALF)
    epoch(reader)
    (tmp_path / "remote/class1/new.bin").write_bytes(b"n" * SIZE)
    growfs.run("set", growfs.mountpoint, "refresh=0.1s")
    until(lambda: told(growfs)["remote"]["files"] == 41)
    growfs.run("set", growfs.mountpoint, "refresh=1h")
    epoch(reader)  # makes room
    until(lambda: "class1/new.bin" in local(growfs))
    for _ in range(4):
        assert "class1/new.bin" in epoch(reader)
        replaced(growfs)
    assert waits(growfs) == 0


@pytest.mark.promise(23)
@only("libfuse")
def test_frozen_files_that_do_not_fit_are_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--cache-size", ROOM * SIZE, "--freeze", "class0/*", check=False)
    assert refused(done, "--freeze", "--cache-size")


@pytest.mark.promise(7, 23)
@only("libfuse")
def test_frozen_files_that_fill_the_cache_are_told_of(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=ROOM, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--cache-size", ROOM * SIZE, "--freeze", "class0/*")
    assert "not every directory has a file yet: there is no room" in done.stdout
    assert growfs.names() == {f"class0/{number:04}.bin" for number in range(ROOM)}


# --group.


def pairs(remote: Path, directories: int = 2, count: int = 12) -> set[str]:
    """Make x.jpg and x.json, of each so many in each directory; returns their paths without the extensions."""
    for suffix in (".jpg", ".json"):
        make_tree(remote, directories=directories, files=count, size=SIZE, suffix=suffix)
    return {f"class{directory}/{number:04}" for directory in range(directories) for number in range(count)}


def halves(names: set[str]) -> set[str]:
    """The names whose other half is missing."""
    other = {".jpg": ".json", ".json": ".jpg"}
    return {name for name in names if str(Path(name).with_suffix(other[Path(name).suffix])) not in names}


@pytest.mark.promise(24)
def test_a_group_is_always_listed_together(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    stems = pairs(tmp_path / "remote")
    growfs.mount(tmp_path / "remote", "--cache-size", 12 * SIZE, "--group", "{stem}", *HALF)
    until(lambda: told(growfs)["cache"]["files"] == 12)
    seen: set[str] = set()
    epoch(reader)
    epoch(reader)
    while seen != stems:
        replaced(growfs, room=12)
        shown = epoch(reader)
        assert not halves(shown)
        seen |= {name.partition(".")[0] for name in shown}
    assert waits(growfs) == 0


@pytest.mark.promise(24)
def test_a_miss_brings_the_whole_group(growfs: Growfs, gated: Gated, reader: Reader) -> None:
    names = ["a.jpg", "a.json", "b.jpg", "b.json", "c.jpg"]
    gated.files = {f"folder/{name}": name.encode() for name in names}
    gated.held = set(gated.files)
    growfs.mount(gated.manifest, "--no-wait", "--group", "{stem}")
    growfs.run("pause", growfs.mountpoint)
    gated.let_go()
    until(lambda: told(growfs)["cache"]["in_flight_bytes"] == 0)
    before = local(growfs)
    assert not before & {"folder/b.jpg"} or "folder/b.json" in before
    for name in ("folder/a.json", "folder/b.jpg"):
        assert reader.read(name)
    assert local(growfs) >= {"folder/a.jpg", "folder/a.json", "folder/b.jpg", "folder/b.json"}
    assert {gated.fetched[f"folder/{name}"] for name in names[:4]} == {1}


@pytest.mark.promise(24)
def test_one_that_fails_holds_its_group_back(growfs: Growfs, gated: Gated, reader: Reader) -> None:
    gated.files = {f"folder/{stem}.{suffix}": stem.encode() for stem in "abcd" for suffix in ("jpg", "json")}
    gated.refused = {"folder/b.json": 403}
    growfs.mount(gated.manifest, "--group", "{stem}", "--wait-files", 6)
    others = {name for name in gated.files if not name.startswith("folder/b")}
    until(lambda: told(growfs)["state"] == "error")
    assert reader.walk() == local(growfs) == others
    with pytest.raises(OSError, match=r"b\.jpg"):
        reader.read("folder/b.jpg")
    assert local(growfs) == others
    gated.refused = {}
    assert reader.read("folder/b.jpg") == 1
    assert local(growfs) == set(gated.files)


# --show-files.


@pytest.mark.promise(25)
@pytest.mark.parametrize("rotation", ["auto", "never"])
def test_every_generation_shows_exactly_so_many(
    growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader, rotation: str
) -> None:
    flags = "--show-files", "7", "--rotation", rotation, "--turnover", "30%"
    full_cache(growfs, tmp_path / "remote", *flags)
    seen: set[str] = set()
    for _ in range(8) if rotation == "never" else itertools.count():
        shown = reader.walk()
        assert shown == epoch(other)
        assert len(shown) == 7
        reader.read_all(shown)
        seen |= shown
        if len(seen) > 2 * ROOM:
            break
    assert waits(growfs) == 0
    assert len(seen) <= ROOM or rotation == "auto"


@pytest.mark.promise(25)
@only("libfuse")
def test_more_than_can_be_here_is_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--cache-size", ROOM * SIZE, "--show-files", 11, check=False)
    assert refused(done, "--show-files 11", "10 files", "--cache-size")


# --partition.


TORCHRUN = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "RANK": "9", "WORLD_SIZE": "16"}
SLURM = {"SLURM_NODEID": "1", "SLURM_NNODES": "2"}


@pytest.mark.promise(26)
def test_the_nodes_of_a_job_share_the_remote(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=3, files=20, size=SIZE)
    shares, seeds = [], []
    for number in (0, 1):
        growfs.cache_dir = tmp_path / f"node{number}"
        growfs.mount(tmp_path / "remote", "--partition", f"{number}/2")
        growfs.run("wait", growfs.mountpoint, "--all")
        status = told(growfs)
        shares.append(growfs.names())
        seeds.append(set(admissions(growfs)[:3]))
        assert status["partition"] == f"{number}/2"
        assert status["coverage"]["files"] == status["cache"]["files"] == len(shares[-1]) < 45
        growfs.umount()
    assert shares[0] | shares[1] == set(tree)
    assert shares[0] & shares[1] == seeds[0] == seeds[1]


@pytest.mark.promise(26)
@only("libfuse")
@pytest.mark.parametrize("launcher", [TORCHRUN, SLURM], ids=["torchrun", "slurm"])
def test_a_launcher_tells_which_share(growfs: Growfs, tmp_path: Path, launcher: dict[str, str]) -> None:
    make_tree(tmp_path / "remote", size=SIZE)
    growfs.env |= launcher
    growfs.mount(tmp_path / "remote", "--partition", "auto")
    assert told(growfs)["partition"] == "1/2"


@pytest.mark.promise(26)
@only("libfuse")
def test_no_share_without_a_launcher(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", size=SIZE)
    growfs.env |= {"RANK": "1", "WORLD_SIZE": "2"}
    for share, says in (("auto", "GROUP_RANK"), ("2/2", "0/8"), ("one", "0/8")):
        done = growfs.mount(tmp_path / "remote", "--partition", share, check=False)
        assert refused(done, "--partition", says, exit_code=2)


# --remote-budget.


@pytest.mark.promise(27)
def test_a_budget_stops_draws_and_no_misses(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=20, size=SIZE)
    flags = "--workers", 1, "--remote-budget", 10 * SIZE, "--refresh", 0
    growfs.mount(tmp_path / "remote", *flags)
    until(lambda: told(growfs)["state"] == "held")
    status = told(growfs)
    drawn = status["cache"]["files"]
    assert 10 <= drawn < 20  # what was in flight by then lands
    assert status["budget"]["limit_bytes"] == 10 * SIZE
    assert status["budget"]["spent_bytes"] == drawn * SIZE
    assert status["budget"]["resumes_s"] > 0
    assert "today; resumes in " in (growfs.mountpoint / ".growfs/status").read_text()
    assert reader.read(min(set(tree) - local(growfs))) == SIZE
    growfs.umount()
    growfs.mount(tmp_path / "remote", *flags)
    assert told(growfs)["budget"]["spent_bytes"] == (drawn + 1) * SIZE
    assert told(growfs)["cache"]["files"] == drawn + 1
    growfs.run("set", growfs.mountpoint, "remote-budget=1MB")
    until(lambda: told(growfs)["state"] == "complete")
    assert told(growfs)["budget"]["resumes_s"] is None


@pytest.mark.promise(7, 27)
def test_a_budget_less_than_the_directories_does_not_block_the_mount(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=6, files=3, size=SIZE)
    done = growfs.mount(tmp_path / "remote", "--workers", 1, "--remote-budget", 1)
    told(growfs)
    if told(growfs)["cache"]["files"] < 6:  # what was in flight by then lands
        assert "not every directory has a file yet: --remote-budget is spent" in done.stdout


@pytest.mark.promise(25)
def test_fewer_files_than_directories_are_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=4, files=3)
    done = growfs.mount(tmp_path / "remote", "--show-files", 3, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == ("growfs: --show-files 3: 4 directories have files, and none may be empty; show more")
