"""The recipes for WebDataset, Hugging Face, safetensors, DALI and raw volumes, as a user runs them.

Meanwhile the cache grows or rotates. The recipe prints a line on what each epoch read.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from tests.frameworks.harness import BLOCK, blocks, images
from tests.harness import Growfs
from tests.needs import need
from tests.recipes.running import ONLY_GROWTH, Epoch, after_growth, misses, running
from tests.servers import S3Server
from tools.benchmarks.recipe_data import tfrecord

pytestmark = pytest.mark.timeout(180)


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
    for number in range(6):
        shard = io.BytesIO()
        with tarfile.open(fileobj=shard, mode="w") as tar:
            for sample in range(samples):
                for suffix, data in (("png", picture), ("cls", b"3")):
                    entry = tarfile.TarInfo(f"{number:03}{sample:03}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
        rclone_s3.put(f"webdataset/{number:05}.tar", shard.getvalue())
    each = blocks(len(shard.getvalue()))
    growfs.mount(f"s3://{rclone_s3.bucket}/webdataset", "--cache-size", 3 * each, *ONLY_GROWTH)
    with running("webdataset_shards.py", growfs, "--workers", 2, "--batch", 4, "--size", 8) as recipe:
        for files, epoch in after_growth(growfs, recipe, [3, 6], each).items():
            assert epoch.samples == files * samples  # each once: the workers share the shards
            assert epoch.count("so far") == files


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
    growfs.mount(tmp_path / "remote", "--cache-size", 3 * each, *ONLY_GROWTH)
    with running("hf_datasets.py", growfs, "--mix", 1) as recipe:
        for files, epoch in after_growth(growfs, recipe, [3, 8], each).items():
            assert epoch.samples == files * rows
            assert epoch.count("bytes copied") == 0


@pytest.mark.long
def test_hugging_face_imagefolder(growfs: Growfs, tmp_path: Path) -> None:
    need("datasets", "PIL")
    images(tmp_path / "remote", classes=4, each=4)
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * BLOCK, *ONLY_GROWTH)
    with running("hf_datasets.py", growfs, "--format", "imagefolder") as recipe:
        for files, epoch in after_growth(growfs, recipe, [6, 16], BLOCK).items():
            assert epoch.samples == files
            assert epoch.count("classes") == 4
            assert epoch.count("bytes copied") == 0


@pytest.mark.promise(2)
def test_safetensors_that_are_evicted_and_replaced(growfs: Growfs, tmp_path: Path) -> None:
    need("safetensors", "torch")
    import numpy
    from safetensors.numpy import save_file

    remote = tmp_path / "remote"
    remote.mkdir()

    def write(path: Path) -> None:
        latents = numpy.random.default_rng().standard_normal((20, 400), dtype="float32")
        save_file({"latents": latents, "labels": numpy.arange(20)}, path)

    for number in range(10):
        write(remote / f"{number:04}.safetensors")
    each = blocks((remote / "0000.safetensors").stat().st_size)
    growfs.mount(remote, "--cache-size", 6 * each, "--settle", "1h", "--rotation", "always", "--refresh", "0.5s")
    with running("safetensors_mmap.py", growfs, "--batch", 8) as recipe:
        kept = ""
        replaced = relisted = False

        def sees_the_new_version_and_everything(epoch: Epoch) -> bool:
            nonlocal kept, replaced, relisted
            assert epoch.samples == epoch.files * 20
            assert "kept tensors whole" in epoch.about
            name = epoch.about.split("; ")[1].split()[0]
            kept = kept or name
            assert name == kept
            if "no longer listed" in epoch.about and not replaced:
                growfs.run("evict", growfs.mountpoint, kept)
                write(tmp_path / "new")
                os.replace(tmp_path / "new", remote / kept)
                replaced = True
            elif replaced and " listed" in epoch.about and "no longer" not in epoch.about:
                relisted = True  # the new version
            return relisted and epoch.count("so far") == 10

        recipe.until(sees_the_new_version_and_everything)


def test_dali_images(growfs: Growfs, tmp_path: Path) -> None:
    need("nvidia.dali", "torch")
    images(tmp_path / "remote", classes=4, each=4)
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * BLOCK, *ONLY_GROWTH)
    with running("dali_readers.py", growfs, "--size", 8, "--batch", 5) as recipe:
        for files, epoch in after_growth(growfs, recipe, [6, 16], BLOCK).items():
            assert epoch.samples == files
            assert epoch.count("classes") == 4


def test_dali_tfrecord(growfs: Growfs, tmp_path: Path) -> None:
    need("nvidia.dali", "torch")
    (tmp_path / "remote").mkdir()
    picture, samples = small_png(), 6
    for number in range(8):
        records = [example(picture, label=number) for _ in range(samples)]
        (tmp_path / f"remote/{number:04}.tfrecord").write_bytes(tfrecord(records))
    each = blocks((tmp_path / "remote/0000.tfrecord").stat().st_size)
    growfs.mount(tmp_path / "remote", "--cache-size", 3 * each, *ONLY_GROWTH)
    with running("dali_readers.py", growfs, "--size", 8, "--batch", 5, "--format", "tfrecord") as recipe:
        for files, epoch in after_growth(growfs, recipe, [3, 8], each).items():
            assert epoch.samples == files * samples
            assert epoch.count("classes") == files  # one in each


def test_all_volumes_are_read_although_half_fit(growfs: Growfs, tmp_path: Path) -> None:
    need("numpy")
    (tmp_path / "remote").mkdir()
    generator = random.Random(3)
    size = 8 * 16 * 32 * 2
    for number in range(12):
        (tmp_path / f"remote/{number:04}.raw").write_bytes(generator.randbytes(size))
    growfs.mount(tmp_path / "remote", "--cache-size", 6 * blocks(size), "--settle", "1h")
    with running("numpy_volumes.py", growfs, "--plane", 16, 32, "--crop", 4, "--crops", 10) as recipe:
        recipe.until(lambda epoch: epoch.count("so far") == 12)
        assert all(epoch.files <= 6 and epoch.samples == 10 * epoch.files for epoch in recipe.epochs)
        assert misses(growfs) == 0
