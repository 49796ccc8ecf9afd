"""A program that reads as training with tf.data.TFRecordDataset does. It takes commands as reader.py does."""

from __future__ import annotations

import os
import time
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf
from reader import serve  # type: ignore[import-not-found]  # beside this file, which runs as a script


@tf.function  # type: ignore[untyped-decorator]
def bytes_of(paths: Any) -> Any:
    """Read all records in TensorFlow's own threads, and return their bytes."""
    sizes = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    return sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + tf.cast(size, tf.int64))


def epoch(folder: str) -> dict[str, float]:
    """List the folder, and read everything."""
    began = time.perf_counter()
    read = bytes_of(tf.constant(tf.io.gfile.glob(f"{folder}/*.tfrecord")))
    return {"bytes": int(read), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve({"epoch": epoch})
