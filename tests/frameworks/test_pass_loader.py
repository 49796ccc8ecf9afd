"""One data loader over all parts of a pass: `growfs.samples` in the workers of PyTorch's DataLoader, and by itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import growfs as api
from growfs.client.epochs import epoch
from growfs.errors import GrowfsError, UsageError
from tests.frameworks.harness import BLOCK, ENV, FORKS, HERE
from tests.harness import Growfs, make_tree, until
from tests.needs import need
from tests.recipes.running import misses
from tests.recipes.test_torch import other_node

FILES = 60
PARTS_OF_SIX = "--cache-size", 16 * BLOCK, "--part-size", 8 * BLOCK, "--settle", "1s"
pytestmark = [pytest.mark.timeout(180), pytest.mark.promise(47)]


def mount(growfs: Growfs, folder: Path, *flags: object) -> set[str]:
    """Mount files of one block each; returns their names."""
    tree = make_tree(folder, directories=3, files=FILES // 3, size=100)
    for number, path in enumerate(tree):
        (folder / path).rename(folder / path.replace(Path(path).stem, f"{number:04}"))
    growfs.mount(folder, *(flags or ("--exact", *PARTS_OF_SIX)))
    return {f"{number:04}.bin" for number in range(FILES)}


def run(growfs: Growfs, **job: Any) -> list[dict[str, Any]]:
    """What the program prints on each pass."""
    need("torch")
    errors = growfs.mountpoint.parent / "errors"
    with errors.open("w") as stderr:
        words = HERE / "programs/pass_loader.py", growfs.mountpoint, json.dumps(job)
        process = FORKS.start(words, ENV, stdout=subprocess.PIPE, stderr=stderr, cwd="/")
    assert process.stdout
    with process.stdout:
        lines = list(process.stdout)
    assert process.wait(60) == 0, errors.read_text()
    return [json.loads(line) for line in lines if line.startswith("{")]


def opened(file: Path) -> str:
    """Open a file; returns its name."""
    file.open().close()
    return file.name


def test_batches_span_parts_and_the_look_ahead_stays_within_the_cached_ones(growfs: Growfs, tmp_path: Path) -> None:
    names = mount(growfs, tmp_path / "remote")
    passes = run(growfs, workers=2, batch=7, passes=3)
    assert [len(each["names"]) for each in passes] == 3 * [FILES // 2 // 7 * 2 * 7]
    assert all(len(set(each["names"])) == len(each["names"]) and set(each["names"]) <= names for each in passes)
    assert passes[1]["names"] != passes[2]["names"], "another order"
    assert misses(growfs) == 0


def test_a_file_that_cannot_be_read_fails_its_batch_only(growfs: Growfs, tmp_path: Path) -> None:
    """A part may have fewer files than there are workers: those of the first pass have three."""
    names = mount(growfs, tmp_path / "remote")
    for each in run(growfs, workers=4, batch=1, passes=1, fails=True):
        assert Counter(each["names"]) == Counter(name for name in names if name[3] != "0")
        assert each["failed"] == FILES // 10
    assert misses(growfs) == 0


def test_a_function_that_finds_nothing_to_return_does_not_end_the_pass(growfs: Growfs, tmp_path: Path) -> None:
    mount(growfs, tmp_path / "remote")
    samples = api.samples(growfs.mountpoint, lambda _: next(iter(())), 1)
    for _ in range(FILES):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            next(samples)
    with pytest.raises(StopIteration):
        next(samples)


def test_a_pass_that_is_left_in_the_middle_is_followed_by_the_next_one(growfs: Growfs, tmp_path: Path) -> None:
    names = mount(growfs, tmp_path / "remote")
    left, whole = run(growfs, workers=2, batch=1, passes=2, stop_after=3)
    assert len(left["names"]) == 3
    assert Counter(whole["names"]) == Counter(names)
    assert growfs.status()["exact"]["pass"] == 2


def test_without_exact_it_reads_the_next_generation(growfs: Growfs, tmp_path: Path) -> None:
    names = mount(growfs, tmp_path / "remote", "--wait-files", FILES)
    for each in run(growfs, workers=2, batch=1, passes=2):
        assert Counter(each["names"]) == Counter(names)


def test_shares_continue_anywhere_where_they_have_stopped(growfs: Growfs, tmp_path: Path) -> None:
    names = mount(growfs, tmp_path / "remote")
    shares = [api.samples(growfs.mountpoint, opened, 1, share=(number, 3)) for number in range(3)]
    read = [next(share) for _ in range(4) for share in shares]
    states = [json.dumps(share.state_dict()) for share in shares]
    with other_node(tmp_path / "other") as other:
        other.mount(tmp_path / "remote", "--exact", *PARTS_OF_SIX)
        shares = [api.samples(other.mountpoint, opened, 1, share=(number, 3)) for number in range(3)]
        for share, state in zip(shares, states, strict=True):
            share.load_state_dict(json.loads(state))
        read += [name for _ in range(FILES // 3 - 4) for name in map(next, shares)]
        assert [next(share, None) for share in shares] == 3 * [None]
        assert Counter(read) == Counter(names)
        assert sorted(api.samples(other.mountpoint, opened)) == sorted(names), "of the next pass"
        assert shares[0].state_dict()["number"] == 1
        assert other.status()["exact"]["pass"] == 2
        shares = [api.samples(other.mountpoint, opened, 3, share=(number, 2)) for number in range(2)]
        read = [next(share) for _ in range(9) for share in shares]
        saved = shares[0].state_dict()
        shares = [api.samples(other.mountpoint, opened, 3, share=(number, 3)) for number in range(3)]
        for share in shares:
            share.load_state_dict(saved)
        read += [name for _ in range(FILES // 3 - 6) for name in map(next, shares)]
        assert Counter(read) == Counter(names), "another number of shares continues"


def test_shares_agree_if_the_remote_changes_before_the_pass_begins(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "remote"
    names = mount(growfs, folder, "--exact", *PARTS_OF_SIX, "--refresh", "1s", "--start", "2/1")
    added = {f"new{number}.bin" for number in range(FILES // 2 + 1)}

    def parts(*asked: Any) -> Any:
        if not (folder / "class0/new0.bin").exists():  # the first share has asked about the pass
            for name in added:
                (folder / "class0" / name).write_bytes(b"new")
            until(lambda: growfs.status()["remote"]["files"] == len(names | added))
        return epoch(*asked)

    monkeypatch.setattr("growfs.client.samples.epoch", parts)
    shares = [api.samples(growfs.mountpoint, opened, 2, share=(number, 3)) for number in range(3)]
    read = [name for row in zip_longest(*shares) for name in row if name]
    assert Counter(read) == Counter(names | added)


def test_what_would_read_other_files_than_expected_is_refused(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(growfs, tmp_path / "remote")
    from_1 = "number=0: passes are numbered from 1"  # a loop over range(90) would read pass 1 twice
    with pytest.raises(UsageError, match=from_1):
        api.samples(growfs.mountpoint, opened, 0)
    with pytest.raises(UsageError, match=from_1):
        next(api.epoch(growfs.mountpoint, 0))
    with pytest.raises(UsageError, match="share"):
        api.samples(growfs.mountpoint, opened, share=(2, 2))
    samples = api.samples(growfs.mountpoint, opened, 1)
    next(samples)
    state = samples.state_dict()
    state["catalog"] = {**state["catalog"], "seed": 5}
    samples.load_state_dict(state)
    with pytest.raises(GrowfsError, match="--seed is 0, but was 5"):
        next(samples)
    monkeypatch.setattr("growfs.client.samples.epoch", lambda *_: (Path(path) for path in ["/dev/null"]))
    with pytest.raises(GrowfsError, match="/dev/null: cannot be listed: Not a directory"):
        next(api.samples(growfs.mountpoint, opened))


def test_mount_and_status_say_how_many_files_a_part_has(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=3, files=FILES // 3, size=100)
    mounted = growfs.mount(tmp_path / "remote", "--exact", *PARTS_OF_SIX, "--start", "2/1")
    status = growfs.run("status", growfs.mountpoint).stdout
    parts = growfs.status()["exact"]["parts"]
    assert re.search(rf"^pass +2, no part listed yet, about {round(FILES / parts)} files each", status, re.MULTILINE)
    for text in (mounted.stdout, status):
        assert re.search(r"^warning:? +parts have fewer than 300 files, and the cache is too small", text, re.MULTILINE)


def test_frozen_files_can_be_left_out(growfs: Growfs, tmp_path: Path) -> None:
    flags = "--exact", "--cache-size", 36 * BLOCK, "--part-size", 8 * BLOCK, "--freeze", "class0/**"
    names = mount(growfs, tmp_path / "remote", *flags)
    read = list(api.samples(growfs.mountpoint, opened, 1, include="class[12]/*"))
    assert Counter(read) == Counter(name for name in names if int(name[:4]) >= FILES // 3)
