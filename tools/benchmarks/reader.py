"""A program that reads files and times it, with the standard library alone, or as training does.

Each line on standard input is a command, [NAME, ARGUMENT...] in JSON; for each it prints its measurements, one line of
JSON. Times are in seconds.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import random
import select
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BUFFER = 1 << 20
PAGE = 4096
ALTERNATE_EVERY_S = 0.001
COMMANDS = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - unbuffered: select() sees the next line


def sequential(path: str, block: int) -> list[float]:
    """Read a file from its start to its end; return the start and end times (all processes share the clock).

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
            mapped[::PAGE]  # copies a byte of each page, in C
    os.close(fd)
    return [began, time.perf_counter()]


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
    """List a tree. stat: then stat each of its files."""
    began = time.perf_counter()
    paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    listed = time.perf_counter()
    for path in paths if stat else ():
        os.stat(path)
    return {"files": len(paths), "os.walk": listed - began, "os.stat": time.perf_counter() - listed}


def alternate(folders: list[str], names: str) -> list[dict[str, float]]:
    """Until the next input line: time the open and read of a random file, in each folder in turn.

    names: a file that lists the names that every folder has. The last result is the round trip of a byte to another
    process, which sleeps until it arrives and sends it back.
    """
    paths = Path(names).read_text().splitlines()
    into = [bytearray(BUFFER)]
    took: list[list[float]] = [[] for _ in (*folders, "echo")]
    near, far = socket.socketpair()
    if not os.fork():
        near.close()
        while byte := far.recv(1):
            far.send(byte)
        os._exit(0)
    far.close()
    while not select.select([COMMANDS], [], [], ALTERNATE_EVERY_S)[0] or len(took[-1]) < 2:
        for folder, times in zip(folders, took, strict=False):
            path = f"{folder}/{random.choice(paths)}"
            began = time.perf_counter()
            fd = os.open(path, os.O_RDONLY)
            os.readv(fd, into)
            times.append(time.perf_counter() - began)
            os.close(fd)
        began = time.perf_counter()
        near.send(b".")
        near.recv(1)
        took[-1].append(time.perf_counter() - began)
    near.close()
    os.wait()
    COMMANDS.readline()
    return [spread(times) for times in took]


def train(folder: str, epochs: int, compute_s: float) -> dict[str, float]:
    """List all files, read them in random order and compute for a while with each, again and again."""
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


@functools.cache
def _bytes_of() -> Callable[[Any], Any]:
    """Reads all records of files in TensorFlow's own threads, and returns their bytes."""
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


def spread(times: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"n": len(times), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "max_ms": max(times) * 1e3}


def serve(commands: Mapping[str, Callable[..., object]]) -> None:
    """Run the commands of standard input until its end."""
    while line := COMMANDS.readline():
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), flush=True)


if __name__ == "__main__":
    serve({each.__name__: each for each in (sequential, files, walk, alternate, train, images, records)})
