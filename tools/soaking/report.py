"""A reader: trains on a folder, epoch after epoch, and reports each as one line of JSON.

Arguments: the framework, tensorflow or torch; the folder.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.soaking.content import Part, WrongBytes, checked, versions

Read = tuple[dict[str, int], int]
"""The version of each file that was read and checked completely, and the number of bytes."""
Sample = tuple[Part, int]
ERRNO_TEXTS = {os.strerror(number): number for number in range(1, 134)}


@dataclass(frozen=True, slots=True)
class Epoch:
    """began, ended: on the clock of time.monotonic. versions: of each file that was read and checked completely.

    error: the framework's error, or an empty text. code: its errno, or 0. wrong: whether bytes were wrong.
    """

    began: float
    ended: float
    bytes: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    error: str = ""
    code: int = 0
    wrong: bool = False


def tensorflow(folder: str) -> Callable[[], Read]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def read() -> Read:
        files = tf.io.gfile.glob(f"{folder}/records/*.tfrecord")
        dataset = tf.data.TFRecordDataset(files, num_parallel_reads=4).shuffle(64).prefetch(4)
        records = list(dataset.as_numpy_iterator())
        names = (os.path.relpath(file, folder) for file in files)
        return versions(names, map(checked, records)), sum(map(len, records))

    return read


def torch(folder: str) -> Callable[[], Read]:
    from torch.utils.data import DataLoader
    from torchvision.datasets import DatasetFolder

    def read() -> Read:
        dataset = DatasetFolder(f"{folder}/classes", load, extensions=(".bin",))
        loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=1, collate_fn=together)
        samples = [sample for batch in loader for sample in batch]
        names = (os.path.relpath(file, folder) for file, _ in dataset.samples)
        return versions(names, (part for part, _ in samples)), sum(size for _, size in samples)

    return read


def load(path: str) -> Sample:
    data = Path(path).read_bytes()
    return checked(data), len(data)


def together(batch: list[tuple[Sample, int]]) -> list[Sample]:
    return [sample for sample, _ in batch]


def run_epochs(read: Callable[[], Read]) -> None:
    """Run epochs forever, and report each."""
    while True:
        began = time.monotonic()
        try:
            found, read_bytes = read()
            if not found:
                raise FileNotFoundError(2, "No such file or directory: nothing is listed")
            epoch = Epoch(began, time.monotonic(), read_bytes, found)
        except Exception as error:  # noqa: BLE001 - whatever a framework raises
            text = " ".join(str(error).split())
            wrong = isinstance(error, WrongBytes) or "WrongBytes" in text or type(error).__name__ == "DataLossError"
            epoch = Epoch(
                began, time.monotonic(), error=f"{type(error).__name__}: {text}", code=errno_in(error), wrong=wrong
            )
        sys.stdout.write(json.dumps(asdict(epoch)) + "\n")
        sys.stdout.flush()
        time.sleep(0.2)  # like a training that saves and validates


def errno_in(error: Exception) -> int:
    """The errno of an error: its own, or the one whose text is in its message."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, FileNotFoundError):  # torchvision's, when it finds no file in the class folders
        return errno.ENOENT
    return next((number for text, number in ERRNO_TEXTS.items() if text in str(error)), 0)


if __name__ == "__main__":
    run_epochs({"tensorflow": tensorflow, "torch": torch}[sys.argv[1]](sys.argv[2]))
