"""tools/soak runs, finds nothing wrong in growfs, and finds what is wrong where something is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounts
from tests.forkserver import FORK_ALL_VARIABLE
from tests.frameworks.harness import ENV, FORKS
from tools.benchmarks.recipe_data import tfrecord
from tools.soaking.content import Part, WrongBytes, checked, content, records, versions
from tools.soaking.readers import Judge
from tools.soaking.report import Epoch, errno_in
from tools.soaking.soak import ACTIONS

SHARD, SINGLE = "records/00005.tfrecord", "classes/1/00001.bin"


@pytest.mark.promise(1, 2, 3, 7, 17, 29)
@pytest.mark.parametrize("engine", ["either", pytest.param("libfuse", marks=pytest.mark.long)], indirect=True)
def test_readers_see_no_fault_but_those_that_are_due(tmp_path: Path, engine: str) -> None:
    """Real readers, a remote that misbehaves and changes, and kills of all that can be killed."""
    words = ["-m", "tools.soak", "0.1", "--seed", "7", "--engine", engine]
    done = FORKS.run(words, {**ENV, FORK_ALL_VARIABLE: "1", "TMPDIR": str(tmp_path)}, 110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost" in done.stdout
    for action in ACTIONS:
        assert f"| {action} " in done.stdout, "each was done"
    read = dict(re.findall(r"^\| (tensorflow|torch) +\| +(\d+)", done.stdout, re.MULTILINE))
    assert len(read) == 2
    assert not [mount for mount in mounts() if tmp_path in mount.mountpoint.parents]
    assert not list(tmp_path.glob("growfs-*"))


def test_a_damaged_record_is_noticed() -> None:
    whole = records(SHARD, 3)
    assert versions([SHARD], map(checked, whole)) == {SHARD: 3}
    assert content(SHARD, 3) == tfrecord(whole)
    for damaged in (whole[0][:-1], whole[0] + b"x", whole[0].replace(b" 3 ", b" 4 ", 1), b"", bytes(100)):
        with pytest.raises(WrongBytes):
            checked(damaged)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [Part(SHARD, 1, 0, 2)],
        [Part(SHARD, 1, 0, 2), Part(SHARD, 2, 1, 2)],
        [Part(SHARD, 1, 0, 2), Part(SHARD, 1, 0, 2)],
        [Part(SHARD, 1, 0, 1), Part(SINGLE, 1, 0, 1)],
    ],
    ids=["missing", "half", "two versions", "twice", "of another file"],
)
def test_a_file_that_is_not_whole_is_noticed(parts: list[Part]) -> None:
    with pytest.raises(WrongBytes):
        versions([SHARD], parts)


@pytest.mark.parametrize(
    ("epoch", "is_due"),
    [
        (Epoch(5, 6, versions={SINGLE: 2}), True),
        (Epoch(5, 6, versions={SINGLE: 3}), False),
        (Epoch(5, 6, error="FileNotFoundError: [Errno 2] /m/classes/1/00001.bin", code=2), False),
        (Epoch(5, 6, error="FileNotFoundError: [Errno 2] /m/classes/0/00004.bin", code=2), True),
        (Epoch(15, 16, error="OSError: [Errno 107] Transport endpoint is not connected", code=107), True),
        (Epoch(25, 26, error="OSError: [Errno 107] Transport endpoint is not connected", code=107), False),
        (Epoch(15, 16, error="WrongBytes: ...", wrong=True), False),
        (Epoch(15, 16, error="TimeoutError: [Errno 110]", code=110), False),
    ],
)
def test_only_what_has_a_cause_is_due(epoch: Epoch, is_due: bool) -> None:
    judge = Judge({SINGLE: 2}, {"classes/0/00004.bin"})
    judge.outages.append((14, 17))
    judge.judge("torch", epoch, {SINGLE: 1})
    assert bool(judge.findings.problems) is not is_due


def test_a_version_never_goes_back() -> None:
    judge = Judge({SINGLE: 2}, {"classes/0/00004.bin"})
    judge.judge("torch", Epoch(5, 6, versions={SINGLE: 1}), {SINGLE: 2})
    assert judge.findings.problems


def test_the_errno_is_found_in_the_message_of_a_framework() -> None:
    assert errno_in(ValueError("x; Transport endpoint is not connected")) == 107
    assert errno_in(FileNotFoundError(2, "No such file or directory")) == 2
    assert errno_in(FileNotFoundError("Found no valid file for the classes 0, 1")) == 2
    assert errno_in(ValueError("of its own")) == 0
