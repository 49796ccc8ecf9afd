"""The recipes for WebDataset, Hugging Face, safetensors, DALI and raw volumes, as a user runs them.

Each runs in a process of its own over a real mount, epoch after epoch, until its output is closed, as with
`| head`. Meanwhile the cache grows or rotates. The recipe prints a line on what each epoch read.
"""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver import Process
from tests.frameworks.harness import ENV, FORKS, blocks, images
from tests.harness import Growfs
from tests.needs import need
from tests.servers import S3Server
from tools.benchmarks.recipe_data import tfrecord

RECIPES = Path(__file__).parents[2] / "tools/recipes"
LINE = re.compile(r"epoch (?P<epoch>\d+): (?P<files>\d+) files, (?P<samples>\d+) samples, \d+ samples/s, (?P<rest>.*)")
ENDLESS = 1_000_000  # epochs: the test ends them
NOT_FORKED = {"hf_datasets.py", "dali_readers.py"}
"""Recipes that are not forked: their imports read environment variables that they set themselves."""
EPOCHS_MAX = 20_000  # epochs; many pass during one fetch, and hundreds until a file is fetched again

pytestmark = pytest.mark.timeout(180)


class Epoch:
    """The line of a recipe on an epoch; `number("files new")` is the number before these words."""

    def __init__(self, line: str) -> None:
        parts = LINE.fullmatch(line.rstrip())
        assert parts, line
        self.files, self.samples, self.rest = int(parts["files"]), int(parts["samples"]), parts["rest"]

    def number(self, words: str) -> int:
        found = re.search(rf"(\d+) {words}", self.rest)
        assert found, self.rest
        return int(found[1])


class Recipe:
    """A recipe that runs until the block ends; `epochs` yields each epoch as it is printed."""

    _process: Process | subprocess.Popen[str]

    def __init__(self, name: str, folder: Path, *arguments: object) -> None:
        self._errors = folder.parent / f"{name}.stderr"
        words = RECIPES / name, folder, "--epochs", ENDLESS, *arguments
        with self._errors.open("w") as errors:
            if name in NOT_FORKED:
                self._process = subprocess.Popen(
                    [sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=errors, text=True, cwd="/"
                )
            else:
                self._process = FORKS.start(words, ENV, stdout=subprocess.PIPE, stderr=errors, cwd="/")

    def __enter__(self) -> Recipe:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout
        self._process.stdout.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def epochs(self) -> Iterator[Epoch]:
        assert self._process.stdout
        for line, _ in zip(self._process.stdout, range(EPOCHS_MAX), strict=False):
            yield Epoch(line)
        pytest.fail(f"{EPOCHS_MAX} epochs, or it ended: {self._errors.read_text()}")


def mount(growfs: Growfs, url: object, size: int, *flags: object) -> None:
    """Mount with a cache of `size` bytes; new files are listed from the next epoch on."""
    growfs.mount(url, "--cache-size", size, "--settle", "1h", *flags)


def grow(growfs: Growfs, recipe: Recipe, each: int, steps: list[int]) -> dict[int, Epoch]:
    """Grow the cache in steps, each to that many files of `each` bytes; returns an epoch of each, by its files."""
    seen: dict[int, Epoch] = {}
    epochs = recipe.epochs()
    for before, files in zip([0, *steps], steps, strict=False):
        growfs.run("set", growfs.mountpoint, f"cache-size={files * each}")
        seen[files] = next(epoch for epoch in epochs if before <= epoch.files and epoch.files >= files)
        assert seen[files].files == files
    assert growfs.status()["miss"]["files_total"] == 0
    return seen


def small_png() -> bytes:
    """A picture of 8 x 8 pixels."""
    from PIL import Image

    content = io.BytesIO()
    Image.effect_noise((8, 8), 50).convert("RGB").save(content, "PNG")
    return content.getvalue()


def example(picture: bytes, label: int) -> bytes:
    """A tf.train.Example with an image and its label (tensorflow/core/example/feature.proto), without TensorFlow."""

    def message(number: int, content: bytes) -> bytes:
        length = bytes([len(content) & 0x7F | 0x80, len(content) >> 7])  # a varint of two bytes
        return bytes([number << 3 | 2]) + length + content

    def feature(name: bytes, value: bytes) -> bytes:
        return message(1, message(1, name) + message(2, value))

    bytes_list, int64_list = 1, 3
    image = feature(b"image/encoded", message(bytes_list, message(1, picture)))
    return message(1, image + feature(b"image/class/label", message(int64_list, message(1, bytes([label])))))


def test_webdataset_from_s3(growfs: Growfs, rclone_s3: S3Server) -> None:
    need("webdataset", "torch")
    growfs.env.update(rclone_s3.env)
    picture, samples = small_png(), 7
    for number in range(9):
        shard = io.BytesIO()
        with tarfile.open(fileobj=shard, mode="w") as tar:
            for sample in range(samples):
                for suffix, data in (("png", picture), ("cls", b"3")):
                    entry = tarfile.TarInfo(f"{number:03}{sample:03}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
        rclone_s3.put(f"webdataset/{number:05}.tar", shard.getvalue())
    each = blocks(len(shard.getvalue()))
    mount(growfs, f"s3://{rclone_s3.bucket}/webdataset", 3 * each, "--rotation", "never")
    with Recipe("webdataset_shards.py", growfs.mountpoint, "--workers", 2, "--batch", 4, "--size", 8) as recipe:
        for files, epoch in grow(growfs, recipe, each, [3, 6, 9]).items():
            assert epoch.samples == files * samples  # each once: the workers share the shards
            assert epoch.number("so far") == files


def test_hugging_face_parquet(growfs: Growfs, tmp_path: Path) -> None:
    need("datasets", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    rows = 50
    for number in range(8):
        path = tmp_path / f"remote/part{number % 2}/{number:04}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {"x": [random.random() for _ in range(rows)], "label": list(range(rows))}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    each = max(blocks(path.stat().st_size) for path in (tmp_path / "remote").rglob("*.parquet"))
    mount(growfs, tmp_path / "remote", 3 * each, "--rotation", "never")
    with Recipe("hf_datasets.py", growfs.mountpoint, "--mix", 1) as recipe:
        for files, epoch in grow(growfs, recipe, each, [3, 5, 8]).items():
            assert epoch.samples == files * rows
            assert epoch.number("bytes copied") == 0


def test_hugging_face_imagefolder(growfs: Growfs, tmp_path: Path) -> None:
    need("datasets", "PIL")
    images(tmp_path / "remote", classes=4, each=4)
    each = blocks(1)
    mount(growfs, tmp_path / "remote", 6 * each, "--rotation", "never")
    with Recipe("hf_datasets.py", growfs.mountpoint, "--format", "imagefolder") as recipe:
        for files, epoch in grow(growfs, recipe, each, [6, 16]).items():
            assert epoch.samples == files
            assert epoch.number("classes") == 4
            assert epoch.number("bytes copied") == 0


@pytest.mark.promise(2)
def test_safetensors_that_are_evicted_and_replaced(growfs: Growfs, tmp_path: Path, engine: str) -> None:
    need("safetensors", "torch")
    import numpy
    from safetensors.numpy import save_file

    growfs.env["GROWFS_ENGINE"] = engine
    remote = tmp_path / "remote"
    remote.mkdir()

    def write(path: Path) -> None:
        latents = numpy.random.default_rng().standard_normal((20, 400), dtype="float32")
        save_file({"latents": latents, "labels": numpy.arange(20)}, path)

    for number in range(10):
        write(remote / f"{number:04}.safetensors")
    each = blocks((remote / "0000.safetensors").stat().st_size)
    mount(growfs, remote, 6 * each, "--rotation", "always", "--refresh", "0.5s")
    with Recipe("safetensors_mmap.py", growfs.mountpoint, "--batch", 8) as recipe:
        kept = ""
        replaced = relisted = False
        for epoch in recipe.epochs():
            assert epoch.samples == epoch.files * 20
            assert "kept tensors whole" in epoch.rest
            name = epoch.rest.split("; ")[1].split()[0]
            kept = kept or name
            assert name == kept
            if "no longer listed" in epoch.rest and not replaced:
                growfs.run("evict", growfs.mountpoint, kept)
                write(tmp_path / "new")
                os.replace(tmp_path / "new", remote / kept)
                replaced = True
            elif replaced and " listed" in epoch.rest and "no longer" not in epoch.rest:
                relisted = True  # the new version
            if relisted and epoch.number("so far") == 10:
                break


def test_dali_images(growfs: Growfs, tmp_path: Path) -> None:
    need("nvidia.dali", "torch")
    images(tmp_path / "remote", classes=4, each=4)
    each = blocks(1)
    mount(growfs, tmp_path / "remote", 6 * each, "--rotation", "never")
    with Recipe("dali_readers.py", growfs.mountpoint, "--size", 8, "--batch", 5) as recipe:
        for files, epoch in grow(growfs, recipe, each, [6, 16]).items():
            assert epoch.samples == files
            assert epoch.number("classes") == 4


def test_dali_tfrecord(growfs: Growfs, tmp_path: Path) -> None:
    need("nvidia.dali", "torch")
    (tmp_path / "remote").mkdir()
    picture, samples = small_png(), 6
    for number in range(8):
        records = [example(picture, label=number) for _ in range(samples)]
        (tmp_path / f"remote/{number:04}.tfrecord").write_bytes(tfrecord(records))
    each = blocks((tmp_path / "remote/0000.tfrecord").stat().st_size)
    mount(growfs, tmp_path / "remote", 3 * each, "--rotation", "never")
    with Recipe("dali_readers.py", growfs.mountpoint, "--size", 8, "--batch", 5, "--format", "tfrecord") as recipe:
        for files, epoch in grow(growfs, recipe, each, [3, 8]).items():
            assert epoch.samples == files * samples
            assert epoch.number("classes") == files  # one in each


def test_all_volumes_are_read_although_half_fit(growfs: Growfs, tmp_path: Path) -> None:
    need("numpy")
    (tmp_path / "remote").mkdir()
    generator = random.Random(3)
    size = 8 * 16 * 32 * 2
    for number in range(12):
        (tmp_path / f"remote/{number:04}.raw").write_bytes(generator.randbytes(size))
    mount(growfs, tmp_path / "remote", 6 * blocks(size))
    with Recipe("numpy_volumes.py", growfs.mountpoint, "--plane", 16, 32, "--crop", 4, "--crops", 10) as recipe:
        for epoch in recipe.epochs():
            assert epoch.files <= 6
            assert epoch.samples == 10 * epoch.files
            if epoch.number("so far") == 12:
                break
    assert growfs.status()["miss"]["files_total"] == 0
