"""How training jobs read, with real processes over a full cache that rotates: no open fails, and none waits.

In most tests the cache holds 10 of 40 files, and one reader lists again and again, so that the listing must change.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

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
from tests.simulation.statistics_of import variation

RANKS = 4


@pytest.fixture
def tree(growfs: Growfs, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """A mount with a full cache, of which each generation delists half; after the test, no open may have waited."""
    yield full_cache(growfs, tmp_path / "remote")
    assert waited_opens(growfs) == 0
    cache = mount_status(growfs)["cache"]
    assert cache["bytes"] + cache["in_flight_bytes"] + cache["orphan_bytes"] <= cache["limit_bytes"]


def fetched(growfs: Growfs) -> int:
    """How many files were fetched so far."""
    return int(mount_status(growfs)["fetch"]["files_total"])


@pytest.mark.promise(6)
@pytest.mark.parametrize("disjoint", [True, False], ids=["parts", "everything"])
def test_ranks_with_offsets_see_equal_lists(growfs: Growfs, tree: dict[str, bytes], disjoint: bool) -> None:
    seen: set[str] = set()
    with ExitStack() as stack, ThreadPoolExecutor(RANKS) as threads:
        ranks = [stack.enter_context(Reader(growfs.mountpoint)) for _ in range(RANKS)]
        shown: set[str] = set()
        for number in range(6):
            listed = []
            for place, rank in enumerate(ranks):
                if number:  # one rank after another ends its epoch, and lists at once
                    rank.read_all(shuffled(shown, place)[place % len(shown) :: RANKS] if disjoint else shuffled(shown))
                listed.append(rank.walk())
            assert all(names == listed[0] for names in listed)
            shown = listed[0]
            seen |= shown
            for done in [threads.submit(rank.read_all, sorted(shown)) for rank in ranks]:
                done.result()
            if number:
                wait_for_replacement(growfs)
    assert len(seen) >= 2 * CAPACITY


@pytest.mark.long
@pytest.mark.promise(20)
def test_opens_are_even_after_index_csv_was_read_once(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    opens = Counter(dict.fromkeys(full_cache(growfs, tmp_path / "remote", "--turnover", "20%"), 0))
    reader.lines(".growfs/index.csv")
    for number in range(40):
        names = reader.walk()
        reader.read_all(shuffled(names))
        opens.update(names)
        if number:
            wait_for_replacement(growfs)
    assert variation(list(opens.values())) <= 0.35


@pytest.mark.promise(17)
def test_two_jobs_out_of_phase(growfs: Growfs, tree: dict[str, bytes], reader: Reader, other: Reader) -> None:
    """The fast job runs three epochs during one of the slow job, whose files stay for all of its epoch."""
    seen: set[str] = set()
    while len(seen) < 2 * CAPACITY:
        slow = shuffled(reader.walk())
        for third in range(3):
            seen |= epoch(other)
            reader.read_all(slow[third::3])


@pytest.mark.promise(17)
def test_training_listed_anew_beside_validation_listed_once(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "train", directories=2, files=16, size=SIZE)
    make_tree(tmp_path / "val", directories=1, files=16, size=SIZE)
    (tmp_path / "remote").mkdir()
    for part in ("train", "val"):
        (tmp_path / part).rename(tmp_path / "remote" / part)
    growfs.mount(tmp_path / "remote", "--cache-size", 12 * SIZE, "--turnover", "40%")
    growfs.until_cached(12)
    validation = reader.walk("val")
    seen: set[str] = set()
    while len(seen) <= 20:
        seen |= epoch(reader, "train")
        reader.read_all(validation)
    assert validation <= local(growfs)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(17)
def test_a_hyperparameter_search_starts_new_processes(growfs: Growfs, tree: dict[str, bytes]) -> None:
    growfs.run("set", growfs.mountpoint, "settle=0")
    seen: set[str] = set()
    while len(seen) < 2 * CAPACITY:
        with Reader(growfs.mountpoint) as trial:
            names = trial.walk()
            for seed in range(2):
                trial.read_in_children(shuffled(names, seed))
        seen |= names


@pytest.mark.promise(17)
def test_training_from_a_list_that_find_made(
    growfs: Growfs, tree: dict[str, bytes], reader: Reader, other: Reader
) -> None:
    find = ["find", ".", "-type", "f", "-printf", "%P\n"]
    names = subprocess.run(find, cwd=growfs.mountpoint, capture_output=True, text=True, check=True).stdout.split()
    assert names
    for number in range(4):
        reader.read_in_children(shuffled(names, number))
        reader.read_all(names)
        epoch(other)
    assert mount_status(growfs)["generation"] >= 4


@pytest.mark.promise(17)
def test_tools_that_walk_the_tree_run_in_between(
    growfs: Growfs, tmp_path: Path, tree: dict[str, bytes], reader: Reader
) -> None:
    at = growfs.mountpoint
    copy = ["cp", "-r", str(at), str(tmp_path / "copy")]
    tools = [["ls", "-lR", str(at)], ["find", str(at)], ["du", "-a", str(at)], ["grep", "-rc", "x", str(at)], copy]
    seen: set[str] = set()
    for number in range(6):
        names = reader.walk()
        seen |= names
        order = shuffled(names, number)
        reader.read_all(order[::2])
        tool = tools[number % len(tools)]
        assert subprocess.run(tool, capture_output=True, check=False, timeout=60).returncode in (0, 1), tool
        reader.read_all(order[1::2])
        reader.read_all(order)
        if number:
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
        reader.map(name)
    for _ in range(6):
        epoch(other)
    growfs.run("release", growfs.mountpoint)
    for _ in range(4):
        epoch(other)
    assert [reader.mapped(name) for name in names] == [tree[name] for name in names]
    until(lambda: fetched(growfs) > CAPACITY)


@pytest.mark.promise(6)
def test_listing_twice_while_the_cache_fills_gives_equal_lists(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    """As Keras does, for its training and its validation subset."""
    full_cache(growfs, tmp_path / "remote")
    for files in (14, 18):
        training = reader.walk()
        growfs.run("set", growfs.mountpoint, f"cache-size={files * SIZE}")
        growfs.until_cached(files)
        validation = reader.walk()
        assert training == validation
        half = len(training) // 2
        for _ in range(3):
            reader.read_all(sorted(training)[:half])
            reader.read_all(sorted(validation)[half:])
    assert waited_opens(growfs) == 0


@pytest.mark.promise(6)
def test_a_notebook_looks_at_a_batch_before_it_lists_the_validation_set(
    growfs: Growfs, tree: dict[str, bytes], other: Reader
) -> None:
    for _ in range(3):
        with Reader(growfs.mountpoint) as notebook:
            for _ in range(2):
                training = notebook.walk()
                notebook.read_all(shuffled(training)[: len(training) // 5])
                assert notebook.walk() == training
                notebook.read_all(shuffled(training))
        epoch(other)


@pytest.mark.promise(6)
def test_a_trainer_that_lists_again_and_again_before_it_opens(growfs: Growfs, tree: dict[str, bytes]) -> None:
    """As Hugging Face's does."""
    for _ in range(2):
        with Reader(growfs.mountpoint) as trainer:
            (shown,) = {frozenset(trainer.walk()) for _ in range(65)}
            trainer.read_all(shuffled(shown))


@pytest.mark.promise(6)
def test_a_poller_sees_enough(growfs: Growfs, tmp_path: Path, reader: Reader, other: Reader) -> None:
    """A script that calls glob until there is enough, beside a job."""
    full_cache(growfs, tmp_path / "remote", "--settle", "0", "--turnover", "20%")
    for _ in range(5):
        names = epoch(other)
        until(lambda: len(reader.walk()) >= CAPACITY - 2)
        other.read_all(names)
    epoch(other)
    until(lambda: fetched(growfs) > CAPACITY)
    assert waited_opens(growfs) == 0


@pytest.mark.promise(17)
def test_a_job_dies_and_resumes(growfs: Growfs, tree: dict[str, bytes], other: Reader) -> None:
    for number in range(4):
        with Reader(growfs.mountpoint) as job:
            order = shuffled(job.walk(), number)
            epoch(other)
            job.read_all(order[: 4 * len(order) // 10])
            epoch(other)
            job.kill()
    until(lambda: fetched(growfs) > CAPACITY)


EPOCHS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "a third of it": lambda names, _: names[: len(names) // 3],
    "with replacement": lambda names, chance: chance.choices(names, k=len(names)),
    "three times in a row": lambda names, _: [name for name in names for _ in range(3)],
    "half of the names": lambda names, _: sorted(names)[::2],
}


@pytest.mark.promise(17)
def test_epochs_of_many_kinds(growfs: Growfs, tree: dict[str, bytes], reader: Reader, other: Reader) -> None:
    """Each is listed once by one process and used twice, while another process keeps listing."""
    chance = random.Random(1)
    for pick in EPOCHS.values():
        names = sorted(reader.walk())
        for _ in range(2):
            chance.shuffle(names)
            reader.read_all(pick(names, chance))
            epoch(other)
    reader.walk()
    until(lambda: fetched(growfs) > CAPACITY)


@pytest.mark.promise(7)
def test_a_hundred_and_thirty_directories(growfs: Growfs, tmp_path: Path, reader: Reader) -> None:
    make_tree(tmp_path / "remote", directories=130, files=3, size=100)
    growfs.mount(tmp_path / "remote", "--cache-size", 270 * SIZE, *HALF)
    growfs.until_cached(270)
    seen: set[str] = set()
    while len(seen) <= 270:
        shown = epoch(reader)
        assert len({Path(name).parent for name in shown}) == 130
        seen |= shown
    assert waited_opens(growfs) == 0
