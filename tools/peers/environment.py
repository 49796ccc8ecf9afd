"""The environment of the peers: a virtual environment of their own, and programs of the distribution.

The virtual environment sees the packages of the project's, too, because torch is a gigabyte; what a peer brings in
other versions lies in its own and goes before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.benchmarks.measure import ROOT, BenchError, run

FOLDER = ROOT / "build" / "peers"
SHIM = ROOT / "tests" / "frameworks" / "shim"  # lets torchvision be imported
PACKAGES = {
    "mosaicml-streaming": "streaming",
    "s3torchconnector": "s3torchconnector",
    "fusepy": "fuse",
}
"""Packages of PyPI, and the module of each."""
PROGRAMS = {"s3fs": "s3fs", "libfuse2": ""}
"""Packages of Debian, and the program of each."""
INSTALL_S_MAX = 420


class Environment:
    """Where the peers are installed."""

    @staticmethod
    def python() -> Path:
        """The interpreter that has the peers."""
        return FOLDER / "bin" / "python"

    @staticmethod
    def variables() -> dict[str, str]:
        """What it has to have in its environment."""
        return {"PYTHONPATH": str(SHIM), "PYTHONWARNINGS": "ignore", "AWS_ALLOW_HTTP": "true"}

    @staticmethod
    def version(package: str) -> str:
        """The version of a package that is installed in it."""
        script = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        return run([Environment.python(), "-c", script, package]).strip()

    @staticmethod
    def missing_module(module: str) -> str | None:
        """Why a module cannot be imported, or None."""
        done = subprocess.run(
            [Environment.python(), "-c", f"import {module}"],
            env={**os.environ, **Environment.variables()},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stderr.strip().splitlines()
        return None if not done.returncode else f"cannot be imported: {lines[-1] if lines else done.returncode}"

    @staticmethod
    def missing_program(program: str) -> str | None:
        """Why a program cannot be run, or None."""
        return None if shutil.which(program) else f"{program} is not installed"


def create() -> None:
    """Create the environment, where it is missing. It is enough for growfs, rclone and the local disk."""
    if not Environment.python().exists():
        run([sys.executable, "-m", "venv", "--without-pip", FOLDER])
        (site,) = FOLDER.glob("lib/python*/site-packages")
        (site / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")


def install() -> list[str]:
    """Install the packages that can be installed, once, and return what could not be, a line each."""
    left_out = []
    for package in PACKAGES:
        done = FOLDER / f"installed-{package}"
        if done.exists():
            continue
        print(f"installing {package} (pip)", file=sys.stderr, flush=True)
        try:
            pip = [sys.executable, "-m", "pip", "--python", str(Environment.python())]
            subprocess.run(
                [*pip, "install", "--quiet", "--no-input", package],
                timeout=INSTALL_S_MAX,
                capture_output=True,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            left_out.append(f"{package}: {type(error).__name__}")
        else:
            done.touch()
    for package, program in PROGRAMS.items():
        if os.geteuid() or not shutil.which("apt-get") or (program and shutil.which(program)):
            continue
        try:
            run(["apt-get", "install", "-y", "--no-install-recommends", package])
        except BenchError as error:
            left_out.append(str(error))
    return left_out
