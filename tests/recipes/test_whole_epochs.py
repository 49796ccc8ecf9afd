"""The recipes of docs/whole-epochs.md, as they stand there, over a real mount whose cache is smaller than the data.

Only the values of the names in capitals are others: the mountpoint, one pass, small batches. The mount counts how often
each file is opened, which shows that a pass reads each file once.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.forkserver import Process
from tests.frameworks.harness import BLOCK, ENV, FORKS, images
from tests.harness import Growfs, files_below, until
from tests.needs import need
from tests.recipes.running import misses
from tests.recipes.test_torch import other_node
from tests.servers import free_port
from tools.benchmarks.recipe_data import tfrecord

PAGE = Path(__file__).parents[2] / "docs/whole-epochs.md"
PROGRAM_S = 100.0
LATER = "--exact", "--start", "2/1"
"""The first pass has more parts than others, so programs begin with the second one: see `recipe`."""
EXACT = *LATER, "--cache-size", 20 * BLOCK, "--part-size", 12 * BLOCK
FILES, PARTS = 30, 4
"""Files of one block, and into how many parts these options divide them."""
NO_VALUES: Mapping[str, object] = MappingProxyType({})
ONE_PASS = MappingProxyType({"EPOCHS": 2, "BATCH": 2})
ONE_WORKER = MappingProxyType({**ONE_PASS, "WORKERS": 1})
STOP_AFTER = """
import os, pathlib
method, left = pathlib.Path.{method}, {times}
def then_stop(path, argument):
    global left
    method(path, argument)
    left -= 1
    if not left:
        os._exit(0)
pathlib.Path.{method} = then_stop
"""
"""Ends a program, as if it was preempted, after it has called this method of a path so many times."""

pytestmark = pytest.mark.timeout(180)


def recipe(heading: str, values: Mapping[str, object] = NO_VALUES, number: int = 0, language: str = "python") -> str:
    """A program of the page, which begins with the second pass. number: of those below the heading. values: of its
    names in capitals.
    """
    section = PAGE.read_text().partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    code: str = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)[number]
    for name, value in values.items():
        code, found = re.subn(rf"^{name} = \S+", f"{name} = {value!r}", code, flags=re.MULTILINE)
        assert found == 1, name
    for first, second in (
        ("range(1, ", "range(2, "),
        ('"number": 1}', '"number": 2}'),
        ("number = 0", "number = 1"),
        ("parts = parts()", "parts = parts(2)"),
    ):
        code = code.replace(first, second)
    return code


class Program:
    """A running program, in a folder of its own. is_forked: not with Keras, as in running.NOT_FORKED."""

    def __init__(
        self, code: str, folder: Path, env: Mapping[str, object] = NO_VALUES, *, is_forked: bool = True
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        (folder / "program.py").write_text(code)
        variables = ENV | {name: str(value) for name, value in env.items()}
        self._process: Process | subprocess.Popen[str]
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            if is_forked:
                self._process = FORKS.start(["program.py"], variables, stdout=out, stderr=errors, cwd=folder)
            else:
                command = [sys.executable, "program.py"]
                self._process = subprocess.Popen(
                    command, env=variables, stdout=out, stderr=errors, cwd=folder, text=True
                )

    def lines(self) -> list[str]:
        """Wait until it ends, with exit status 0; returns what it has printed."""
        try:
            assert self._process.wait(PROGRAM_S) == 0, (self._folder / "stderr").read_text()
        finally:
            self._process.kill()
            self._process.wait()
        return (self._folder / "stdout").read_text().splitlines()


def mount_images(growfs: Growfs, remote: Path) -> None:
    """Mount three classes of images."""
    images(remote, classes=3, each=FILES // 3)
    growfs.mount(remote, *EXACT)


def opens(growfs: Growfs) -> dict[int, int]:
    """How many files were opened how often."""
    table = csv.DictReader(io.StringIO((growfs.mountpoint / ".growfs/ledger.csv").read_text()))
    return Counter(int(row["opens"]) for row in table)


def check_passes(growfs: Growfs, passes: int = 1) -> None:
    """Each file was opened once in each pass, and no open waited."""
    until(lambda: opens(growfs) == {passes: FILES})
    assert misses(growfs) == 0


def newest_part(growfs: Growfs) -> tuple[int, int]:
    """The pass and the part that began last."""
    exact = growfs.status()["exact"]
    return exact["pass"], exact["part"]


def test_one_loader_resumes_within_a_pass_on_another_machine(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "torchdata")
    mount_images(growfs, tmp_path / "remote")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/classes.txt").write_text("class 00\nclass 01\nclass 02\n")
    heading, values = "PyTorch: one loader, with checkpoints", {"BATCH": 3, "WORKERS": 2, "SAVE_EVERY": 2}
    code = recipe(heading, {"DATA": str(growfs.mountpoint), "EPOCHS": 1, **values})
    code = STOP_AFTER.format(method="replace", times=2) + code
    assert Program(code, tmp_path / "run").lines() == []
    with other_node(tmp_path / "other") as other:
        other.mount(tmp_path / "remote", *EXACT)
        code = recipe(heading, {"DATA": str(other.mountpoint), "EPOCHS": 2, **values})
        assert Program(code, tmp_path / "run").lines() == ["pass 1: 18 samples", "pass 2: 30 samples"]
        until(lambda: opens(other) == {1: 12, 2: FILES - 12})
        assert misses(other) == 0


def test_imagefolder_resumes_on_another_machine(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    mount_images(growfs, tmp_path / "remote")
    heading, values = "PyTorch: ImageFolder, a loader for each part", {**ONE_WORKER, "SAVE_EVERY": 1}
    code = STOP_AFTER.format(method="replace", times=2) + recipe(heading, {"DATA": str(growfs.mountpoint), **values})
    assert Program(code, tmp_path / "run").lines() == ["pass 2, part 1, 0 samples done"]
    with other_node(tmp_path / "other") as other:
        other.mount(tmp_path / "remote", *EXACT)
        code = recipe(heading, {"DATA": str(other.mountpoint), **values, "EPOCHS": 3})
        assert Program(code, tmp_path / "run").lines() == [
            "pass 2, part 1, 4 samples done",
            *(f"pass 2, part {part}, 0 samples done" for part in range(2, PARTS + 1)),
            *(f"pass 3, part {part}, 0 samples done" for part in range(1, PARTS + 1)),
        ]
        until(lambda: opens(other) == {1: 4, 2: FILES - 4})
        assert misses(other) == 0


def test_two_nodes_have_equally_many_parts(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    images(tmp_path / "remote", classes=3, each=FILES // 3)
    job = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    job |= {"MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    flags = *LATER, "--cache-size", 10 * BLOCK, "--part-size", 6 * BLOCK
    with other_node(tmp_path / "other") as other:
        programs = []
        for number, node in enumerate((growfs, other)):
            node.mount(tmp_path / "remote", *flags, "--partition", f"{number}/2")
            code = recipe("PyTorch: two nodes", {"DATA": str(node.mountpoint), **ONE_WORKER})
            programs.append(Program(code, tmp_path / f"run{number}", {**job, "RANK": number}))
        printed = [program.lines() for program in programs]
        assert len(printed[0]) == len(printed[1]) > 2
        assert sum(int(line.split()[0]) for lines in printed for line in lines) == FILES
        until(lambda: opens(growfs)[1] + opens(other)[1] == FILES)
        assert misses(growfs) == misses(other) == 0


def test_tf_data(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow")
    remote = tmp_path / "remote"
    remote.mkdir()
    for number in range(FILES):
        (remote / f"{number:03}.tfrecord").write_bytes(tfrecord([b"record"] * 3))
    growfs.mount(remote, *EXACT)
    code = recipe("tf.data", {"DATA": str(growfs.mountpoint), **ONE_PASS, "EPOCHS": 3})
    assert Program(code, tmp_path / "run").lines() == [f"pass {number}: {3 * FILES} records" for number in (2, 3)]
    check_passes(growfs, 2)


def test_hugging_face_datasets(growfs: Growfs, tmp_path: Path) -> None:
    need("datasets", "torch")
    (tmp_path / "remote").mkdir()
    for number in range(FILES):
        (tmp_path / f"remote/{number:03}.txt").write_text(f"text {number}")
    growfs.mount(tmp_path / "remote", *EXACT)
    code = recipe("Hugging Face datasets", {"DATA": str(growfs.mountpoint), **ONE_PASS, "EPOCHS": 3, "WORKERS": 2})
    printed = Program(code, tmp_path / "run").lines()
    assert printed == [f"pass {number}: {FILES // 4 * 4} samples" for number in (2, 3)]  # full batches of two workers
    check_passes(growfs, 2)


@pytest.mark.long
def test_keras_with_an_epoch_for_each_pass(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow")
    mount_images(growfs, tmp_path / "remote")
    code = recipe("Keras", {"DATA": str(growfs.mountpoint), **ONE_PASS, "EPOCHS": 3})
    printed = "".join(Program(code, tmp_path / "run", is_forked=False).lines())
    assert "Epoch 3/3" in printed
    assert "Epoch 4" not in printed
    check_passes(growfs, 2)


@pytest.mark.long
def test_keras_with_an_epoch_for_each_part(growfs: Growfs, tmp_path: Path) -> None:
    need("tensorflow")
    mount_images(growfs, tmp_path / "remote")
    code = recipe("Keras", {"DATA": str(growfs.mountpoint), **ONE_PASS}, 1)
    saved = tmp_path / "run/position.json"
    Program(STOP_AFTER.format(method="write_text", times=1) + code, tmp_path / "run", is_forked=False).lines()
    assert json.loads(saved.read_text())["part"] == 2
    Program(code, tmp_path / "run", is_forked=False).lines()
    assert json.loads(saved.read_text())["part"] == PARTS + 1
    check_passes(growfs)


@pytest.mark.parametrize("loader", ["Data", pytest.param("Parts", marks=pytest.mark.long)])
def test_lightning(growfs: Growfs, tmp_path: Path, loader: str) -> None:
    need("lightning", "torchvision")
    mount_images(growfs, tmp_path / "remote")
    for passes in (1, 2):
        epochs = passes * (PARTS if loader == "Parts" else 1)
        code = recipe("Lightning", {"DATA": str(growfs.mountpoint), **ONE_WORKER, "EPOCHS": epochs})
        if loader == "Parts":
            parts = recipe("Lightning", number=1)
            code = code.replace("trainer = ", f"{parts}\ntrainer = ").replace("Data()", "Parts()")
        Program(code, tmp_path / "run").lines()
        check_passes(growfs, passes)
        assert newest_part(growfs) == (passes + 1, PARTS)


def test_hugging_face(growfs: Growfs, tmp_path: Path) -> None:
    need("transformers", "accelerate", "torchvision")
    mount_images(growfs, tmp_path / "remote")
    values = {"DATA": str(growfs.mountpoint), "BATCH": FILES, "WORKERS": 1}  # so a part has one step
    for steps in (2, PARTS):
        Program(recipe("Hugging Face Trainer", {**values, "STEPS": steps}), tmp_path / "run").lines()
        assert newest_part(growfs) == (2, steps)
    check_passes(growfs)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ray_train(tmp_path: Path) -> None:
    need("ray", "ray.train", "torchvision", "pydantic")
    images(tmp_path / "remote", classes=3, each=FILES // 3)
    cache = {"CACHE": str(tmp_path / "cache"), "CACHE_SIZE": str(13 * BLOCK)}
    code = recipe("Ray Train", {"URL": str(tmp_path / "remote"), **cache, "NODES": 2, **ONE_WORKER})
    lines = Program(code, tmp_path / "run", {"RAY_DEDUP_LOGS": 0}, is_forked=False).lines()
    assert sum(int(files) for files in re.findall(r"\b(\d+) files", "\n".join(lines))) == FILES


def test_a_shell(growfs: Growfs, tmp_path: Path) -> None:
    mount_images(growfs, tmp_path / "remote")
    code = recipe("A shell", language="bash").replace("tar", "png")
    code = code.replace("/mnt/train/.growfs/passes/1", f"{growfs.mountpoint}/.growfs/passes/2")
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    read = [re.sub(r".*/passes/2/\d+/", "", line) for line in done.stdout.splitlines()]
    assert sorted(read) == sorted(files_below(tmp_path / "remote"))
    check_passes(growfs)
