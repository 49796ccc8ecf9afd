"""Demonstrates growfs on this machine alone: a model trains on a dataset that is larger than the cache.

It creates a dataset, serves it with a real S3 server (rclone) at the speed of a slow connection, mounts it, trains
with TensorFlow's own reader, and removes everything again, even when interrupted. Run it as tools/demo, which installs
the requirements.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Set before the first import of tensorflow, which otherwise logs a page about this machine's CPU.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

from rich.console import Console

from tools.benchmarks.measure import BenchError, environment, exit_status, need_space, temporary_folder
from tools.benchmarks.mounts import GROWFS, mounted
from tools.benchmarks.servers import rclone_server

SHARDS = 64
RECORDS_PER_SHARD = 128
BATCH = 16  # records; divides RECORDS_PER_SHARD
PADDING_BYTES = 32_000  # instead of an image: read from the disk, ignored by the model
CLASSES = 10
FEATURES = 64
NOISE = 2.0  # standard deviation around a class's center; that of the centers is 1

CACHE_SIZE_MB = 96
SERVER_MIB_PER_S = 10  # slow enough to watch the mount grow
DISK_NEEDED_MB = 500

# Keras warns about every dataset of unknown length, and a TFRecordDataset always is one.
warnings.filterwarnings("ignore", category=UserWarning, module=r"keras\.")

console = Console(highlight=False, soft_wrap=True)


# --- The training code, which does not know growfs.


def train(folder: Path, epochs: int, held_out: tuple[Any, Any]) -> Iterator[tuple[list[str], str]]:
    """Train on every TFRecord file in `folder`, which is listed again before each epoch: the files, and its figures."""
    import tensorflow as tf

    def parse(record: Any) -> Any:
        example = tf.io.parse_single_example(
            record, {"x": tf.io.FixedLenFeature([FEATURES], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        return example["x"], example["label"]

    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([dense(1024, "relu"), dense(1024, "relu"), dense(CLASSES)])
    model.compile(
        optimizer=tf.keras.optimizers.Adam(5e-5),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may delay the end of an epoch by many seconds
    steps: list[int] = []
    count = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    for _ in range(epochs):
        started = time.perf_counter()
        files = tf.io.gfile.glob(str(folder / "*.tfrecord"))
        records = tf.data.TFRecordDataset(files, num_parallel_reads=4)
        steps.clear()
        history = model.fit(
            records.map(parse).shuffle(2048).batch(BATCH).prefetch(4).with_options(options),
            callbacks=[count],
            verbose=0,
        )
        seconds = time.perf_counter() - started
        rate, loss = sum(os.stat(file).st_size for file in files) / seconds / 1e6, history.history["loss"][-1]
        accuracy = model.evaluate(*held_out, verbose=0)[1]  # on records outside the dataset
        yield files, f"{len(steps) * BATCH:7} {seconds:8.1f} {rate:6.0f} {loss:6.2f} {accuracy:8.0%}"


# --- The demonstration.


def make_data(folder: Path) -> tuple[Any, Any]:
    """Write the shards; return features and labels of held-out records."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(1)
    centres = rng.normal(size=(CLASSES, FEATURES))
    noise = rng.bytes(PADDING_BYTES + 100_000)

    def draw(count: int) -> tuple[Any, Any]:
        labels = rng.integers(CLASSES, size=count)
        return (centres[labels] + NOISE * rng.normal(size=(count, FEATURES))).astype("float32"), labels

    def feature(**kind: Any) -> Any:
        return tf.train.Feature(**kind)

    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard:05d}-of-{SHARDS:05d}.tfrecord")) as writer:
            for x, label in zip(*draw(RECORDS_PER_SHARD), strict=True):
                start = int(rng.integers(100_000))
                fields = {
                    "x": feature(float_list=tf.train.FloatList(value=x)),
                    "label": feature(int64_list=tf.train.Int64List(value=[label])),
                    "image": feature(bytes_list=tf.train.BytesList(value=[noise[start : start + PADDING_BYTES]])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString())
    # A file that has just been written has no version that lasts, so growfs would leave it to the store's library.
    hour_ago = time.time() - 3600
    for file in folder.iterdir():
        os.utime(file, (hour_ago, hour_ago))
    return draw(2000)


def show(command: Sequence[object], folder: Path) -> None:
    """Print a command as a user would type it in the folder."""
    words = ("growfs", *map(str, command[len(GROWFS) :])) if command[: len(GROWFS)] == GROWFS else map(str, command)
    console.print(f"[bold green]$[/] [bold]{shlex.join(words).replace(f'{folder}/', '')}[/]")


def print_epochs(epochs: Iterator[tuple[list[str], str]]) -> tuple[int, int]:
    """Print a line for each epoch; return the number of files in the last listing, and of all files seen."""
    seen: set[str] = set()
    listed = 0
    console.print("[dim]epoch  seen (of it listed)  listed  new  seen   records  seconds   MB/s   loss  accuracy[/]")
    for number, (files, figures) in enumerate(epochs, 1):
        listed, new = len(files), len(set(files) - seen)
        seen.update(files)
        bar = "█" * round(listed / SHARDS * 20) + "▒" * round((len(seen) - listed) / SHARDS * 20)
        console.print(f"{number:5}  [cyan]{bar:░<20}[/] {listed:5} {new:4} {len(seen):5}  {figures}")
    return listed, len(seen)


def demonstrate(epochs: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        need_space(folder, DISK_NEEDED_MB * 10**6)
        with console.status("creating a dataset ..."):
            data = folder / "remote" / "demo" / "train"
            held_out = make_data(data)
            data_mb = sum(file.stat().st_size for file in data.iterdir()) // 10**6
        limit = ("--bwlimit", f"{SERVER_MIB_PER_S}M")
        server = stack.enter_context(rclone_server(folder / "remote", more=limit))
        console.print(
            f"A bucket holds {SHARDS} TFRecord files, {data_mb} MB, on a server that sends {SERVER_MIB_PER_S} MiB/s. "
            f"The cache holds {CACHE_SIZE_MB} MB.\n"
        )

        def start(command: Sequence[object]) -> None:
            show(command, folder)
            words = [str(word) for word in command]
            if subprocess.run(words, env=environment(), timeout=120, check=False).returncode:
                raise BenchError("growfs mount failed; its message is above, and `growfs doctor` may know more")

        flags = ["--cache-size", f"{CACHE_SIZE_MB}MB", "--endpoint-url", server.endpoint, "--seed", 1]
        mount = stack.enter_context(mounted("s3://demo/train", folder, *flags, start=start))
        # Runs first in the cleanup: a second Ctrl-C must not interrupt it.
        stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)

        console.print(
            "\nNow a Keras model trains on what the mount lists, with TFRecordDataset and nothing else.\n"
            "The mount lists only files that are whole on the local disk; each epoch lists again and finds new ones.\n"
            "Once the cache is full, the files listed for longest are evicted for files that the model has not seen.\n"
        )
        listed, seen = print_epochs(train(mount.mountpoint, epochs, held_out))

        console.print()
        show(["cat", "mnt/.growfs/status"], folder)
        print((mount.mountpoint / ".growfs" / "status").read_text().rstrip())
        console.print()
        console.print(f"The model has seen {seen} of {SHARDS} files; the last listing had {listed}.\n")
        show([*GROWFS, "umount", mount.mountpoint], folder)


def demo() -> int:
    parser = argparse.ArgumentParser(prog="tools/demo", description="Watch a mount grow while a model trains on it.")
    parser.add_argument("--epochs", type=int, default=20, help="how many epochs to train (default: %(default)s)")
    epochs = parser.parse_args().epochs
    if epochs < 1:
        parser.error("--epochs is at least 1")
    demonstrate(epochs)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status("demo", demo))
