"""How long a training loop waits for the GIL while its input is read by C++, by a thread, or by other processes.

train_gil.py reads the same mount with three kinds of input, and once with none, which shows the time of the step alone.
In each step the training thread runs 2 ms of Python, as 20 operations, and then waits 2 ms for a simulated device. So
it trains on at most 128,000 samples a second, 400 MB/s.
"""

from __future__ import annotations

from collections import defaultdict

from tools.benchmarks import recipe_data
from tools.benchmarks.measure import Figure, Setting, at_most, figure, need_modules, need_space
from tools.benchmarks.mounts import fully_cached
from tools.benchmarks.reader_process import ReaderProcess

INPUTS = {
    "nothing": "nothing is read",
    "native": "tf.data",
    "thread": "Python in a thread",
    "processes": "Python in 2 processes",
}
SHARDS, SAMPLES = 8, 16_384
TARGET_MS = 0.4
"""The longest wait for the GIL per step with tf.data: a tenth of the step."""


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Each kind of input in one process for all rounds, after one epoch that is not timed."""
    need_modules("tensorflow", "torch")
    shard_count, samples = (2, 2048) if setting.quick else (SHARDS, SAMPLES)
    need_space(setting.folder, 2 * shard_count * samples * recipe_data.CIFAR_BYTES)
    remote = setting.folder / "remote"
    recipe_data.shards(remote, shard_count, samples)
    epochs: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for contender in setting.contenders:
        folder = setting.folder / contender
        folder.mkdir(exist_ok=True)
        with fully_cached(contender, remote, folder) as mount:
            for kind in INPUTS:
                with ReaderProcess("train_gil.py") as reader:
                    reader.call("epoch", mount.mountpoint, kind)
                    for _ in range(setting.rounds):
                        epochs[contender, kind].append(reader.call("epoch", mount.mountpoint, kind))
    found = []
    for contender in setting.contenders:
        for kind, words in INPUTS.items():
            rounds, name = epochs[contender, kind], f"{words}, {contender}"
            waited = [one["waited_ms"] for one in rounds]
            found += [
                figure(f"{name}, samples a second", [one["samples/s"] for one in rounds], "/s"),
                figure(f"{name}, a step takes", [one["step_ms"] for one in rounds], "ms"),
                at_most(
                    f"{name}, of which it waits for the GIL", waited, "ms", TARGET_MS if kind == "native" else None
                ),
                figure(f"{name}, the GIL comes late, p50", [one["late_p50_ms"] for one in rounds], "ms"),
                figure(f"{name}, the GIL comes late, p99", [one["late_p99_ms"] for one in rounds], "ms"),
            ]
    title = f"{shard_count} shards of {samples:,} samples of 3 kB; a step of 512 is 2 ms of Python and 2 ms of a device"
    return title, found
