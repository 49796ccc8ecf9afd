"""Small trees with the layouts of public datasets: which files belong together in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Sample = Callable[[int], set[str]]
"""The files of the sample with a number."""


def _cityscapes(number: int) -> set[str]:
    image = f"train/{('aachen', 'bad-honnef')[number % 2]}/aachen_{number:06}_000019"
    labels = ("color.png", "instanceIds.png", "labelIds.png", "polygons.json")
    return {f"leftImg8bit/{image}_leftImg8bit.png", *(f"gtFine/{image}_gtFine_{label}" for label in labels)}


def _nnunet(number: int) -> set[str]:
    case = f"la_{number:04}"  # ends like a modality
    return {f"imagesTr/{case}_0000.nii.gz", f"imagesTr/{case}_0001.nii.gz", f"labelsTr/{case}.nii.gz"}


LAYOUTS: dict[str, Sample] = {
    "cityscapes": _cityscapes,
    "carvana": lambda n: {f"train/{n:04}_01.jpg", f"train_masks/{n:04}_01_mask.gif"},
    "nnunet": _nnunet,
    "shar": lambda n: {f"cuts.{n:06}.jsonl.gz", f"recording.{n:06}.tar", f"features.{n:06}.tar"},
    "nemo": lambda n: {f"audio_{n}.tar", f"sharded_manifests/manifest_{n}.json"},
    "yolo": lambda n: {f"images/train/{n:012}.jpg", f"labels/train/{n:012}.txt"},
    "mirax": lambda n: {f"CMU-{n}.mrxs", f"CMU-{n}/Slidedat.ini", f"CMU-{n}/Index.dat", f"CMU-{n}/Data0000.dat"},
    "zarr": lambda n: {f"a/{n}.zarr/{name}" for name in ("zarr.json", "0/zarr.json", "0/c/0/0", "0/c/0/1")},
    "{top}": lambda n: {f"cell{n}/{name}" for name in ("zarr.json", "0/zarr.json", "0/c/0/0", "0/c/0/1")},
    "{parent}": lambda n: {f"patient{n // 2}/series{n}/{slice}-{n}.dcm" for slice in range(3)},
    "{stem}": lambda n: {f"class{n % 2}/{n:04}.jpg", f"class{n % 2}/{n:04}.json"},
}
"""By what --group calls them."""
UNRELATED: dict[str, Sample] = {
    "class folders": lambda n: {f"train/n{n % 20:08}/n{n % 20:08}_{n}.JPEG"},
    "class folders with equal names": lambda n: {f"train/{n % 20}/{n // 20:04}.png"},
    "shards": lambda n: {f"train-{n:05}-of-01024.tfrecord"},
    "tars": lambda n: {f"imagenet-train-{n:06}.tar"},
    "tars of img2dataset": lambda n: {f"{n:05}.tar", f"{n:05}.parquet", f"{n:05}_stats.json"},
    "MDS": lambda n: {f"shard.{n:05}.mds.zstd", "index.json"},
    "parquet": lambda n: {f"data/train-{n:05}-of-00100.parquet", "README.md"},
    "COCO": lambda n: {f"train2017/{n:012}.jpg", f"val2017/{n:012}.jpg", "annotations/instances_train2017.json"},
    "DICOM in classes": lambda n: {f"{('benign', 'malignant')[n % 2]}/{n}.dcm"},
    "DICOM in one folder": lambda n: {f"stage_1_train/ID_{n:09}.dcm"},
    "text": lambda n: {f"enron/{n:04}.txt"},
}
"""Each file is a sample."""


def make_samples(folder: Path, sample: Sample, count: int, size: int) -> list[set[str]]:
    """Make the files of so many samples; returns these."""
    samples = [sample(number) for number in range(count)]
    for path in set().union(*samples):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * size)
    return samples
