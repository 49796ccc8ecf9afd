"""A program that trains as one reads TFRecord files without Python, or with it, and tells what it waited for the GIL.

Started and asked as reader.py is. A process takes one way to read, because TensorFlow and torch do not share one.

The step stands for a GPU's: operations of some Python each, every one of which lets go of the GIL once (as torch's and
TensorFlow's do), and then a wait for the device, without the GIL. What it takes beyond that is told apart: the
processor's time, the time in its queue (schedstat, of the kernel), and the rest, which is the wait for the GIL.
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

from reader import serve  # type: ignore[import-not-found]  # beside this file, which is run as a script

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

LABEL_BYTES, PIXEL_BYTES = 1, 32 * 32 * 3
"""A sample is an image of CIFAR-10's binary version."""
BATCH = 512
AHEAD = 4
"""Batches that each of the ways may have ready."""
OPERATIONS = 20
OPERATION_S, DEVICE_S = 0.0001, 0.002
BEAT_S = 0.001
COUNT, COUNT_FOR_S = 10_000, 0.2


def native(files: list[str]) -> Iterator[Any]:
    """tf.data: read, mixed up, parsed and batched in C++."""
    import tensorflow as tf

    def parse(records: Any) -> Any:
        whole = tf.io.decode_raw(records, tf.uint8)
        return whole[:, LABEL_BYTES:], whole[:, 0]

    records = tf.data.TFRecordDataset(files, num_parallel_reads=4).batch(BATCH, drop_remainder=True)
    return iter(records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(AHEAD))


def thread(files: list[str]) -> Iterator[Any]:
    """A Python data set, read ahead by a thread of the training process (as a PyDataset of Keras is)."""
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
    """The same data set, in two worker processes; batches come through a queue and shared memory."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(_shards(files), batch_size=BATCH, num_workers=2, prefetch_factor=AHEAD // 2, drop_last=True)
    return iter(loader)


def nothing(files: list[str]) -> Iterator[Any]:
    """As many batches, already there."""
    samples = sum(os.stat(file).st_size for file in files) // (LABEL_BYTES + PIXEL_BYTES + 16)
    return iter([()] * (samples // BATCH))


def _shards(files: list[str]) -> Any:
    """A torch data set that takes TFRecord files apart in Python."""
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


WAYS: dict[str, Callable[[list[str]], Iterator[Any]]] = {
    "nothing": nothing,
    "native": native,
    "thread": thread,
    "processes": processes,
}


class Heart(threading.Thread):
    """A thread that wants the GIL each millisecond, and notes how much too late it gets it, in seconds.

    What it waits for a core does not count.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late: list[float] = []
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.is_set():
            queued, began = queued_s(), time.perf_counter()
            time.sleep(BEAT_S)
            self.late.append(time.perf_counter() - began - BEAT_S - (queued_s() - queued))

    def stop(self) -> None:
        """End, and wait for that."""
        self._enough.set()
        self.join()


def count(number: int) -> None:
    """Python that holds the GIL."""
    for _ in range(number):
        pass


def per_second() -> float:
    """How far `count` counts in a second when nobody else is there."""
    took = []
    end = time.perf_counter() + COUNT_FOR_S
    while time.perf_counter() < end:
        began = time.perf_counter()
        count(COUNT)
        took.append(time.perf_counter() - began)
    return COUNT / statistics.median(took)


def queued_s() -> float:
    """Seconds that the calling thread could have run and had no core."""
    with open("/proc/thread-self/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9


def step(number: int) -> None:
    """One step. number: how far each operation's Python counts."""
    for _ in range(OPERATIONS):
        count(number)
        select.select((), (), (), 0)  # does nothing, without the GIL (sleep(0) would take 50 us)
    time.sleep(DEVICE_S)


def train(batches: Iterable[Any], number: int) -> dict[str, float]:
    """A step for each batch."""
    heart = Heart()
    step_s = waited_s = began = 0.0
    steps = 0
    for _ in batches:
        if not steps:  # what comes before the first batch is the start, not training
            heart.start()
            began = time.perf_counter()
        queued, cpu, start = queued_s(), time.thread_time(), time.perf_counter()
        step(number)
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
        waited_s += took - DEVICE_S - cpu - (queued_s() - queued)
        step_s += took
        steps += 1
    all_s = time.perf_counter() - began
    heart.stop()
    cuts = statistics.quantiles(heart.late, n=100, method="inclusive")
    return {
        "samples/s": steps * BATCH / all_s,
        "step_ms": step_s / steps * 1e3,
        "waited_ms": waited_s / steps * 1e3,
        "late_p50_ms": cuts[49] * 1e3,
        "late_p99_ms": cuts[98] * 1e3,
    }


def epoch(folder: str, way: str) -> dict[str, float]:
    """List, and train on everything."""
    files = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    number = round(per_second() * OPERATION_S)
    random.shuffle(files)
    return train(WAYS[way](files), number)


if __name__ == "__main__":
    serve({"epoch": epoch})
