"""A reader: trains on the .tfrecord files of a folder by tf.data, epoch after epoch.

Arguments: the folder, and how long to wait after each epoch.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from tools.soaking.content import checked, versions
from tools.soaking.report import run_epochs

FOLDER = sys.argv[1]


def read() -> tuple[dict[str, int], int]:
    files = tf.io.gfile.glob(f"{FOLDER}/records/*.tfrecord")
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=4).shuffle(64).prefetch(4)
    records = list(dataset.as_numpy_iterator())
    names = (os.path.relpath(file, FOLDER) for file in files)
    return versions(names, map(checked, records)), sum(map(len, records))


if __name__ == "__main__":
    run_epochs(read)
