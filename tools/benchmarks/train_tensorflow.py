"""A program that reads as training with TFRecordDataset does. Started and asked as reader.py is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf
from reader import serve  # type: ignore[import-not-found]  # beside this file, which is run as a script


def make(folder: str, shards: int, records: int, size: int) -> list[int]:
    """Write shards of random records."""
    Path(folder).mkdir()
    for shard in range(shards):
        with tf.io.TFRecordWriter(f"{folder}/train-{shard:05}.tfrecord") as writer:
            for _ in range(records):
                writer.write(os.urandom(size))
    return [shards]


@tf.function  # type: ignore[untyped-decorator]
def bytes_of(paths: Any) -> Any:
    """Read all records, in TensorFlow's own threads."""
    sizes = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    return sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + tf.cast(size, tf.int64))


def epoch(folder: str) -> dict[str, float]:
    """List, and read everything."""
    began = time.perf_counter()
    read = bytes_of(tf.constant(tf.io.gfile.glob(f"{folder}/*.tfrecord")))
    return {"bytes": int(read), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve({"make": make, "epoch": epoch})
