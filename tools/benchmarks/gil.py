"""What a training loop gets of Python's lock while its samples are read: by C++, by a thread, by other processes.

One data set, read in three ways by programs that are otherwise alike (train_gil.py), each over the same mount, and
once by none, to see what the step alone takes. In each step the training thread runs 2 ms of Python, as 20 operations,
and then waits 2 ms for a device that is only said to be there: 128,000 samples a second, 400 MB/s, is the most that it
can train on.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec

from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure, need_space
from tools.benchmarks.mounts import all_resident
from tools.benchmarks.readers import Reader

WAYS = {
    "nothing": "nothing is read",
    "native": "tf.data",
    "thread": "Python in a thread",
    "processes": "Python in 2 processes",
}
SHARDS, SAMPLES = 8, 16_384
SAMPLE_BYTES = 1 + 32 * 32 * 3
TARGET_MS = 0.4
"""A tenth of the step: with tf.data it may wait no longer for the lock."""


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Each way in a process that lives through all rounds; an epoch that is not timed goes first."""
    for module in ("tensorflow", "torch"):
        if find_spec(module) is None:
            raise BenchError(f"{module} is not installed; tools/setup test brings it")
    samples = 2048 if setting.quick else SAMPLES
    need_space(setting.folder, 2 * SHARDS * samples * SAMPLE_BYTES)
    remote = setting.folder / "remote"
    with Reader("train_tensorflow.py") as writer:
        writer.do("make", remote, SHARDS, samples, SAMPLE_BYTES)
    told: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for way in WAYS:
        with Reader("train_gil.py") as reader:
            for who in setting.contenders:
                folder = setting.folder / who
                folder.mkdir(exist_ok=True)
                with all_resident(who, remote, folder) as mount:
                    reader.do("epoch", mount.mountpoint, way)
                    for _ in range(setting.rounds):
                        told[who, way].append(reader.do("epoch", mount.mountpoint, way))
    found = []
    for who in setting.contenders:
        for way, words in WAYS.items():
            rounds, name = told[who, way], f"{words}, {who}"
            waited = [one["waited_ms"] for one in rounds]
            found += [
                figure(f"{name}, samples a second", [one["samples/s"] for one in rounds], "/s"),
                figure(f"{name}, a step takes", [one["step_ms"] for one in rounds], "ms"),
                at_most(f"{name}, of which it waits for the GIL", waited, "ms", TARGET_MS if way == "native" else None),
                figure(f"{name}, the GIL comes late, p50", [one["late_p50_ms"] for one in rounds], "ms"),
                figure(f"{name}, the GIL comes late, p99", [one["late_p99_ms"] for one in rounds], "ms"),
            ]
    title = f"{SHARDS} shards of {samples:,} samples of 3 kB; a step of 512 is 2 ms of Python and 2 ms of a device"
    return title, found
