"""The recipes for TensorFlow and Keras, run unmodified over a real mount, and caches in memory and in two tiers.

A recipe runs in a process that knows nothing of growfs, while the test makes the cache larger and so decides what is
local at each step. No timing is checked.
"""

from __future__ import annotations

import csv
import io
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.frameworks.harness import BLOCK, ENV, blocks
from tests.harness import Growfs, make_tree, until
from tests.needs import need
from tests.servers import S3Server
from tools.benchmarks.recipe_data import example, tfrecord

RECIPES = Path(__file__).parents[2] / "tools" / "recipes"
LINE = re.compile(r"epoch (\d+): (\d+) files, (\d+) samples, \d+ samples/s, (.*)\n")
END_S = 30.0
MANY = "--epochs", 300
"""More than a test needs: if the recipe ends by itself, the expected epoch did not occur."""
ONLY_GROWTH = "--settle", "1h", "--rotation", "never"
"""The listing changes only when the cache grows."""
RECORDS = 20

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Epoch:
    """A line of a recipe. about: the text after the figures that all recipes print."""

    number: int
    files: int
    samples: int
    about: str


class Recipe:
    """A running recipe."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def epochs(self) -> Iterator[Epoch]:
        """Each epoch as it is printed, until the program ends; the test fails if its exit status is not 0."""
        assert self._process.stdout
        for line in self._process.stdout:
            if found := LINE.fullmatch(line):
                yield Epoch(int(found[1]), int(found[2]), int(found[3]), found[4])
        assert self._process.wait(END_S) == 0, self._errors.read_text()

    def until(self, condition: Callable[[Epoch], bool]) -> Epoch:
        """The next epoch that meets the condition."""
        for epoch in self.epochs():
            if condition(epoch):
                return epoch
        raise AssertionError(f"it ended first: {self._errors.read_text()}")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the recipe's process during the block."""
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running(name: str, folder: Path, *arguments: object) -> Iterator[Recipe]:
    """Run a recipe as a user starts it; it is killed after the block, if it still runs.

    It is not forked: a TensorFlow program that was, and is stopped now and then, hung once in a while.
    """
    need("tensorflow")
    errors = folder.parent / f"{name}.stderr"
    env = {key: value for key, value in ENV.items() if not key.startswith(("AWS_", "GROWFS_"))}
    words = [sys.executable, *map(str, (RECIPES / name, folder, *arguments))]
    with errors.open("w") as stderr:
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=stderr, cwd="/", text=True)
        assert process.stdout
        with process.stdout:
            try:
                yield Recipe(process, errors)
            finally:
                process.kill()
                process.wait()


def grow(growfs: Growfs, files: int, bytes: int) -> None:
    """Grow the cache to `bytes`, and wait until `files` files are local."""
    growfs.run("set", growfs.mountpoint, f"cache-size={bytes}")
    until(lambda: growfs.status()["cache"]["files"] == files)


def usage(growfs: Growfs) -> dict[str, int]:
    """How often each file was fetched, by path."""
    table = csv.DictReader(io.StringIO((growfs.mountpoint / ".growfs" / "ledger.csv").read_text()))
    return {row["path"]: int(row["fetches"]) for row in table}


def shard(seed: int) -> bytes:
    """A TFRecord file of small images."""
    generator = random.Random(seed)
    return tfrecord([example(generator.randbytes(32 * 32 * 3), generator.randrange(10)) for _ in range(RECORDS)])


def test_tfrecord_sees_more_shards_in_later_epochs(growfs: Growfs, rclone_s3: S3Server) -> None:
    contents = [shard(number) for number in range(12)]
    for number, content in enumerate(contents):
        rclone_s3.put(f"tf-recipe/train-{number:05}.tfrecord", content)
    each = blocks(len(contents[0]))
    growfs.env |= rclone_s3.env
    growfs.mount(f"s3://{rclone_s3.bucket}/tf-recipe", "--cache-size", 3 * each, *ONLY_GROWTH)
    with running("tf_tfrecord.py", growfs.mountpoint, *MANY) as recipe:
        for files, more in ((3, 3), (6, 3), (12, 6)):
            with recipe.stopped():
                grow(growfs, files, files * each)
            epoch = recipe.until(lambda epoch, files=files: epoch.files == files)  # type: ignore[misc]
            assert epoch.samples == files * RECORDS
            assert epoch.about.startswith(f"{more} new, {files} so far")
    assert growfs.status()["miss"]["files_total"] == 0
    assert set(usage(growfs).values()) == {1}


def test_tfrecord_sees_all_of_more_than_the_cache_holds(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    for number in range(12):
        (tmp_path / "remote" / f"train-{number:05}.tfrecord").write_bytes(content := shard(number))
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * blocks(len(content)))
    with running("tf_tfrecord.py", growfs.mountpoint, *MANY) as recipe:
        last = recipe.until(lambda epoch: "12 so far" in epoch.about)
    assert last.files <= 6
    assert last.samples == last.files * RECORDS
    assert growfs.status()["miss"]["files_total"] == 0


def test_input_fn_called_afresh_fetches_nothing_twice(growfs: Growfs, tmp_path: Path) -> None:
    for part, shards in (("train", 6), ("val", 2)):
        (tmp_path / "remote" / part).mkdir(parents=True)
        for number in range(shards):
            content = shard(number)
            (tmp_path / "remote" / part / f"{part}-{number:05}.tfrecord").write_bytes(content)
    each = blocks(len(content))
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * each, "--freeze", "val/**", *ONLY_GROWTH)
    overlaps = ["serial", "prefetch", "parallel"]
    times = "--overlap", *overlaps, "--prepare-s", 0.02, "--step-s", 0.01
    with running("tf_input_fn.py", growfs.mountpoint, *MANY, *times) as recipe:
        first = recipe.until(lambda epoch: True)
        assert (first.files, first.samples) == (2, 2 * RECORDS)
        with recipe.stopped():
            grow(growfs, 8, 8 * each)
        for overlap in overlaps:
            epoch = recipe.until(lambda epoch, overlap=overlap: epoch.files == 6 and overlap in epoch.about)  # type: ignore[misc]
            assert epoch.samples == 6 * RECORDS
            assert re.match(rf"[\d.]+ s a step \({overlap}\), accuracy [\d.]+ on 2 files held out", epoch.about)
    assert list(usage(growfs).values()) == [1] * 8
    assert growfs.status()["miss"]["files_total"] == 0


def test_keras_over_a_dataframe_of_what_is_listed(growfs: Growfs, tmp_path: Path) -> None:
    need("pandas")
    numpy = pytest.importorskip("numpy")
    remote = tmp_path / "remote"
    rows = [(f"object-{number}", number % 3, f"{number % 4}/{number:03}.npy") for number in range(80)]
    for _, label, path in rows:
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        numpy.save(remote / path, numpy.full((4, 4), label, "float32"))
    lines = ["object_id,label,path", *(",".join(map(str, row)) for row in rows)]
    (remote / "labels.csv").write_text("\n".join(lines) + "\n")
    growfs.mount(remote, "--cache-size", 41 * BLOCK, "--freeze", "labels.csv", *ONLY_GROWTH)
    with running("keras_dataframe.py", growfs.mountpoint, *MANY) as recipe:
        for objects, more in ((40, 40), (80, 40)):
            with recipe.stopped():
                grow(growfs, objects + 1, (objects + 1) * BLOCK)
            epoch = recipe.until(lambda epoch, objects=objects: epoch.files == objects)  # type: ignore[misc]
            assert epoch.samples == objects
            assert epoch.about.startswith(f"{more} new, {objects} of 80 objects so far")
    assert list(usage(growfs).values()) == [1] * 81
    status = growfs.status()
    assert status["miss"]["files_total"] == 0
    assert status["requests"].get("IOCTL", 0) < status["requests"]["OPEN"] / 4  # only pandas causes them


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory."""
    shm = Path("/dev/shm")
    if not any(line.split()[1:3] == [str(shm), "tmpfs"] for line in Path("/proc/mounts").read_text().splitlines()):
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(dir=shm, prefix="growfs-test-") as folder:
        yield Path(folder)


def test_a_cache_in_memory_rotates(growfs: Growfs, tmp_path: Path, memory: Path, engine: str) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=12)
    growfs.cache_dir = memory
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * blocks(10_000), "--engine", engine)
    status = growfs.status()
    assert status["engine"] == engine
    assert status["cache"]["bytes"] <= 6 * blocks(10_000)
    seen: set[str] = set()

    def all_seen() -> bool:
        for name in growfs.names():
            assert (growfs.mountpoint / name).read_bytes() == tree[name]
            seen.add(name)
        return seen == tree.keys()

    until(all_seen)
    growfs.umount()


def test_an_upper_cache_rereads_from_a_lower_one(growfs: Growfs, tmp_path: Path, memory: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=12)
    everything = tmp_path / "everything.csv"
    everything.write_text("path,size\n" + "".join(f"{path},{len(content)}\n" for path, content in tree.items()))
    each = blocks(10_000)
    lower, upper = growfs, Growfs(memory)
    lower.mount(tmp_path / "remote", "--cache-size", 6 * each)
    until(lambda: lower.status()["cache"]["files"] == 6)
    upper.mount(lower.mountpoint, "--manifest", everything, "--cache-size", 4 * each)
    seen: set[str] = set()

    def through_a_second_pass() -> bool:
        for name in upper.names():
            assert (upper.mountpoint / name).read_bytes() == tree[name]
            seen.add(name)
        return seen == tree.keys() and sum(usage(upper).values()) >= 20

    try:
        until(through_a_second_pass)
        assert upper.status()["miss"]["files_total"] == 0
        above = usage(upper)
    finally:
        upper.umount()
    below = usage(lower)
    assert below.keys() == tree.keys()
    # The lower tier keeps its first files: the second pass of the upper tier reads them from it.
    assert sum(above[path] >= 2 and below[path] == 1 for path in tree) >= 3
    # A worker of the upper tier may still have a file of the lower one open for a moment.
    until(lambda: lower.run("umount", lower.mountpoint, check=False).returncode == 0)
