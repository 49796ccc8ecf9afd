"""Training programs in processes of their own, and data for them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.forkserver import PRELOADED, ROOT, ForkServer

HERE = Path(__file__).parent
BLOCK = 4096

ENV = {
    **os.environ,
    "PYTHONPATH": f"{HERE / 'shim'}:{ROOT}",
    "PYTHONWARNINGS": "default",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""The environment of a training program, for every framework."""
FORKS = ForkServer(
    [
        *("torch", "torchvision.datasets", "webdataset", "safetensors", "PIL.PngImagePlugin", "lightning"),
        *("tensorflow", "keras", "pandas"),
        *PRELOADED,
        "tools.bench",
        "tools.experiments",
        "tools.soak",
        "matplotlib.pyplot",
    ],
    ENV,
)
"""The frameworks, whose import takes seconds, and the benchmarks, experiments and the soak with them."""


class Program:
    """A training program: it reads a line, does one step and prints a line, until its input is closed.

    name: a file of programs/.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._errors = folder.parent / f"{name}.stderr"
        with self._errors.open("w") as errors:
            pipe = subprocess.PIPE
            words = HERE / "programs" / name, folder
            self._process = FORKS.start(words, ENV, stdin=pipe, stdout=pipe, stderr=errors, cwd="/")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def step(self, line: str = "") -> Any:
        """Run the next step; returns its line of JSON, without what a framework prints."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith(("{", "[")):
                return json.loads(answer)
        raise AssertionError(self._errors.read_text())


def blocks(size: int) -> int:
    """Bytes that a file of that size takes on the disk."""
    return -(-size // BLOCK) * BLOCK


def images(folder: Path, classes: int, each: int) -> dict[str, list[str]]:
    """Make class folders of 8 x 8 lossless pictures; returns [class, digest of the pixels] by relative path.

    Every picture takes one block.
    """
    generator = random.Random(5)
    pictures = {}
    for number in range(classes):
        name = f"class {number:02}"
        (folder / name).mkdir(parents=True)
        for place in range(each):
            pixels = generator.randbytes(8 * 8 * 3)
            content = BytesIO()
            Image.frombytes("RGB", (8, 8), pixels).save(content, "PNG")
            (folder / name / f"{place:03}.png").write_bytes(content.getvalue())
            pictures[f"{name}/{place:03}.png"] = [name, hashlib.sha256(pixels).hexdigest()]
    return pictures
