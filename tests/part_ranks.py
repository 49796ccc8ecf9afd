"""The ranks of a job that read the parts of a pass, each with workers: a program without growfs, unless it says so.

python -m tests.part_ranks OUT FOLDER JOB: FOLDER is a mount or a filled folder, JOB a dict in JSON; see `Job`. What
each rank has read is in the file of its number in the folder OUT. It has a line for each file: pass, part and path.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What the ranks do."""

    ranks: int
    workers: int
    passes: tuple[int, ...]
    stagger_s: float = 0.0
    """How long after the one before a rank starts."""
    pause_s: tuple[float, ...] = (0.0,)
    """The pause of each rank after each file, in turn."""
    kill_after: int = 0
    """How many files the last rank reads before it is killed. It then goes on with the file after those. 0: it is not
    killed."""
    meets: bool = False
    """After each file, the ranks wait for each other, as in a collective, until one of them has read all."""

    through_growfs: bool = False
    """Call `growfs.epoch`."""


def names_below(folder: str) -> list[str]:
    """The paths of the files, sorted."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    )


JOBS = {
    "one is slower": Job(3, 2, (2, 3), pause_s=(0, 0.01)),
    "one comes late": Job(2, 1, (2,), stagger_s=1.0),
    "one is killed, and goes on": Job(3, 2, (2,), pause_s=(0.01,), kill_after=6),
    "they meet after each file": Job(3, 1, (2,), meets=True),
}


def run_ranks(folder: Path, out: Path, job: Job, timeout_s: float = 100.0, **options: Any) -> list[str]:
    """Run the ranks of a job; returns what they have read."""
    out.mkdir()
    out.chmod(0o777)
    command = [sys.executable, "-m", "tests.part_ranks", str(out), str(folder), json.dumps(asdict(job))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, **options) as ranks:
        try:
            _, errors = ranks.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            subprocess.run([sys.executable, "-m", "growfs", "status", folder], check=False)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
    assert ranks.returncode == 0, errors
    return [line for file in out.iterdir() for line in file.read_text().splitlines()]


def assert_each_once_in_each_pass(lines: list[str], tree: Iterable[str], passes: tuple[int, ...]) -> None:
    """Each file was read once in each pass."""
    read = Counter((int(line.partition("/")[0]), line.partition(" ")[2]) for line in lines)
    assert read == Counter((number, name) for number in passes for name in tree)


class Rank:
    """One rank, which reads every `ranks`th file of each part."""

    def __init__(self, job: Job, number: int, folder: Path, out: Path, meeting: Barrier) -> None:
        self._job = job
        self._number = number
        self._folder = folder
        self._out = out / str(number)
        self._meeting = meeting
        self._left = job.kill_after if number == job.ranks - 1 else 0

    def run(self) -> None:
        """Read the passes; after it was killed, go on as from a checkpoint."""
        time.sleep(self._job.stagger_s * self._number)
        done = self._out.read_text().splitlines() if self._out.exists() else []
        first = 1
        if done:
            self._left = 0
            first = int(done[-1].split()[0].partition("/")[2])
        for number in self._job.passes:
            for folder in self._parts(number, first):
                self._read_part(folder, set(done))
            first = 1
        self._meeting.abort()

    def _parts(self, number: int, first: int) -> Iterator[Path]:
        if self._job.through_growfs:
            import growfs

            yield from growfs.epoch(self._folder, number, first)
            return
        folder = self._folder / ".growfs/passes" / str(number)
        for part in range(first, json.loads((folder / "parts.json").read_text())["parts"] + 1):
            yield folder / str(part)

    def _read_part(self, folder: Path, done: set[str]) -> None:
        part = f"{folder.parent.name}/{folder.name}"
        own = [
            name for name in names_below(str(folder))[self._number :: self._job.ranks] if f"{part} {name}" not in done
        ]
        shares = [own[worker :: self._job.workers] for worker in range(self._job.workers)]
        with ThreadPoolExecutor(self._job.workers) as workers:
            list(workers.map(partial(self._work, folder, part), shares))

    def _work(self, folder: Path, part: str, names: list[str]) -> None:
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                file.read()
            line = f"{part} {name}\n".encode()
            out = os.open(self._out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(out, line)
            os.close(out)
            if self._left == 1:
                os._exit(1)
            self._left -= self._left > 0
            time.sleep(self._job.pause_s[self._number % len(self._job.pause_s)])
            if self._job.meets:
                with suppress(threading.BrokenBarrierError):
                    self._meeting.wait()


def main(out: Path, folder: Path, job: Job) -> int:
    """Run the ranks, and one that was killed again; returns how many failed."""
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(job.ranks)

    def start(number: int) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=Rank(job, number, folder, out, meeting).run)
        process.start()
        return process

    ranks = [start(number) for number in range(job.ranks)]
    if job.kill_after:
        ranks[-1].join()
        ranks[-1] = start(job.ranks - 1)
    for rank in ranks:
        rank.join()
    return sum(rank.exitcode != 0 for rank in ranks)


if __name__ == "__main__":
    values = json.loads(sys.argv[3])
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), Job(**values)))
