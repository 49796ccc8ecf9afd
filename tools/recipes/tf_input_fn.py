"""Train with an `input_fn` that is called again for each training and each evaluation, and time the overlaps.

    growfs mount s3://bucket/data /mnt/data --cache-size 500GB --freeze 'val/**'
    python tools/recipes/tf_input_fn.py /mnt/data --epochs 20

For code that is structured like tf.estimator, which was removed in TensorFlow 2.16: `input_fn` is a function that
lists, and returns a dataset. If preparing a batch takes longer than the step, it matters how the two overlap. To see
this, look for "s a step" (from the second step on) with:

    python tools/recipes/tf_input_fn.py /mnt/data --epochs 3 --overlap serial prefetch parallel --prepare-s 2 --step-s 1
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

BATCH = 64
SIDE, CLASSES = 32, 10
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


@dataclass(frozen=True)
class Preparation:
    """How a batch is prepared. seconds: time in addition to parsing. at_a_time: batches, with overlap parallel."""

    overlap: str
    seconds: float
    at_a_time: int

    def __call__(self, records: Any) -> Any:
        """(images, labels) of a batch of records."""
        example = tf.io.parse_example(records, FEATURES)
        pixels = tf.io.decode_raw(example["image"], tf.uint8)
        images = tf.cast(tf.reshape(pixels, [-1, SIDE, SIDE, 3]), tf.float32) / 255
        if self.seconds:
            # Stands for work that releases the GIL, like all of TensorFlow's and most of numpy's.
            images = tf.numpy_function(self._wait, [images], tf.float32)
            images.set_shape([None, SIDE, SIDE, 3])
        return images, example["label"]

    def _wait(self, images: Any) -> Any:
        time.sleep(self.seconds)
        return images


def list_files(folder: str) -> list[str]:
    """The shards that are currently listed."""
    return list(tf.io.gfile.glob(f"{folder}/*.tfrecord"))


def input_fn(files: list[str], prepare: Preparation) -> Any:
    """The batches of one training or evaluation."""
    records = tf.data.TFRecordDataset(files, num_parallel_reads=8).batch(BATCH)
    if prepare.overlap == "parallel":
        return records.map(prepare, num_parallel_calls=prepare.at_a_time).prefetch(1)
    if prepare.overlap == "prefetch":
        return records.map(prepare).prefetch(1)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return records.map(prepare).with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on FOLDER/train/*.tfrecord, evaluate on FOLDER/val.")
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--overlap", nargs="+", choices=["serial", "prefetch", "parallel"], default=["parallel"])
    parser.add_argument("--prepare-s", type=float, default=0.0, help="seconds to prepare a batch")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds to add to each step")
    options = parser.parse_args()

    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(CLASSES)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    at_a_time = 2 if not options.step_s else math.ceil(options.prepare_s / options.step_s) + 1

    for epoch in range(1, options.epochs + 1):  # overlaps take turns
        overlap = options.overlap[(epoch - 1) % len(options.overlap)]
        began, samples, steps = time.perf_counter(), 0, []
        files = list_files(f"{options.folder}/train")
        if not files:
            raise SystemExit(f"{options.folder} lists no train/*.tfrecord; growfs status says why")
        for images, labels in input_fn(files, Preparation(overlap, options.prepare_s, at_a_time)):
            model.train_on_batch(images, labels)
            time.sleep(options.step_s)
            samples += len(labels)
            steps.append(time.perf_counter())
        rate = samples / (steps[-1] - began)
        a_step = (steps[-1] - steps[0]) / max(1, len(steps) - 1)

        held_out = list_files(f"{options.folder}/val")
        _, accuracy = model.evaluate(input_fn(held_out, Preparation("prefetch", 0.0, 1)), verbose=0)
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {rate:.0f} samples/s,"
            f" {a_step:.2f} s a step ({overlap}), accuracy {accuracy:.2f} on {len(held_out)} files held out",
            flush=True,
        )


if __name__ == "__main__":
    main()
