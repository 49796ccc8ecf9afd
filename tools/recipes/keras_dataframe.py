"""Train with Keras from a pandas table of (object id, label, path) that is read again and shuffled after each epoch.

    growfs mount s3://bucket/objects /mnt/objects --cache-size 500GB --freeze labels.csv
    python tools/recipes/keras_dataframe.py /mnt/objects --epochs 20

labels.csv (object_id, label, path) covers all objects, and is frozen, so it is always cached. .growfs/index.csv covers
the listed files; opening it is a listing. Look for "new" and "so far": objects that no epoch had before, and all
objects that the model has seen.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pandas as pd

BATCH = 32
HEADER_BYTES = 4096
"""The first read of each file. Given a buffer size, open() does not ask whether the file is a terminal (nor does Python
3.14), which for a mount is a second round trip."""


class Objects(keras.utils.PyDataset):
    """Batches of the objects whose files are listed. table: the objects of this epoch, in the order of training."""

    def __init__(self, folder: Path, labels: pd.DataFrame, **threads: Any) -> None:
        super().__init__(**threads)
        self._folder = folder
        self._labels = labels
        self._began = True
        self.on_epoch_end()

    def __len__(self) -> int:
        return math.ceil(len(self.table) / BATCH)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        rows = self.table.iloc[number * BATCH : (number + 1) * BATCH]
        return np.stack([self._array(path) for path in rows["path"]]), rows["label"].to_numpy()

    def _array(self, path: str) -> Any:
        with open(self._folder / path, "rb", buffering=HEADER_BYTES) as file:
            return np.load(file)

    def on_epoch_begin(self) -> None:
        self._began = True

    def on_epoch_end(self) -> None:
        """Read the objects that are listed now, and shuffle them."""
        if self._began:
            listed = pd.read_csv(self._folder / ".growfs" / "index.csv", usecols=["path"])
            self.table = self._labels.merge(listed, on="path").sample(frac=1)
        self._began = False


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the objects of FOLDER/labels.csv that are listed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=4, help="threads that read files ahead")
    options = parser.parse_args()

    if not any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} lists no file; growfs status says why")
    labels = pd.read_csv(options.folder / "labels.csv")
    objects = Objects(options.folder, labels, workers=options.threads, max_queue_size=8)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(int(labels["label"].max()) + 1)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    ever: set[Any] = set()
    for epoch in range(options.epochs):
        ids, done = set(objects.table["object_id"]), int(model.optimizer.iterations)
        began = time.perf_counter()
        history = model.fit(objects, initial_epoch=epoch, epochs=epoch + 1, verbose=0).history
        seconds = time.perf_counter() - began
        samples = min(len(ids), BATCH * (int(model.optimizer.iterations) - done))
        new = len(ids - ever)
        ever |= ids
        print(
            f"epoch {epoch + 1}: {len(ids)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" {new} new, {len(ever)} of {len(labels)} objects so far, loss {history['loss'][-1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
