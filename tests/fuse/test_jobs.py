"""What the processes of real programs are shown: those that list in the middle of an epoch, their workers and ranks."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import (
    CAPACITY,
    HALF,
    SIZE,
    epoch,
    full_cache,
    local,
    mount_status,
    shuffled,
    wait_for_replacement,
    waited_opens,
)
from tests.harness import Growfs, make_tree, until

FILES = 60
EXACT = "--exact", "--part-size", "20%", "--cache-size", FILES // 2 * SIZE


def position(growfs: Growfs) -> tuple[int, int]:
    """(pass, part) of the part that began last."""
    exact = mount_status(growfs)["exact"]
    return exact["pass"], exact["part"]


def run(growfs: Growfs, program: str, *words: object) -> list[Any]:
    """Run a program on the mount, to its end; returns the lines of JSON that it prints."""
    command = [sys.executable, "-S", "-E", "-c", program, str(growfs.mountpoint), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


LISTS_AT_EACH_SAMPLE = """
import json, os, random, sys
folder, before, epochs = sys.argv[1], sys.argv[2] == "before", int(sys.argv[3])
for epoch in range(epochs):
    names = os.listdir(folder)
    lost = 0
    for name in random.sample(names, len(names)):
        if before:
            lost += name not in os.listdir(folder)
        open(os.path.join(folder, name), "rb").read()
        if not before:
            lost += name not in os.listdir(folder)
    print(json.dumps([sorted(names), lost]))
"""


@pytest.mark.promise(6, 47)
@pytest.mark.parametrize(("engine", "when"), [("either", "before"), ("links", "after")], indirect=["engine"])
def test_a_program_that_lists_at_each_sample_sees_each_part(growfs: Growfs, tmp_path: Path, when: str) -> None:
    """As GDAL does, and a search for the mask of an image."""
    make_tree(tmp_path / "remote", files=FILES, size=SIZE)
    growfs.mount(tmp_path / "remote" / "class0", *EXACT)
    parts = run(growfs, LISTS_AT_EACH_SAMPLE, when, 6)
    assert [lost for _, lost in parts] == [int(when == "after")] * 6, "all but the listing after the last sample"
    names = [name for part, _ in parts for name in part]
    assert len(set(names)) == len(names)
    assert position(growfs) in ((1, 6), (1, 7))
    assert waited_opens(growfs) == 0


WORKERS = """
import json, multiprocessing, os, sys
folder, method, lists, stay = sys.argv[1:]

def reads(pipe):
    while True:
        names = pipe.recv()
        if not names:
            break
        lost = 0
        for name in names:
            lost += name not in os.listdir(folder)
            open(os.path.join(folder, name), "rb").read()
        pipe.send(lost)

def main():
    context = multiprocessing.get_context(method)
    workers = []
    for epoch, _ in enumerate(sys.stdin):
        if lists == "each" or not epoch:
            names = sorted(os.listdir(folder))
        for number in range(2 - len(workers)):
            ours, theirs = context.Pipe()
            process = context.Process(target=reads, args=(theirs,))
            process.start()
            workers.append((ours, process))
        for number, (pipe, _) in enumerate(workers):
            pipe.send(names[number::2])
        print(json.dumps([names, sum(pipe.recv() for pipe, _ in workers)]), flush=True)
        if stay == "ends":
            for pipe, process in workers:
                pipe.send([])
                process.join()
            workers = []
    for pipe, process in workers:
        pipe.send([])

if __name__ == "__main__":
    main()
"""
RUNS_OF_WORKERS = [("fork", "each", "stays"), ("forkserver", "each", "ends")]
"""What CI runs: a worker whose parent has listed, and one whose grandparent has."""


@pytest.mark.promise(6)
@pytest.mark.parametrize(
    ("method", "lists", "stay"),
    [
        run if run in RUNS_OF_WORKERS else pytest.param(*run, marks=pytest.mark.long)
        for run in itertools.product(["fork", "spawn", "forkserver"], ["each", "once"], ["stays", "ends"])
    ],
)
def test_workers_see_what_the_program_sees_that_started_them(
    growfs: Growfs, tmp_path: Path, method: str, lists: str, stay: str
) -> None:
    """Data loader workers that look for the mask of an image, and are new in each epoch, or stay."""
    make_tree(tmp_path / "remote", files=FILES, size=SIZE)
    growfs.mount(tmp_path / "remote" / "class0", "--cache-size", FILES // 2 * SIZE, "--settle", "0.1s", *HALF)
    growfs.until_cached(FILES // 2)
    program = tmp_path / "train.py"
    program.write_text(WORKERS)
    command = [sys.executable, program, growfs.mountpoint, method, lists, stay]
    epochs = []
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(2):
            print(file=process.stdin)
            epochs.append(json.loads(process.stdout.readline()))
            if lists == "each":
                wait_for_replacement(growfs, capacity=FILES // 2)
            time.sleep(0.2)
        process.stdin.close()
    assert [lost for _, lost in epochs] == [0] * 2
    assert len({tuple(names) for names, _ in epochs}) == (2 if lists == "each" else 1)


@contextmanager
def ranks_of_a_launcher(growfs: Growfs, number: int) -> Iterator[list[Reader]]:
    """Ranks with a wrapper script each, and with their number in the command line."""
    with ExitStack() as stack:
        yield [stack.enter_context(Reader(growfs.mountpoint, job=f"train --rank {rank}")) for rank in range(number)]


@pytest.mark.promise(6, 17)
def test_rank_0_lists_for_all_of_its_job(growfs: Growfs, tmp_path: Path) -> None:
    """It broadcasts the names: what the other ranks open counts for the job, and they hold nothing up."""
    make_tree(tmp_path / "remote", files=FILES, size=SIZE)
    growfs.mount(tmp_path / "remote" / "class0", "--cache-size", FILES // 2 * SIZE, *HALF)
    growfs.until_cached(FILES // 2)
    with ranks_of_a_launcher(growfs, 4) as ranks:
        ranks[3].read(min(local(growfs)))  # before there is a job that has listed
        seen = set[str]()
        for _ in range(3):
            names = sorted(ranks[0].list())
            assert set(names) - seen
            seen.update(names)
            for place, rank in enumerate(ranks):
                rank.read_all(names[place::4])
            wait_for_replacement(growfs, FILES // 2)


@pytest.mark.promise(17, 47)
@only("either", "links")
def test_a_process_that_opens_a_file_by_name_stops_no_pass(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    """It holds what it has open, and nothing else."""
    make_tree(tmp_path / "remote", files=FILES, size=SIZE)
    growfs.mount(tmp_path / "remote" / "class0", *EXACT, "--start", "2/1")
    with Reader(growfs.mountpoint) as other:
        parts = [reader.list()]
        while position(growfs)[0] < 3:
            reader.read_all(parts[-1])
            if position(growfs) == (2, 5):  # the cache is full
                other.read(min({f"{number:04}.bin" for number in range(FILES)} - local(growfs)))
            parts.append(reader.list())
        assert sum(map(len, parts[:-1])) == FILES


@pytest.mark.promise(23, 47)
@only("links")
def test_who_reads_frozen_files_only_begins_no_part(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    """A process that validates."""
    make_tree(tmp_path / "remote", directories=2, files=FILES // 2, size=SIZE)
    growfs.mount(tmp_path / "remote", *EXACT, "--cache-size", FILES * 3 // 4 * SIZE, "--freeze", "class0/")
    with Reader(growfs.mountpoint) as validation:
        seen = list[str]()
        for _ in range(4):
            names = reader.walk()
            seen += [name for name in names if name.startswith("class1/")]
            reader.read_all(sorted(names)[-3:])
            for _ in range(2):
                validation.read_all(name for name in validation.walk() if name.startswith("class0/"))
            reader.read_all(name for name in names if name.startswith("class1/"))
        assert len(set(seen)) == len(seen)
        assert position(growfs) == (1, 4)


@pytest.mark.promise(47)
@only("links")
def test_a_monitor_begins_no_part_whoever_opens_files(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    """The kernel names a process that has ended before its open is counted."""
    make_tree(tmp_path / "remote", files=FILES, size=SIZE)
    growfs.mount(tmp_path / "remote" / "class0", *EXACT)
    shown = reader.list()
    for _ in range(2):
        for name in shown:
            subprocess.run(["cat", growfs.mountpoint / name], stdout=subprocess.DEVNULL, check=True)
        until(lambda: mount_status(growfs)["opens"]["total"] >= len(shown))
        assert reader.list() == shown


# A full cache that rotates, in which no open waits.


@pytest.fixture
def tree(growfs: Growfs, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """A mount with a full cache, of which each generation delists half; after the test, no open may have waited."""
    yield full_cache(growfs, tmp_path / "remote")
    assert waited_opens(growfs) == 0
    cache = mount_status(growfs)["cache"]
    assert cache["bytes"] + cache["in_flight_bytes"] + cache["orphan_bytes"] <= cache["limit_bytes"]


@pytest.mark.promise(6)
def test_ranks_with_offsets_see_equal_lists(growfs: Growfs, tree: dict[str, bytes]) -> None:
    seen: set[str] = set()
    with ExitStack() as stack, ThreadPoolExecutor(3) as threads:
        ranks = [stack.enter_context(Reader(growfs.mountpoint)) for _ in range(3)]
        shown: set[str] = set()
        for number in range(6):
            listed = []
            for place, rank in enumerate(ranks):
                if number:  # one rank after another ends its epoch, and lists at once
                    rank.read_all(shuffled(shown, place)[place % len(shown) :: 3])
                listed.append(rank.walk())
            assert all(names == listed[0] for names in listed)
            shown = listed[0]
            seen |= shown
            for done in [threads.submit(rank.read_all, sorted(shown)) for rank in ranks]:
                done.result()
            wait_for_replacement(growfs)
    assert len(seen) >= 2 * CAPACITY


@pytest.mark.promise(17)
def test_tools_that_walk_the_tree_run_in_between(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes], reader: Reader
) -> None:
    at = growfs.mountpoint
    copy = ["cp", "-r", str(at), str(tmp_path / "copy")]
    tools = [["ls", "-lR", str(at)], ["find", str(at)], ["du", "-a", str(at)], ["grep", "-rc", "x", str(at)], copy]
    seen: set[str] = set()
    for number in range(len(tools)):
        names = reader.walk()
        seen |= names
        order = shuffled(names, number)
        reader.read_all(order[::2])
        tool = tools[number]
        assert subprocess.run(tool, capture_output=True, check=False, timeout=60).returncode in (0, 1), tool
        reader.read_all(order[1::2])
        reader.read_all(order)
        wait_for_replacement(growfs)
    assert len(seen) >= 2 * CAPACITY
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert copied
    assert all(path.read_bytes() == tree[str(path.relative_to(tmp_path / "copy"))] for path in copied)


@pytest.mark.promise(2, 17)
def test_mapped_files_stay_readable(growfs: Growfs, tree: dict[str, bytes], reader: Reader, other: Reader) -> None:
    """np.load(mmap_mode="r"): a few opens, each closed at once, and no more opens after that."""
    names = sorted(reader.walk())[:3]
    for name in names:
        reader.request("map", name)
    for _ in range(6):
        epoch(other)
    growfs.run("release", growfs.mountpoint)
    for _ in range(4):
        epoch(other)
    assert [reader.request("mapped", name) for name in names] == [tree[name].hex() for name in names]
    until(lambda: mount_status(growfs)["fetch"]["files_total"] > CAPACITY)
