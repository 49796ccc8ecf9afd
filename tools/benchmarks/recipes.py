"""The programs of tools/recipes, over a mount and over the plain files: samples per second.

One process trains over each, and they take turns, an epoch each: what a machine can do differs by a tenth from one
minute to the next. The first epoch warms up; of all others, each of which lists anew, the median ratio counts. PyTorch
computes by one thread, as torchrun has it: a recipe then keeps one core busy with its model and one with its loader.
With more threads than cores it is the scheduler that is measured: who sleeps for a moment, in an open for instance,
finds its core taken.
A further recipe is a line in RECIPES.
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
from tools.benchmarks.mounts import all_resident
from tools.benchmarks.readers import SHIM

TARGETS = {"passthrough": 0.97}
DATA_BYTES_MAX = 400 << 20
EPOCH = re.compile(r"epoch \d+: .*?([\d.]+) samples/s")
HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


@dataclass(frozen=True, slots=True)
class Data:
    """What a recipe reads. make: writes it below a folder, given these numbers; quick: those for --quick."""

    make: Callable[..., None]
    full: tuple[int, ...]
    quick: tuple[int, ...]

    def made(self, setting: Setting) -> Path:
        """The folder, made at the first call."""
        numbers = self.quick if setting.quick else self.full
        folder = setting.folder / " ".join((self.make.__name__, *map(str, numbers)))
        if not folder.exists():
            self.make(folder, *numbers)
        return folder


@dataclass(frozen=True, slots=True)
class Recipe:
    """program: its name in tools/recipes. needs: modules. launcher: what stands between Python and the program."""

    program: str
    data: Data
    epochs: int
    arguments: str
    needs: tuple[str, ...]
    launcher: tuple[str, ...] = ()


IMAGES = Data(recipe_data.images, full=(10, 40), quick=(10, 4, 32, 32))
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
    """Pairs of a run over the plain files and one through the mount, with each engine in turn."""
    need_space(setting.folder, 6 * DATA_BYTES_MAX)
    wanted = RECIPES[:1] if setting.quick else RECIPES  # most of what so short a run takes is the import
    missing = {recipe.program: module for recipe in wanted for module in recipe.needs if find_spec(module) is None}
    if missing.keys() == {recipe.program for recipe in wanted}:
        raise BenchError(f"{', '.join(sorted(set(missing.values())))}: not installed; tools/setup test brings them")
    found = [one for recipe in wanted if recipe.program not in missing for one in of_plain(setting, recipe)]
    without = [f"{program} needs {module}" for program, module in missing.items()]
    return "; ".join(["samples per second in the median epoch of each recipe", *without]), found


def of_plain(setting: Setting, recipe: Recipe) -> list[Figure]:
    """The figures of one."""
    remote = recipe.data.made(setting)
    folder = setting.folder / f"mounts of {remote.name}"
    folder.mkdir(exist_ok=True)
    plain: list[float] = []
    ratios: dict[str, list[float]] = defaultdict(list)
    for _ in range(setting.rounds):
        for who in setting.contenders:
            with all_resident(who, remote, folder) as mount:
                pairs = in_turns(recipe, remote, mount.mountpoint)
            plain.append(median(plainly for plainly, _ in pairs))
            ratios[who].append(median(mounted / plainly for plainly, mounted in pairs))
    name = recipe.program.removesuffix(".py")
    return [
        figure(f"{name}, plain files", plain, "samples/s"),
        *(at_least(f"{name}, {who}, of plain", ratios[who], "", TARGETS.get(who)) for who in setting.contenders),
    ]


def in_turns(recipe: Recipe, plain: Path, mounted: Path) -> list[tuple[float, float]]:
    """Samples per second of the plain files and of the mounted ones, for each epoch but the first."""
    found = []
    with training(recipe, plain) as over_plain, training(recipe, mounted) as over_mounted:
        for number in range(recipe.epochs):
            rates = {over: over() for over in (over_plain, over_mounted)[:: -1 if number % 2 else 1]}
            found.append((rates[over_plain], rates[over_mounted]))
    return found[1:]


@contextlib.contextmanager
def training(recipe: Recipe, folder: Path) -> Iterator[Callable[[], float]]:
    """A recipe that stands still between its epochs; gives what has it go on for one, and tells samples per second."""
    program = [HERE / "in_turns.py", ROOT / "tools" / "recipes" / recipe.program, folder]
    words = [sys.executable, *recipe.launcher, *program, "--epochs", recipe.epochs, *recipe.arguments.split()]
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
        said, told = process.stdout, process.stdin
        assert said
        assert told

        def epoch() -> float:
            with contextlib.suppress(BrokenPipeError):
                told.write("\n")
                told.flush()
            for line in said:
                if found := EPOCH.match(line):
                    return float(found[1])
            process.wait()
            errors.seek(0)
            raise BenchError(f"{recipe.program} ended: {errors.read().strip()[-500:] or process.returncode}")

        killing = Timer(COMMAND_S_MAX, process.kill)
        killing.start()
        try:
            yield epoch
        finally:
            process.communicate()  # after its last epoch it ends by itself
            killing.cancel()
