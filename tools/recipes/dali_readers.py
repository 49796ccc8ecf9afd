"""NVIDIA DALI's own readers on class folders of images, or TFRecord files, that do not fit the disk.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/dali_readers.py /mnt/train --epochs 10 --device-id 0                    # JPEG, PNG, ...
    python tools/recipes/dali_readers.py /mnt/train --epochs 10 --device-id 0 --format tfrecord  # *.tfrecord

A TFRecord reader needs an index of each file, which this program creates in a moment (it reads 12 bytes of each
record). If there are already indexes alongside the shards, as x.idx, `--group '{stem}'` keeps the two together.

Look for: more files and samples in each epoch until the cache is full, and with images the same number of classes in
each epoch. Without --device-id everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from pathlib import Path

from nvidia.dali import Pipeline, fn, pipeline_def, tfrecord, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

FEATURES = {
    "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
    "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
}


def index(path: Path, folder: Path) -> Path:
    """Write where each record of a TFRecord file begins and how long it is, once, like DALI's tfrecord2idx."""
    written = folder / f"{path.name}.idx"
    if not written.exists():
        lines, begin = [], 0
        with path.open("rb") as file:
            while head := file.read(12):  # the data's length, and that number's checksum
                size = 12 + struct.unpack_from("<Q", head)[0] + 4  # and the data's checksum
                lines.append(f"{begin} {size}\n")
                begin = file.seek(begin + size)
        written.write_text("".join(lines))
    return written


@pipeline_def
def image_files(folder: str, size: int, gpu: bool) -> tuple[DataNode, DataNode]:
    """Class folders, which the reader lists itself: each label is the number of a folder, in the order of names."""
    encoded, label = fn.readers.file(file_root=folder, random_shuffle=True, name="reader")
    return decoded(encoded, size, gpu), label


@pipeline_def
def tfrecords(files: list[str], indexes: list[str], size: int, gpu: bool) -> tuple[DataNode, DataNode]:
    """Examples with an image and a label."""
    example = fn.readers.tfrecord(path=files, index_path=indexes, features=FEATURES, random_shuffle=True, name="reader")
    return decoded(example["image/encoded"], size, gpu), example["image/class/label"]


def decoded(encoded: DataNode, size: int, gpu: bool) -> DataNode:
    """Images of one size."""
    images = fn.decoders.image(encoded, device="mixed" if gpu else "cpu", output_type=types.RGB)
    return fn.resize(images, size=(size, size))


def train(pipeline: Pipeline) -> tuple[int, int]:
    """One epoch; returns its numbers of samples and classes. The pipeline is gone when it returns."""
    batches = DALIGenericIterator(
        pipeline, ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL
    )
    samples, classes = 0, set()
    for (batch,) in batches:  # from one pipeline, as there is one GPU
        samples += len(batch["images"])  # the model would learn here
        classes.update(batch["labels"].flatten().tolist())
    return samples, len(classes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with DALI's file or TFRecord reader on a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="size of the images, in pixels")
    parser.add_argument("--format", choices=["images", "tfrecord"], default="images")
    parser.add_argument("--device-id", type=int, help="the GPU to use (default: the CPU)")
    options = parser.parse_args()
    if not any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} lists no file; growfs status says why")
    common = {
        "size": options.size,
        "gpu": options.device_id is not None,
        "batch_size": options.batch,
        "num_threads": options.threads,
        "device_id": options.device_id,
    }

    with tempfile.TemporaryDirectory() as indexes:
        for epoch in range(1, options.epochs + 1):
            began = time.perf_counter()
            if options.format == "tfrecord":
                shards = sorted(options.folder.glob("*.tfrecord"))  # lists again: the epoch's growth
                made = [str(index(path, Path(indexes))) for path in shards]
                samples, classes = train(tfrecords(list(map(str, shards)), made, seed=epoch, **common))
                files = len(shards)
            else:
                files, classes = train(image_files(str(options.folder), seed=epoch, **common))  # also lists again
                samples = files
            rate = samples / (time.perf_counter() - began)
            print(
                f"epoch {epoch}: {files} files, {samples} samples, {rate:.0f} samples/s, {classes} classes",
                flush=True,
            )


if __name__ == "__main__":
    main()
