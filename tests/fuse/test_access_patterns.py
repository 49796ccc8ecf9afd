"""How training jobs read, with real processes over a full cache that rotates: no open fails, and none waits.

tests/simulation/test_patterns.py has more of them; those here depend on processes and on the requests of real tools.

In most tests the cache holds 10 of 40 files, and one reader lists again and again, so that the listing must change.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import (
    CAPACITY,
    epoch,
    full_cache,
    mount_status,
    shuffled,
    wait_for_replacement,
    waited_opens,
)
from tests.harness import Growfs, until

RANKS = 3


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
    with ExitStack() as stack, ThreadPoolExecutor(RANKS) as threads:
        ranks = [stack.enter_context(Reader(growfs.mountpoint)) for _ in range(RANKS)]
        shown: set[str] = set()
        for number in range(6):
            listed = []
            for place, rank in enumerate(ranks):
                if number:  # one rank after another ends its epoch, and lists at once
                    rank.read_all(shuffled(shown, place)[place % len(shown) :: RANKS])
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
