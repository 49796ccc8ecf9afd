"""A single soak: the schedule, the measurements, and the end."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at
from tools.benchmarks.measure import ROOT, BenchError, wait_for
from tools.soaking import processes
from tools.soaking.content import content
from tools.soaking.mount import SoakMount
from tools.soaking.processes import Tail, Usage
from tools.soaking.readers import Judge, Reader
from tools.soaking.remote import Remote

KINDS = ("tensorflow", "torch")
ACTIONS = {
    "the remote misbehaves": 8,
    "kill -9 of a worker": 3,
    "kill -9 of the S3 server": 3,
    "kill -9 of a reader": 2,
    "others fill the disk": 2,
    "a smaller cache": 2,
    "a program that keeps all files open": 2,
    "growfs is upgraded": 1,
    "kill -9 of the daemon": 1,
    "a new mount": 1,
}
"""The actions on the mount, and their relative frequencies. Each is done once first, in random order."""
RESTARTS = "kill -9 of the daemon", "a new mount"
"""Not done in the second half, in which a single daemon lives on to show whether it grows."""
RECOVERY_S = 30.0
"""How long after everything is restored a new file has to open, and all listed files have to be the latest version."""
END_S = 60.0
POLL_S = 0.1
MIN_FREE = "100MB"
TAKEN_BYTES = 200_000_000
"""How much less than `--min-free` is free once others have filled the disk."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much there is, and how fast things happen.

    action_s: the shortest and longest time from one fault to the next. fault_s: how long the remote misbehaves or is
    down, or there is no mount.
    """

    files: int = 400
    cache_size: str = "12MB"
    smaller_size: str = "8MB"
    refresh: str = "10s"
    action_s: tuple[float, float] = (3.0, 12.0)
    fault_s: tuple[float, float] = (1.0, 20.0)
    sample_s: float = 5.0


QUICK = Pace(100, "3MB", "2MB", "2s", (0.1, 0.5), (0.2, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a soak. seconds: its duration."""

    folder: Path
    seconds: float
    seed: int
    pace: Pace
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The mount's usage at one time. used: by the daemon, then by its processes. log_bytes: written since the start."""

    at: float
    used: list[Usage]
    disk_bytes: int
    log_bytes: int


@dataclass(slots=True)
class Counts:
    """Counts of actions. faults: requests that got each fault of the proxy. changes: of the remote. seconds: total."""

    actions: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Soak:
    """One run. findings, counts: its results. samples: of the last daemon. kept: logs, if readers saw problems."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.counts = Counts()
        self.samples: list[Sample] = []
        self.kept: Path | None = None
        self._console = console
        self._readers: list[Reader] = []
        self._random = random.Random(plan.seed)
        self._shown = 0

    @property
    def problems(self) -> list[str]:
        return self.findings.problems

    def run(self) -> bool:
        """Soak; returns whether Ctrl-C ended it early. Leaves nothing behind, whatever happens."""
        folder = self.plan.folder
        self._remote = Remote(folder, self.plan.pace.files, self._random)
        judge = Judge(self._remote.last, self._remote.deleted)
        self.findings, self._outages = judge.findings, judge.outages
        flags: list[object] = ["--cache-size", self.plan.pace.cache_size, "--settle", "0.5s", "--wait-files", "10"]
        flags += ["--refresh", self.plan.pace.refresh, "--turnover", "30%", "--miss-timeout", "30s"]
        flags += ["--min-free", MIN_FREE]
        self._mount = SoakMount(folder, flags, self.plan.engines, self._random)
        interrupted = False
        began = time.monotonic()
        try:
            self._mount.mount(self._remote.url, self._remote.endpoint)
            self._log = Tail(self._mount.log())
            self._readers += [Reader(kind, self._mount.mountpoint, folder, judge) for kind in KINDS]
            wait_for(self._all_have_read, END_S)
            self._loop()
            self._recover()
        except KeyboardInterrupt:
            interrupted = True
        except (BenchError, GrowfsError, OSError) as error:
            self.problems.append(f"the soak ended: {type(error).__name__}: {error}")
        finally:
            self.counts.seconds = time.monotonic() - began
            self.counts.faults.update(self._remote.injected)
            for reader in self._readers:
                reader.kill()
            if self.problems:
                self.kept = Path(tempfile.mkdtemp(prefix="growfs-soak-"))
                for path in (*folder.glob("*.err"), *self._mount.log().parent.glob("log*")):
                    shutil.copy(path, self.kept)
            self._mount.remove()
            self._remote.close()
        return interrupted

    def _loop(self) -> None:
        end = time.monotonic() + self.plan.seconds
        half = end - self.plan.seconds / 2
        first = list(ACTIONS)
        self._random.shuffle(first)
        next_action = next_change = next_sample = next_line = time.monotonic()
        while (now := time.monotonic()) < end or first:
            if now >= next_sample:
                self._sample()
                next_sample = now + self.plan.pace.sample_s
            if now >= next_change:
                self._change()
                next_change = now + self._random.uniform(0.2, 1.0)
            if now >= next_action:
                actions = {name: share for name, share in ACTIONS.items() if now < half or name not in RESTARTS}
                action = first.pop() if first else self._random.choices(list(actions), [*actions.values()])[0]
                self._act(action)
                next_action = time.monotonic() + self._random.uniform(*self.plan.pace.action_s)
            self._collect()
            if now >= next_line:
                self._line(end - now)
                next_line = now + 60
            time.sleep(POLL_S)

    def _all_have_read(self) -> bool:
        self._collect()
        return all(self.findings.epochs[kind] for kind in KINDS)

    def _collect(self) -> None:
        for reader in self._readers:
            reader.check()
        for problem in self.problems[self._shown :]:
            self._console.print(f"{time.strftime('%H:%M:%S')} {problem}", style="red", markup=False)
        self._shown = len(self.problems)

    def _line(self, left: float) -> None:
        findings, counts = self.findings, self.counts
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {left / 60:.0f} minutes left: {findings.files.total():,} files read,"
            f" {findings.bytes.total() / 1e6:,.0f} MB; {counts.actions.total()} faults;"
            f" {findings.due.total()} errors were due, {len(self.problems)} problems"
        )

    # The course of a soak.

    def _change(self) -> None:
        """Change the remote as other users would, so that versions, names and the number of files stay in flux."""
        few = len(self._remote.versions) < self.plan.pace.files
        what = self._random.choices(["add", "replace", "delete"], [2 if few else 1, 6, 1 if few else 2])[0]
        getattr(self._remote, what)()
        self.counts.changes[what] += 1

    def _act(self, action: str) -> None:
        lasts, mount, pace = self._random.uniform(*self.plan.pace.fault_s), self._mount, self.plan.pace
        lasting: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "the remote misbehaves": self._remote.misbehaving,
            "kill -9 of the S3 server": self._remote.without_server,
            "others fill the disk": lambda: mount.changed("min-free", self._free() + TAKEN_BYTES, MIN_FREE),
            "a smaller cache": lambda: mount.changed("cache-size", pace.smaller_size, pace.cache_size),
            "a program that keeps all files open": self._files_kept_open,
            "growfs is upgraded": mount.uninstalled,
            "kill -9 of the daemon": lambda: self._without_mount(is_killed=True),
            "a new mount": lambda: self._without_mount(is_killed=False),
        }
        if action in lasting:
            with lasting[action]():
                self._wait(lasts)
        elif action == "kill -9 of a worker":
            mount.kill_worker()
        else:
            reader = self._random.choice(self._readers)
            reader.kill()
            reader.start()
        self.counts.actions[action] += 1

    def _free(self) -> int:
        return shutil.disk_usage(self.plan.folder).free

    @contextmanager
    def _files_kept_open(self) -> Iterator[None]:
        command = [sys.executable, "-m", "tools.soaking.keeper", str(self._mount.mountpoint)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        ) as keeper:
            yield
            self.problems.extend(keeper.communicate()[0].splitlines())

    @contextmanager
    def _without_mount(self, is_killed: bool) -> Iterator[None]:
        self._outages.begin()
        daemon = self._mount.daemon
        if is_killed:
            processes.kill(daemon)
        elif said := self._mount.umount(lazy=self._random.random() < 0.5):
            if "in use" not in said:
                self.problems.append(said)
            self._mount.umount(lazy=True)
        if not wait_for(lambda: not processes.started(daemon), END_S):
            what = "SIGKILL" if is_killed else "the mount and all who used it"
            self.problems.append(f"the daemon has not ended {END_S:g} s after {what}")
            processes.kill(daemon)
        yield
        self._mount.mount(self._remote.url, self._remote.endpoint)
        self._outages.end()
        self.samples.clear()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._collect()
            time.sleep(POLL_S)

    def _sample(self) -> None:
        for line in self._log.lines():
            if "Traceback" in line:
                self.problems.append(f"a traceback in the log of the mount: {line}")
        if used := self._mount.usage():
            self.samples.append(Sample(time.monotonic(), used, self._mount.disk_bytes(), self._log.bytes_total))

    # The end of a soak.

    def _recover(self) -> None:
        """Check that listed files become the latest, new files open, and an unmount leaves nothing."""
        for reader in self._readers:
            reader.kill()
        new, versions, stale = self._remote.add(), self._remote.versions, list[str]()

        def is_latest(name: str) -> bool:
            try:
                data = (self._mount.mountpoint / name).read_bytes()
            except OSError:
                return False
            return name in versions and data == content(name, versions[name])  # deleted files have none

        def all_are_latest() -> bool:
            root = self._mount.mountpoint
            listed = [os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names]
            stale[:] = [name for name in (new, *listed) if not is_latest(name)]
            return not stale

        if not wait_for(all_are_latest, RECOVERY_S):
            self.problems.append(
                f"{RECOVERY_S:g} s after the last fault, {len(stale)} files are not the latest: {stale[:3]}"
            )
        self._sample()
        if said := self._mount.umount(lazy=False):
            self.problems.append(said)
        if not wait_for(lambda: not self._mount.left()):
            self.problems.append(f"processes are left: {self._mount.left()}")
        if mounted_at(self._mount.mountpoint):
            self.problems.append("the mount is left")
