"""The programs of tools/recipes, over a mount and over the plain files: samples per second.

One process trains over each, and they alternate epoch by epoch, because a machine's speed changes by a tenth from one
minute to the next. The first epoch is a warm-up; the figure is the median ratio of the others, each of which lists
again. PyTorch computes with one thread, as under torchrun: a recipe then keeps one core busy with its model and one
with its loader. With more threads than cores the figure would be about the kernel's scheduler: a thread that sleeps
briefly, in an open for instance, finds its core taken.
To add a recipe, add a line to RECIPES.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Timer

from tools.benchmarks import recipe_data
from tools.benchmarks.measure import (
    COMMAND_S_MAX,
    ROOT,
    BenchError,
    Figure,
    Setting,
    at_least,
    environment,
    figure,
    need_space,
)
from tools.benchmarks.mounts import fully_cached
from tools.benchmarks.reader_process import SHIM

TARGETS = {"passthrough": 0.97}
DATA_BYTES_MAX = 400 << 20
EPOCH = re.compile(r"epoch \d+: .*?([\d.]+) samples/s")
HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


@dataclass(frozen=True, slots=True)
class Data:
    """A recipe's data set. make: writes it to a folder, with the arguments `full`, or `quick` for --quick."""

    make: Callable[..., None]
    full: tuple[int, ...]
    quick: tuple[int, ...]

    def folder(self, setting: Setting) -> Path:
        """The data set's folder. The first call writes it."""
        numbers = self.quick if setting.quick else self.full
        folder = setting.folder / " ".join((self.make.__name__, *map(str, numbers)))
        if not folder.exists():
            self.make(folder, *numbers)
        return folder


@dataclass(frozen=True, slots=True)
class Recipe:
    """program: its name in tools/recipes. needs: modules. launcher: Python's arguments before the program."""

    program: str
    data: Data
    epochs: int
    arguments: str
    needs: tuple[str, ...]
    launcher: tuple[str, ...] = ()


IMAGES = Data(recipe_data.images, full=(10, 40), quick=(2, 4, 32, 32))
TRAIN_AND_VAL = Data(recipe_data.train_and_val, full=(10, 40, 4), quick=(10, 4, 1, 32, 32))
SHARDS = Data(recipe_data.shards, full=(16, 1000), quick=(4, 20))
EXAMPLES = Data(recipe_data.examples, full=(16, 5000), quick=(4, 20))
EXAMPLES_AND_VAL = Data(recipe_data.train_and_val_examples, full=(16, 2, 5000), quick=(4, 1, 20))
OBJECTS = Data(recipe_data.objects, full=(1000, 128), quick=(20, 8))
TARS = Data(recipe_data.tars, full=(8, 100), quick=(2, 4, 32, 32))
TENSORS = Data(recipe_data.tensors, full=(2, 24_000), quick=(2, 20))
RAWS = Data(recipe_data.raws, full=(8, 64), quick=(2, 80))
TABLES = Data(recipe_data.tables, full=(16, 10_000), quick=(2, 100))
VOLUMES = Data(recipe_data.volumes, full=(16, 256), quick=(4, 32))

RECIPES = [
    Recipe("torch_imagefolder.py", IMAGES, 8, "--workers 1", ("torchvision",)),
    Recipe("torch_shards.py", SHARDS, 8, "--workers 1", ("torch",)),
    Recipe("torch_prefetch.py", VOLUMES, 8, "--workers 1 --crops 40", ("torch",)),
    Recipe("torch_nodes.py", TRAIN_AND_VAL, 8, "--workers 1", ("torchvision",), TORCHRUN),
    Recipe("lightning_reload.py", IMAGES, 8, "--workers 1", ("torchvision", "lightning")),
    Recipe("tf_tfrecord.py", EXAMPLES, 6, "", ("tensorflow",)),
    Recipe("tf_input_fn.py", EXAMPLES_AND_VAL, 6, "", ("tensorflow",)),
    Recipe("keras_dataframe.py", OBJECTS, 8, "", ("tensorflow", "pandas")),
    Recipe("webdataset_shards.py", TARS, 6, "--workers 1", ("webdataset", "torch")),
    Recipe("safetensors_mmap.py", TENSORS, 20, "", ("safetensors", "torch")),
    Recipe("numpy_volumes.py", RAWS, 8, "--workers 1 --crops 50", ("numpy",)),
    Recipe("hf_datasets.py", TABLES, 6, "", ("datasets",)),
]


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Compare a run over the plain files with one through a mount, for each contender in turn."""
    need_space(setting.folder, 6 * DATA_BYTES_MAX)
    wanted = RECIPES[:1] if setting.quick else RECIPES  # so short a run is mostly imports
    missing = {recipe.program: module for recipe in wanted for module in recipe.needs if find_spec(module) is None}
    if missing.keys() == {recipe.program for recipe in wanted}:
        raise BenchError(f"{', '.join(sorted(set(missing.values())))}: not installed; tools/setup test installs them")
    found = [one for recipe in wanted if recipe.program not in missing for one in compare(setting, recipe)]
    without = [f"{program} needs {module}" for program, module in missing.items()]
    return "; ".join(["samples per second in the median epoch of each recipe", *without]), found


def compare(setting: Setting, recipe: Recipe) -> list[Figure]:
    """The figures of one recipe."""
    remote = recipe.data.folder(setting)
    folder = setting.folder / f"mounts of {remote.name}"
    folder.mkdir(exist_ok=True)
    plain: list[float] = []
    ratios: dict[str, list[float]] = defaultdict(list)
    for _ in range(setting.rounds):
        for contender in setting.contenders:
            with fully_cached(contender, remote, folder) as mount:
                pairs = alternate(recipe, remote, mount.mountpoint, 2 if setting.quick else recipe.epochs)
            plain.append(median(plainly for plainly, _ in pairs))
            ratios[contender].append(median(mounted / plainly for plainly, mounted in pairs))
    name = recipe.program.removesuffix(".py")
    return [
        figure(f"{name}, plain files", plain, "samples/s"),
        *(
            at_least(f"{name}, {contender}, of plain", ratios[contender], "", TARGETS.get(contender))
            for contender in setting.contenders
        ),
    ]


def alternate(recipe: Recipe, plain: Path, mounted: Path, epochs: int) -> list[tuple[float, float]]:
    """Samples per second over the plain files and over the mount, for each epoch but the first."""
    found = []
    with training(recipe, plain, epochs) as over_plain, training(recipe, mounted, epochs) as over_mounted:
        for number in range(epochs):
            rates = {over: over() for over in (over_plain, over_mounted)[:: -1 if number % 2 else 1]}
            found.append((rates[over_plain], rates[over_mounted]))
    return found[1:]


@contextlib.contextmanager
def training(recipe: Recipe, folder: Path, epochs: int) -> Iterator[Callable[[], float]]:
    """Start a recipe that pauses before each epoch. Yields a function that runs an epoch and returns samples/s."""
    program = [HERE / "pause_epochs.py", ROOT / "tools" / "recipes" / recipe.program, folder]
    words = [sys.executable, *recipe.launcher, *program, "--epochs", epochs, *recipe.arguments.split()]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment() | {"PYTHONPATH": f"{SHIM}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
        ) as process,
    ):
        output, commands = process.stdout, process.stdin
        assert output
        assert commands

        def epoch() -> float:
            with contextlib.suppress(BrokenPipeError):
                commands.write("\n")
                commands.flush()
            for line in output:
                if found := EPOCH.match(line):
                    return float(found[1])
            process.wait()
            errors.seek(0)
            raise BenchError(f"{recipe.program} ended: {errors.read().strip()[-500:] or process.returncode}")

        timeout = Timer(COMMAND_S_MAX, process.kill)
        timeout.start()
        try:
            yield epoch
        finally:
            process.communicate()  # it ends by itself after its last epoch
            timeout.cancel()
