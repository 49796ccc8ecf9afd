"""Train with TensorFlow on TFRecord files that do not fit the disk: TFRecordDataset, listing again in each epoch.

    growfs mount s3://bucket/train /mnt/train --cache-size 500GB
    python tools/recipes/tf_tfrecord.py /mnt/train --epochs 20

For shards and tf.data. Everything that reads, parses, mixes and batches is C++, in threads that never take the GIL. The
essential point is that files are listed inside the loop. glob, list_files and a pattern given to TFRecordDataset list
once, when the dataset is created; `.repeat(20)` would only ever see the files of the first epoch.

Look for "new" and "so far": files that no epoch saw before, and all files that the model has seen. For your own records
change FEATURES and `parse`.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

BATCH = 256
SHARDS_AT_A_TIME = 16
MIXED = 10_000
"""Records from which a batch is drawn."""

SIDE, CLASSES = 32, 10
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def parse(records: Any) -> Any:
    """(images, labels) of a batch of records."""
    example = tf.io.parse_example(records, FEATURES)
    pixels = tf.io.decode_raw(example["image"], tf.uint8)
    return tf.cast(tf.reshape(pixels, [-1, SIDE, SIDE, 3]), tf.float32) / 255, example["label"]


def batches(files: list[str]) -> Any:
    """A dataset of one epoch."""
    return (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(
            tf.data.TFRecordDataset,
            cycle_length=SHARDS_AT_A_TIME,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,  # a slow shard does not hold up others
        )
        .shuffle(MIXED)
        .batch(BATCH)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the *.tfrecord files of a folder.")
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(CLASSES)])
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(0.01)
    model.build([None, SIDE, SIDE, 3])

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    ever: set[str] = set()
    for epoch in range(1, options.epochs + 1):
        began, samples, loss = time.perf_counter(), 0, 0.0
        files = tf.io.gfile.glob(f"{options.folder}/*.tfrecord")  # here, not before the loop
        if not files:
            raise SystemExit(f"{options.folder} lists no *.tfrecord; growfs status says why")
        for images, labels in batches(files):
            loss = step(images, labels)
            samples += len(labels)
        rate = samples / (time.perf_counter() - began)
        new = len(set(files) - ever)
        ever.update(files)
        print(
            f"epoch {epoch}: {len(files)} files, {samples} samples, {rate:.0f} samples/s,"
            f" {new} new, {len(ever)} so far, loss {float(loss):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
