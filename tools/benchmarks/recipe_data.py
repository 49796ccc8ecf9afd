"""Writes datasets for training: full-sized for the benchmarks, tiny for the recipes' tests.

Each function writes to an empty or new folder, always the same data.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from awscrt.checksums import crc32c
from PIL import Image

from tools.benchmarks.measure import write_file

CIFAR_BYTES = 1 + 3 * 32 * 32


def images(folder: Path, classes: int, each: int, width: int = 500, height: int = 375) -> None:
    """JPEGs in class folders. At the default size, ImageNet's most common, they have 110 kB, like its average image.

    With 8 x 8 pixels, a file takes one block.
    """
    generator = random.Random(5)
    for number in range(classes * each):
        path = folder / f"class{number % classes:02}" / f"{number:05}.jpg"
        write_file(path, picture(generator, width, height))


def picture(generator: random.Random, width: int, height: int) -> bytes:
    """A JPEG of noise with a grain of three pixels."""
    coarse = max(width // 3, 1), max(height // 3, 1)
    noise = Image.frombytes("RGB", coarse, generator.randbytes(coarse[0] * coarse[1] * 3))
    content = io.BytesIO()
    noise.resize((width, height), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    return content.getvalue()


def train_and_val(folder: Path, classes: int, train: int, val: int, width: int = 500, height: int = 375) -> None:
    """JPEGs in class folders below train/ and val/. train, val: images per class."""
    for name, each in (("train", train), ("val", val)):
        images(folder / name, classes, each, width, height)


def detection(folder: Path, train: int, val: int, width: int = 640, height: int = 480) -> None:
    """JPEGs below images/, each with the label of a box below labels/, in Ultralytics YOLO's format; two classes."""
    generator = random.Random(8)
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            image, label = (folder / kind / split / f"{split}{number:05}" for kind in ("images", "labels"))
            write_file(image.with_suffix(".jpg"), picture(generator, width, height))
            write_file(label.with_suffix(".txt"), b"%d 0.5 0.5 0.4 0.4\n" % (number % 2))


def coco(folder: Path, split: str, count: int, width: int = 640, height: int = 480) -> None:
    """JPEGs below a folder `split`, and a COCO file with two boxes for each."""
    generator = random.Random(9)
    names = [f"{number:012}.jpg" for number in range(count)]
    for name in names:
        write_file(folder / split / name, picture(generator, width, height))
    boxes = [
        {"id": number, "image_id": number // 2, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0}
        for number in range(2 * count)
    ]
    images = [{"id": id, "file_name": name, "width": width, "height": height} for id, name in enumerate(names)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    write_file(folder / f"annotations/instances_{split}.json", json.dumps(content).encode())


def cifar(image: bytes, label: int) -> bytes:
    return bytes([label]) + image


def shards(folder: Path, count: int, records: int, record: Callable[[bytes, int], bytes] = cifar) -> None:
    """TFRecord files of images of CIFAR-10's size. record: encodes pixels and a label."""

    def draw(generator: random.Random) -> bytes:
        label = generator.randrange(10)
        return record(generator.randbytes(CIFAR_BYTES - 1), label)

    write_shards(folder, count, records, draw)


def random_records(folder: Path, count: int, records: int, size: int) -> None:
    """TFRecord files with random records of `size` bytes."""
    write_shards(folder, count, records, lambda generator: generator.randbytes(size))


def write_shards(folder: Path, count: int, records: int, draw: Callable[[random.Random], bytes]) -> None:
    """TFRecord files. draw: makes a record."""
    generator = random.Random(6)
    for number in range(count):
        write_file(folder / f"train-{number:05}.tfrecord", tfrecord([draw(generator) for _ in range(records)]))


def examples(folder: Path, count: int, records: int) -> None:
    """TFRecord files of tf.train.Example with the features "image" and "label"."""
    shards(folder, count, records, example)


def train_and_val_examples(folder: Path, train: int, val: int, records: int) -> None:
    """Such files below train/ and val/. train, val: numbers of files."""
    for name, count in (("train", train), ("val", val)):
        examples(folder / name, count, records)


def objects(folder: Path, count: int, side: int) -> None:
    """Images as .npy files of side x side x 3 floats, a hundred per folder, and a table of their labels.

    The folder has the index file of a mount, so the recipe can also read the plain folder.
    """
    import pandas as pd

    generator = np.random.default_rng(12)
    table = pd.DataFrame({"object_id": range(count)})
    table["label"] = table["object_id"] % 10
    table["path"] = [f"{number // 100:03}/{number:05}.npy" for number in range(count)]
    for name in table["path"]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, generator.random((side, side, 3), np.float32))
    table.to_csv(folder / "labels.csv", index=False)
    (folder / ".growfs").mkdir()
    table[["path"]].to_csv(folder / ".growfs" / "index.csv", index=False)


def tars(folder: Path, count: int, each: int, width: int = 500, height: int = 375) -> None:
    """WebDataset shards of JPEGs with their classes."""
    generator = random.Random(8)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with tarfile.open(folder / f"train-{number:05}.tar", "w") as tar:
            for sample in range(each):
                pair = {"jpg": picture(generator, width, height), "cls": str(sample % 10).encode()}
                for suffix, content in pair.items():
                    member = tarfile.TarInfo(f"{number:05}{sample:05}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def tensors(folder: Path, count: int, each: int) -> None:
    """safetensors files of latents: 4 x 32 x 32 float16."""
    from safetensors.numpy import save_file

    generator = np.random.default_rng(9)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        latents = generator.random((each, 4, 32, 32), np.float32).astype(np.float16)
        save_file({"latents": latents}, folder / f"{number:05}.safetensors")


def raws(folder: Path, count: int, planes: int) -> None:
    """Raw volumes: planes of 512 x 512 16-bit voxels."""
    generator = np.random.default_rng(10)
    for number in range(count):
        write_file(folder / f"{number:05}.raw", generator.bytes(planes * 512 * 512 * 2))


def tables(folder: Path, count: int, rows: int) -> None:
    """Parquet files with eight number columns and a text column."""
    import pandas as pd

    generator = np.random.default_rng(11)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        columns: dict[str, object] = {f"x{column}": generator.random(rows) for column in range(8)}
        columns["text"] = [f"row {row} of table {number}" for row in range(rows)]
        pd.DataFrame(columns).to_parquet(folder / f"{number:05}.parquet")


def volumes(folder: Path, count: int, side: int) -> None:
    """Cubes of bytes as .npy files, eight per folder."""
    generator = np.random.default_rng(7)
    for number in range(count):
        path = folder / f"patient{number // 8:03}" / f"{number:05}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, generator.integers(0, 256, (side, side, side), np.uint8))


def example(image: bytes, label: int) -> bytes:
    """A tf.train.Example with two features (tensorflow/core/example/feature.proto), without TensorFlow."""
    features = {"image": _field(1, _field(1, image)), "label": _field(3, _field(1, bytes([label])))}
    entries = (_field(1, _field(1, name.encode()) + _field(2, feature)) for name, feature in features.items())
    return _field(1, b"".join(entries))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protocol buffer field: key, length, content."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def tfrecord(records: list[bytes]) -> bytes:
    """A TFRecord file: length, its masked CRC-32C, data, its masked CRC-32C (TensorFlow's record_writer.h)."""
    parts = []
    for record in records:
        length = len(record).to_bytes(8, "little")
        parts += [length, _masked(length), record, _masked(record)]
    return b"".join(parts)


def _masked(data: bytes) -> bytes:
    crc = int(crc32c(data))
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
