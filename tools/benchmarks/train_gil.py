"""A program that trains while it reads TFRecord files with or without Python, and measures its waits for the GIL.

It takes commands as reader.py does. A process uses one kind of input, because TensorFlow and torch cannot share one.

The step imitates a GPU's: operations that each run some Python and release the GIL once (as torch's and TensorFlow's
do), then a wait for the device without the GIL. The rest of the step's time is split into CPU time, time in the run
queue (the kernel's schedstat), and the remainder, which is the wait for the GIL.
"""

from __future__ import annotations

import os
import queue
import random
import select
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from reader import serve  # type: ignore[import-not-found]  # beside this file, which runs as a script

LABEL_BYTES, PIXEL_BYTES = 1, 32 * 32 * 3
"""A sample is an image of CIFAR-10's binary version."""
BATCH = 512
AHEAD = 4
"""Batches that each kind of input may prefetch."""
OPERATIONS = 20
OPERATION_S, DEVICE_S = 0.0001, 0.002
COUNT, COUNT_FOR_S = 10_000, 0.2


def native(files: list[str]) -> Iterator[Any]:
    """tf.data: reads, interleaves, parses and batches in C++."""
    import tensorflow as tf

    def parse(records: Any) -> Any:
        whole = tf.io.decode_raw(records, tf.uint8)
        return whole[:, LABEL_BYTES:], whole[:, 0]

    records = tf.data.TFRecordDataset(files, num_parallel_reads=4).batch(BATCH, drop_remainder=True)
    return iter(records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(AHEAD))


def thread(files: list[str]) -> Iterator[Any]:
    """A Python data set, prefetched by a thread of the training process (as a Keras PyDataset is)."""
    import torch
    from torch.utils.data import DataLoader

    ready: queue.Queue[Any] = queue.Queue(AHEAD)

    def read() -> None:
        for batch in DataLoader(_shards(files), batch_size=BATCH, drop_last=True):
            ready.put(batch)
        ready.put(None)

    torch.set_num_threads(1)
    threading.Thread(target=read, daemon=True).start()
    return iter(ready.get, None)


def processes(files: list[str]) -> Iterator[Any]:
    """The same data set in two worker processes; batches pass through a queue and shared memory."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(_shards(files), batch_size=BATCH, num_workers=2, prefetch_factor=AHEAD // 2, drop_last=True)
    return iter(loader)


def nothing(files: list[str]) -> Iterator[Any]:
    """As many batches, without any input."""
    samples = sum(os.stat(file).st_size for file in files) // (LABEL_BYTES + PIXEL_BYTES + 16)
    return iter([()] * (samples // BATCH))


def _shards(files: list[str]) -> Any:
    """A torch data set that parses TFRecord files in Python."""
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    class Shards(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            for path in files[worker.id :: worker.num_workers] if worker else files:
                with Path(path).open("rb") as file:
                    while head := file.read(12):  # a length, its CRC; the data, its CRC
                        record = bytearray(file.read(int.from_bytes(head[:8], "little")))
                        file.read(4)
                        yield torch.frombuffer(record, dtype=torch.uint8)[LABEL_BYTES:], record[0]

    return Shards()


INPUTS: dict[str, Callable[[list[str]], Iterator[Any]]] = {
    "nothing": nothing,
    "native": native,
    "thread": thread,
    "processes": processes,
}


def count(number: int) -> None:
    """Run Python bytecode, which holds the GIL."""
    for _ in range(number):
        pass


def per_second() -> float:
    """How far `count` counts in a second on an otherwise idle process."""
    took = []
    end = time.perf_counter() + COUNT_FOR_S
    while time.perf_counter() < end:
        began = time.perf_counter()
        count(COUNT)
        took.append(time.perf_counter() - began)
    return COUNT / statistics.median(took)


def run_queue_s() -> float:
    """Seconds that the calling thread was runnable without a core."""
    with open("/proc/thread-self/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9


def step(number: int) -> None:
    """One training step. number: how far each operation counts."""
    for _ in range(OPERATIONS):
        count(number)
        select.select((), (), (), 0)  # releases the GIL and does nothing (sleep(0) would take 50 us)
    time.sleep(DEVICE_S)


def train(batches: Iterable[Any], number: int) -> dict[str, float]:
    """Run a step for each batch."""
    step_s = waited_s = began = 0.0
    steps = 0
    for _ in batches:
        began = began or time.perf_counter()  # time before the first batch is start-up, not training
        queued, cpu, start = run_queue_s(), time.thread_time(), time.perf_counter()
        step(number)
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
        waited_s += took - DEVICE_S - cpu - (run_queue_s() - queued)
        step_s += took
        steps += 1
    all_s = time.perf_counter() - began
    per_step_ms = 1e3 / steps
    return {"samples/s": steps * BATCH / all_s, "step_ms": step_s * per_step_ms, "waited_ms": waited_s * per_step_ms}


def epoch(folder: str, kind: str) -> dict[str, float]:
    """List the folder, and train on everything."""
    files = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    number = round(per_second() * OPERATION_S)
    random.shuffle(files)
    return train(INPUTS[kind](files), number)


if __name__ == "__main__":
    serve({"epoch": epoch})
