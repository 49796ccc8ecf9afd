"""The data readers of common frameworks, unchanged, while the set of local files grows.

Each program runs in a process of its own and imports nothing of growfs. The cache is made larger between two steps, so
the files that are local at each step are known. (--settle is long, so new files are listed by rule (a), a next epoch.)
"""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from tests.archives import tar_of
from tests.frameworks.harness import BLOCK, Program, blocks, images
from tests.harness import Growfs
from tests.needs import need
from tests.servers import S3Server
from tools.benchmarks.recipe_data import tfrecord

pytestmark = pytest.mark.timeout(300)


@pytest.mark.promise(1, 6)
def test_tfrecord_from_s3(growfs: Growfs, rclone_s3: S3Server) -> None:
    need("tensorflow")
    with Program("tfrecord_epochs.py", growfs.mountpoint) as training:
        generator = random.Random(11)
        shards = {}
        for number in range(12):
            records = [generator.randbytes(generator.randrange(600, 700)) for _ in range(30)]
            rclone_s3.put(f"tfrecord/train-{number:05}.tfrecord", tfrecord(records))
            together = b"".join(len(record).to_bytes(8, "big") + record for record in records)
            shards[f"train-{number:05}.tfrecord"] = hashlib.sha256(together).hexdigest(), sum(map(len, records))
        each = blocks(20_000)
        growfs.env.update(rclone_s3.env)
        growfs.mount(
            f"s3://{rclone_s3.bucket}/tfrecord", "--cache-size", 3 * each, "--settle", "1h", "--rotation", "never"
        )
        for files in (3, 12):
            growfs.resize(files, each)
            epoch = training.step()
            assert len(epoch["records"]) == files
            assert epoch["records"] == {name: shards[name][0] for name in epoch["records"]}
            assert epoch["bytes"] == sum(shards[name][1] for name in epoch["records"])
        assert growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(6)
def test_keras_image_dataset_from_directory(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow")
    with Program("keras_subsets.py", growfs.mountpoint) as training:
        pictures = images(tmp_path / "remote", classes=4, each=10)
        growfs.mount(tmp_path / "remote", "--cache-size", 16 * BLOCK, "--settle", "1h", "--rotation", "never")
        for files in (16, 32):
            growfs.resize(files, BLOCK)
            first = training.step()
            growfs.resize(files + 4, BLOCK)  # between the two calls
            second = training.step()
            assert not set(first["paths"]) & set(second["paths"])
            assert len(first["paths"]) + len(second["paths"]) == files
            assert first["classes"] == second["classes"] == sorted(os.listdir(tmp_path / "remote"))
            read = training.step()["images"]
            assert sorted(read) == sorted(pictures[path] for path in first["paths"] + second["paths"])
        assert growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(6, 35)
def test_torchvision_imagefolder_over_webdataset_shards(growfs: Growfs, tmp_path: Path, rclone_s3: S3Server) -> None:
    need("torch", "torchvision")
    growfs.env.update(rclone_s3.env)
    with Program("imagefolder_loader.py", growfs.mountpoint) as training:
        pictures = images(tmp_path / "pictures", classes=12, each=3)
        classes = sorted({name for name, _ in pictures.values()})
        shards: list[dict[str, bytes]] = [{}, {}, {}]
        for number, (path, (name, _)) in enumerate(pictures.items()):
            content = (tmp_path / "pictures" / path).read_bytes()
            shards[number % 3] |= {f"{number:04}.png": content, f"{number:04}.cls": str(classes.index(name)).encode()}
        for number, shard in enumerate(shards):
            rclone_s3.put(f"imagefolder-webdataset/train-{number}.tar", tar_of(shard))
        flags = ("--cache-size", 14 * BLOCK, "--settle", "1h", "--rotation", "never")
        growfs.mount(f"s3://{rclone_s3.bucket}/imagefolder-webdataset", "--members", "webdataset", *flags)
        for files in (14, len(pictures)):
            growfs.resize(files, BLOCK)
            epoch = training.step()
            assert epoch["class_to_idx"] == {f"{number:05}": number for number in range(12)}
            assert len({digest for _, digest in epoch["images"]}) == len(epoch["images"]) == files
        found = sorted([classes[int(label)], image] for label, image in epoch["images"])
        assert found == sorted(pictures.values())
        assert growfs.status()["miss"]["files_total"] == 0


@pytest.mark.promise(10)
def test_libraries_follow_links(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "tensorflow", "webdataset", "datasets", "pyarrow", "h5py", "safetensors")
    remote = tmp_path / "remote"
    with Program("libraries.py", remote) as program:
        expected = program.step(str(remote))
        assert len(expected) >= 13
        assert all(isinstance(each, list) and each for each in expected.values()), expected
        files = sum(path.is_file() for path in remote.rglob("*"))
        growfs.env["GROWFS_ENGINE"] = "links"
        growfs.mount(remote, "--wait-files", files)
        assert program.step(str(growfs.mountpoint)) == expected
