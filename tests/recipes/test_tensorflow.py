"""The recipes for TensorFlow and Keras, run unmodified over a real mount, and caches in memory and in two tiers.

A recipe runs in a process that knows nothing of growfs, while the test makes the cache larger and so decides what is
local at each step. No timing is checked.
"""

from __future__ import annotations

import csv
import io
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.harness import BLOCK, blocks
from tests.harness import Growfs, make_tree, until
from tests.needs import need, use
from tests.recipes.running import ONLY_GROWTH, misses, running
from tests.servers import S3Server
from tools.benchmarks.recipe_data import example, tfrecord

RECORDS = 20

pytestmark = pytest.mark.timeout(180)


def usage(growfs: Growfs) -> dict[str, int]:
    """How often each file was fetched, by path."""
    table = csv.DictReader(io.StringIO((growfs.mountpoint / ".growfs" / "ledger.csv").read_text()))
    return {row["path"]: int(row["fetches"]) for row in table}


def shard(seed: int) -> bytes:
    """A TFRecord file of small images."""
    generator = random.Random(seed)
    return tfrecord([example(generator.randbytes(32 * 32 * 3), generator.randrange(10)) for _ in range(RECORDS)])


@pytest.mark.long
def test_tfrecord_sees_more_shards_in_later_epochs(growfs: Growfs, rclone_s3: S3Server) -> None:
    """While the cache grows, and then while a cache of half of them rotates."""
    need("tensorflow")
    contents = [shard(number) for number in range(12)]
    for number, content in enumerate(contents):
        rclone_s3.put(f"tf-recipe/train-{number:05}.tfrecord", content)
    each = blocks(len(contents[0]))
    growfs.env |= rclone_s3.env
    growfs.mount(f"s3://{rclone_s3.bucket}/tf-recipe", "--cache-size", 3 * each, *ONLY_GROWTH)
    growfs.resize(3, each)
    with running("tf_tfrecord.py", growfs) as recipe:
        for files in (3, 6):
            with recipe.stopped():
                growfs.resize(files, each)
            epoch = recipe.until_files(files)
            assert epoch.samples == files * RECORDS
            assert epoch.about.startswith(f"3 new, {files} so far")
        assert set(usage(growfs).values()) == {1}
        growfs.run("set", growfs.mountpoint, "rotation=auto")
        last = recipe.until(lambda epoch: "12 so far" in epoch.about)
        assert last.files <= 6
        assert last.samples == last.files * RECORDS
        assert misses(growfs) == 0


@pytest.mark.long
def test_input_fn_called_afresh_fetches_nothing_twice(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow")
    for part, shards in (("train", 6), ("val", 2)):
        (tmp_path / "remote" / part).mkdir(parents=True)
        for number in range(shards):
            content = shard(number)
            (tmp_path / "remote" / part / f"{part}-{number:05}.tfrecord").write_bytes(content)
    each = blocks(len(content))
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * each, "--freeze", "val/**", *ONLY_GROWTH)
    growfs.resize(4, each)
    overlaps = ["serial", "prefetch", "parallel"]
    times = "--overlap", *overlaps, "--prepare-s", 0.02, "--step-s", 0.01
    with running("tf_input_fn.py", growfs, *times) as recipe:
        first = recipe.until(lambda _: True)
        assert (first.files, first.samples) == (2, 2 * RECORDS)
        with recipe.stopped():
            growfs.resize(8, each)
        for overlap in overlaps:
            epoch = recipe.until(lambda epoch, overlap=overlap: epoch.files == 6 and overlap in epoch.about)  # type: ignore[misc]
            assert epoch.samples == 6 * RECORDS
            assert re.match(rf"[\d.]+ s a step \({overlap}\), accuracy [\d.]+ on 2 files held out", epoch.about)
        assert list(usage(growfs).values()) == [1] * 8
        assert misses(growfs) == 0


@pytest.mark.long
def test_keras_over_a_dataframe_of_what_is_listed(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow", "pandas")
    numpy = use("numpy")
    remote = tmp_path / "remote"
    rows = [(f"object-{number}", number % 3, f"{number % 4}/{number:03}.npy") for number in range(80)]
    for _, label, path in rows:
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        numpy.save(remote / path, numpy.full((4, 4), label, "float32"))
    lines = ["object_id,label,path", *(",".join(map(str, row)) for row in rows)]
    (remote / "labels.csv").write_text("\n".join(lines) + "\n")
    growfs.mount(remote, "--cache-size", 41 * BLOCK, "--freeze", "labels.csv", *ONLY_GROWTH)
    with running("keras_dataframe.py", growfs) as recipe:
        for objects in (40, 80):
            with recipe.stopped():
                growfs.resize(objects + 1, BLOCK)
            epoch = recipe.until_files(objects)
            assert epoch.samples == objects
            assert epoch.about.startswith(f"40 new, {objects} of 80 objects so far")
        assert list(usage(growfs).values()) == [1] * 81
        assert misses(growfs) == 0
        requests = growfs.status()["requests"]
        assert requests.get("IOCTL", 0) < requests["OPEN"] / 4  # only pandas causes them


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
    lower.until_cached(6)
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
