"""The readers, and the judgment of their reports: which files they read and checked, and which errors were expected."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.benchmarks.measure import ROOT, SHIM, environment
from tools.soaking.processes import Tail
from tools.soaking.report import Epoch

STUCK_S = 120.0
"""An epoch takes seconds. On a live mount it does not take this long, whatever the remote does."""
DUE = {
    errno.ENOTCONN: "the daemon was killed",
    errno.ECONNABORTED: "the daemon was killed",
    errno.EIO: "the daemon was killed",
    errno.ENOENT: "unmounted",
}
"""Errors that a reader may get while there is no mount, or a dead one."""


class Outages(list[tuple[float, float]]):
    """When there was no working mount: from before it was killed or unmounted until the next one had returned."""

    def begin(self) -> None:
        self.append((time.monotonic(), math.inf))

    def end(self) -> None:
        self[-1] = self[-1][0], time.monotonic()

    def overlap(self, began: float, ended: float) -> bool:
        return any(start <= ended and end >= began for start, end in self[-100:])


@dataclass(slots=True)
class Findings:
    """The findings of the readers. due: expected errors by their cause. problems: unexpected failures."""

    epochs: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    due: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Judge:
    """Judges which errors of an epoch were to be expected, and adds the epoch to the findings.

    latest: the last version that ever existed of each file. deleted: names of files.
    """

    def __init__(self, latest: dict[str, int], deleted: set[str]) -> None:
        self.findings = Findings()
        self.outages = Outages()
        self._latest, self._deleted = latest, deleted

    def judge(self, kind: str, epoch: Epoch, seen: dict[str, int]) -> None:
        """Add an epoch. seen: the version of each file that this reader saw last."""
        findings = self.findings
        findings.epochs[kind] += not epoch.error
        findings.files[kind] += len(epoch.versions)
        findings.bytes[kind] += epoch.bytes
        for name, version in epoch.versions.items():
            latest = self._latest[name]
            if not seen.get(name, 1) <= version <= latest:
                findings.problems.append(f"{kind}: {name}: version {version} after {seen.get(name)}, of {latest}")
            seen[name] = version
        if not epoch.error:
            return
        if epoch.wrong:
            findings.problems.append(f"{kind}: {epoch.error}")
        elif epoch.code in DUE and self.outages.overlap(epoch.began, epoch.ended):
            findings.due[f"{errno.errorcode[epoch.code]}: no mount, or a dead one"] += 1
        elif epoch.code == errno.ENOENT and any(name in epoch.error for name in self._deleted):
            findings.due["ENOENT: a file that the remote has deleted"] += 1
        else:
            findings.problems.append(f"{kind}: {epoch.error}")


class Reader:
    """A reader program. kind: its framework."""

    def __init__(self, kind: str, mountpoint: Path, folder: Path, judge: Judge) -> None:
        self.kind = kind
        program = ["-W", "ignore", "-m", "tools.soaking.report"]
        self._command = [sys.executable, *program, kind, str(mountpoint)]
        self._output = folder / f"{kind}.out"
        self._errors = folder / f"{kind}.err"
        self._judge = judge
        self.start()

    def start(self) -> None:
        """Start it, with nothing read so far, in its own session, so that Ctrl-C only reaches the soak."""
        variables = {"PYTHONPATH": f"{SHIM}:{ROOT}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=ROOT,
                env=environment() | variables,
                start_new_session=True,
            )
        self._reports = Tail(self._output)
        self._seen: dict[str, int] = {}
        self._heard = time.monotonic()

    def kill(self) -> None:
        """Send SIGKILL, in the middle of whatever it is doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._collect()

    def check(self) -> None:
        """Judge its reports since the last time. If it has ended or is stuck, restart it."""
        self._collect()
        now, findings = time.monotonic(), self._judge.findings
        if self._process.poll() is not None:
            said = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
            findings.problems.append(f"{self.kind}: the reader ended: {self._process.returncode} {said}")
        elif now - self._heard > STUCK_S and not self._judge.outages.overlap(self._heard, now):
            findings.problems.append(f"{self.kind}: no epoch in {STUCK_S:g} s")
        else:
            return
        self.kill()
        self.start()

    def _collect(self) -> None:
        for line in self._reports.lines():
            self._heard = time.monotonic()
            self._judge.judge(self.kind, Epoch(**json.loads(line)), self._seen)
