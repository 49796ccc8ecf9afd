"""Reads folders with each library that is installed, and prints what each has read: libraries.py FOLDER

Makes the data in FOLDER, and then reads the folder of each line of standard input. Libraries that are not installed are
left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HOME", tempfile.mkdtemp())
FILES = 3
SHAPE = 4, 8, 8


def volume(number: int) -> Any:
    """The content of a file."""
    return np.random.default_rng(number).integers(0, 255, SHAPE, np.uint8)


def png(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(volume(number)[0]).convert("RGB").save(file, "PNG")
    return file.getvalue()


def make(folder: Path) -> None:
    """Create the files."""
    for name in ("images/cat", "images/dog", "npy", "raw", "tar", "hdf5", "safetensors", "parquet", "tfrecord"):
        (folder / name).mkdir(parents=True)
    for number in range(FILES):
        for kind in ("cat", "dog"):
            (folder / f"images/{kind}/{number}.png").write_bytes(png(number))
        np.save(folder / f"npy/{number}.npy", volume(number))
        volume(number).tofile(folder / f"raw/{number}.raw")
        with tarfile.open(folder / f"tar/{number}.tar", "w") as tar:
            for sample in range(2):
                content = png(number + sample)
                entry = tarfile.TarInfo(f"{sample}.png")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        with suppress(ImportError):
            import h5py

            with h5py.File(folder / f"hdf5/{number}.h5", "w") as file:
                file["volume"] = volume(number)
        with suppress(ImportError):
            from safetensors.numpy import save_file

            save_file({"volume": volume(number)}, folder / f"safetensors/{number}.safetensors")
        with suppress(ImportError):
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table({"x": volume(number).ravel()}), folder / f"parquet/{number}.parquet")
        with suppress(ImportError):
            import tensorflow as tf

            with tf.io.TFRecordWriter(str(folder / f"tfrecord/{number}.tfrecord")) as writer:
                writer.write(volume(number).tobytes())
        with suppress(ImportError):
            import zarr

            zarr.save(str(folder / f"zarr/{number}.zarr"), volume(number))
        with suppress(ImportError):
            import nibabel

            (folder / "nifti").mkdir(exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(volume(number), np.eye(4)), folder / f"nifti/{number}.nii.gz")
    with suppress(ImportError):
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"x": "bytes"}) as mds:
            for number in range(FILES):
                mds.write({"x": volume(number).tobytes()})


def numbers(values: Any) -> str:
    """A short text for an array."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def every(folder: Path, pattern: str, read: Callable[[str], Any]) -> list[str]:
    return [numbers(read(str(path))) for path in sorted(folder.glob(pattern))]


def image_folder(folder: Path) -> list[str]:
    from torchvision.datasets import ImageFolder

    return [numbers(image) + str(label) for image, label in ImageFolder(str(folder / "images"))]


def dataset_folder(folder: Path) -> list[str]:
    from torchvision.datasets import DatasetFolder

    found = DatasetFolder(str(folder / "images"), lambda path: Path(path).read_bytes(), ("png",))
    return [hashlib.sha256(content).hexdigest() + str(label) for content, label in found]


def keras_images(folder: Path) -> list[str]:
    import keras

    found = keras.utils.image_dataset_from_directory(
        str(folder / "images"), image_size=(8, 8), shuffle=False, batch_size=1, verbose=False
    )
    return [numbers(image) + str(int(label[0])) for image, label in found]


def tfrecord(folder: Path) -> list[str]:
    import tensorflow as tf

    files = sorted(tf.io.gfile.glob(str(folder / "tfrecord/*.tfrecord")))
    return [record.hex()[:32] for record in tf.data.TFRecordDataset(files).as_numpy_iterator()]


def tf_list_files(folder: Path) -> list[str]:
    import tensorflow as tf

    found = tf.data.Dataset.list_files(str(folder / "raw/*.raw"), shuffle=False).map(tf.io.read_file)
    return [content.hex()[:32] for content in found.as_numpy_iterator()]


def webdataset(folder: Path) -> list[str]:
    import webdataset as wds

    shards = sorted(map(str, folder.glob("tar/*.tar")))
    found = wds.WebDataset(shards, shardshuffle=False, empty_check=False).decode("rgb8")
    return [numbers(sample["png"]) for sample in found]


def hf_images(folder: Path) -> list[str]:
    import datasets

    found = datasets.load_dataset("imagefolder", data_dir=str(folder / "images"), split="train", streaming=True)
    return [numbers(sample["image"]) + str(sample["label"]) for sample in found]


def hf_parquet(folder: Path) -> list[str]:
    import datasets

    found = datasets.load_dataset("parquet", data_dir=str(folder / "parquet"), split="train", streaming=True)
    return [numbers([sample["x"] for sample in found])]


def pyarrow_dataset(folder: Path) -> list[str]:
    from pyarrow import dataset

    return [numbers(dataset.dataset(str(folder / "parquet")).to_table()["x"].to_numpy())]


def pandas_parquet(folder: Path) -> list[str]:
    import pandas as pd

    return every(folder, "parquet/*.parquet", lambda path: pd.read_parquet(path)["x"].to_numpy())


def polars_scan(folder: Path) -> list[str]:
    import polars

    return [numbers(polars.scan_parquet(str(folder / "parquet/*.parquet")).collect()["x"].to_numpy())]


def duckdb_glob(folder: Path) -> list[str]:
    import duckdb

    found = duckdb.sql(f"SELECT x FROM '{folder}/parquet/*.parquet' ORDER BY x").fetchnumpy()
    return [numbers(found["x"])]


def hdf5(folder: Path) -> list[str]:
    import h5py

    return every(folder, "hdf5/*.h5", lambda path: h5py.File(path)["volume"][:])


def safetensors(folder: Path) -> list[str]:
    from safetensors.numpy import load_file

    return every(folder, "safetensors/*", lambda path: load_file(path)["volume"])


def memory_map(folder: Path) -> list[str]:
    mapped = every(folder, "npy/*.npy", lambda path: np.load(path, mmap_mode="r"))
    return mapped + every(folder, "raw/*.raw", lambda path: np.memmap(path, np.uint8))


def zarr_groups(folder: Path) -> list[str]:
    import zarr

    return every(folder, "zarr/*.zarr", zarr.load)


def monai_images(folder: Path) -> list[str]:
    from monai.data import Dataset
    from monai.transforms import LoadImage

    return [numbers(item) for item in Dataset(sorted(map(str, folder.glob("nifti/*"))), LoadImage(image_only=True))]


def mosaicml_streaming(folder: Path) -> list[str]:
    from streaming import StreamingDataset

    return [sample["x"].hex()[:32] for sample in StreamingDataset(local=str(folder / "mds"), batch_size=1)]


READERS = {
    "torchvision ImageFolder": image_folder,
    "torchvision DatasetFolder": dataset_folder,
    "Keras image_dataset_from_directory": keras_images,
    "tf.data TFRecordDataset, gfile.glob": tfrecord,
    "tf.data list_files": tf_list_files,
    "WebDataset": webdataset,
    "Hugging Face imagefolder": hf_images,
    "Hugging Face parquet": hf_parquet,
    "pyarrow dataset": pyarrow_dataset,
    "pandas": pandas_parquet,
    "polars scan_parquet": polars_scan,
    "duckdb": duckdb_glob,
    "h5py": hdf5,
    "safetensors": safetensors,
    "NumPy memmap": memory_map,
    "zarr": zarr_groups,
    "MONAI": monai_images,
    "MosaicML Streaming": mosaicml_streaming,
}


def main() -> None:
    make(Path(sys.argv[1]))
    for line in sys.stdin:
        found: dict[str, list[str] | str] = {}
        for name, read in READERS.items():
            try:
                found[name] = read(Path(line.rstrip("\n")))
            except ImportError:
                pass
            except Exception as error:  # noqa: BLE001 - what the library says is the result
                found[name] = f"{type(error).__name__}: {error}"
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
