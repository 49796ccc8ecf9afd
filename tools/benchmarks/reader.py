"""A program that reads files and times that, with just the standard library or in the ways that training does.

Each line on standard input is a command, [NAME, ARGUMENT...] in JSON; for each, it prints its measurements as one line
of JSON. Times are in seconds.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import random
import select
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUFFER = 1 << 20
COMMANDS = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - unbuffered: select() sees the next line


def sequential(path: str, block: int) -> float:
    """Read a file from start to end; return the seconds.

    block: bytes per read, all into one buffer; 0: by mmap, touching each page.
    """
    into = [bytearray(block)]
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    if block:
        while os.readv(fd, into):
            pass
    else:
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            mapped[::4096]  # copies a byte of each page, in C
    os.close(fd)
    return time.perf_counter() - began


def files(folder: str, names: str, order: int) -> dict[str, float]:
    """Open, read and close all files in random order. names: a file that lists their paths in the folder."""
    paths = [f"{folder}/{name}" for name in Path(names).read_text().splitlines()]
    random.Random(order).shuffle(paths)
    into = [bytearray(BUFFER)]
    clock = time.perf_counter
    read = 0
    open_s = read_s = close_s = 0.0
    began = clock()
    for path in paths:
        start = clock()
        fd = os.open(path, os.O_RDONLY)
        opened = clock()
        read += os.readv(fd, into)
        done = clock()
        os.close(fd)
        closed = clock()
        open_s += opened - start
        read_s += done - opened
        close_s += closed - done
    return {"all": clock() - began, "open": open_s, "read": read_s, "close": close_s, "bytes": read}


def walk(folder: str, stat: bool) -> dict[str, float]:
    """List a tree. stat: afterwards, stat each of its files."""
    began = time.perf_counter()
    paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    listed = time.perf_counter()
    for path in paths if stat else ():
        os.stat(path)
    return {"files": len(paths), "os.walk": listed - began, "os.stat": time.perf_counter() - listed}


def until_told(folder: str, names: str) -> dict[str, float]:
    """Repeatedly time the open and read of a random file, until the next line of input.

    names: a file that lists the names in the folder.
    """
    paths = [f"{folder}/{name}" for name in Path(names).read_text().splitlines()]
    into = [bytearray(BUFFER)]
    times: list[float] = []
    while not select.select([COMMANDS], [], [], 0.001)[0] or len(times) < 2:
        path = random.choice(paths)
        began = time.perf_counter()
        fd = os.open(path, os.O_RDONLY)
        os.readv(fd, into)
        times.append(time.perf_counter() - began)
        os.close(fd)
    COMMANDS.readline()
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


def train(folder: str, epochs: int, compute_s: float) -> dict[str, float]:
    """Repeatedly list all files and read them in random order, computing for a while after each."""
    into = [bytearray(BUFFER)]
    count, seen = 0, set()
    began = time.perf_counter()
    for _ in range(epochs):
        paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
        random.shuffle(paths)
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.readv(fd, into)
            os.close(fd)
            computed = time.perf_counter() + compute_s
            while time.perf_counter() < computed:
                pass
        count += len(paths)
        seen.update(paths)
    return {"busy": count * compute_s / (time.perf_counter() - began), "files": count, "different": len(seen)}


def images(folder: str, workers: int) -> dict[str, float]:
    """An epoch with torchvision's ImageFolder: list the folder, start the workers, and decode everything."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    def tensor(image: Image.Image) -> torch.Tensor:  # the usual input of a network
        return torch.frombuffer(bytearray(image.resize((224, 224)).tobytes()), dtype=torch.uint8)

    began = time.perf_counter()
    loader = DataLoader(ImageFolder(folder, tensor), batch_size=32, shuffle=True, num_workers=workers)
    return {"files": sum(len(labels) for _, labels in loader), "seconds": time.perf_counter() - began}


def decoded(folder: str, threads: int) -> dict[str, float]:
    """An epoch of the same with tf.data: list the folder, and decode everything in TensorFlow's own threads."""
    import tensorflow as tf

    def tensor(path: Any) -> Any:
        return tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), (224, 224))

    began = time.perf_counter()
    paths = tf.data.Dataset.list_files(f"{folder}/*/*.jpg")
    loader = paths.map(tensor, num_parallel_calls=threads).batch(32).prefetch(2)
    return {"files": sum(len(batch) for batch in loader), "seconds": time.perf_counter() - began}


@functools.cache
def _bytes_of() -> Callable[[Any], Any]:
    """A function that reads all records of files in TensorFlow's own threads, and returns their bytes."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def bytes_of(paths: Any) -> Any:
        sizes = tf.data.TFRecordDataset(paths).map(tf.strings.length)
        return sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + tf.cast(size, tf.int64))

    return bytes_of  # type: ignore[no-any-return]


def records(folder: str) -> dict[str, float]:
    """An epoch with tf.data.TFRecordDataset: list the folder, and read everything."""
    import tensorflow as tf

    bytes_of = _bytes_of()
    began = time.perf_counter()
    read = bytes_of(tf.constant(tf.io.gfile.glob(f"{folder}/*.tfrecord")))
    return {"bytes": int(read), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    commands: dict[str, Callable[..., object]] = {
        each.__name__: each for each in (sequential, files, walk, until_told, train, images, decoded, records)
    }
    while line := COMMANDS.readline():
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), flush=True)
