"""Training programs over a mount whose files are all cached, compared with the same over the plain files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from tools.benchmarks import recipe_data
from tools.benchmarks.child import Child, ReaderProcess
from tools.benchmarks.measure import ROOT, SHIM, BenchError, Figures, Setting, need_modules, need_space
from tools.benchmarks.mounts import fully_cached

TARGETS = {"passthrough": 0.97, "links": 0.97}


# Readers of frameworks.

SHARD_COUNT, SHARD_BYTES = 8, 64 << 20
IMAGE_COUNT, CLASSES = 600, 10
RECORDS = {"records of 1 MiB": 1 << 20, "records of 100 kB": 100_000}


def frameworks(setting: Setting, found: Figures) -> str:
    """Epochs of TFRecordDataset and ImageFolder. Each lists the folder again, which is part of its time."""
    need_modules("tensorflow", "torch", "torchvision")
    need_space(setting.folder, 6 * SHARD_COUNT * SHARD_BYTES)
    shards, shard_bytes, images = (2, 2 << 20, CLASSES) if setting.quick else (SHARD_COUNT, SHARD_BYTES, IMAGE_COUNT)
    with ReaderProcess() as reader:
        for what, size in RECORDS.items():
            remote = setting.folder / f"shards of {what}"
            recipe_data.random_records(remote, shards, shard_bytes // size, size)
            _epochs(setting, found, reader, remote, f"TFRecordDataset, {what}", "records")
    with ReaderProcess() as reader:
        remote = setting.folder / "images"
        recipe_data.images(remote, CLASSES, images // CLASSES)
        for workers in (1, 2):
            _epochs(setting, found, reader, remote, f"ImageFolder, workers: {workers}", "images", workers)
    return f"{shards} shards of {shard_bytes >> 20} MiB; {images:,} JPEGs of 110 kB"


def _epochs(
    setting: Setting, found: Figures, reader: ReaderProcess, remote: Path, name: str, command: str, *arguments: int
) -> None:
    """The first epoch of a fresh mount; then pairs of an epoch over the plain files and one through the mount."""
    folder = setting.folder / f"mounts of {remote.name}"
    for number, engine in setting.turns():
        with fully_cached(engine, remote, folder) as mount:
            reader.call(command, mount.files, *arguments)  # not timed: loads the cached files into memory
            for turn in range(2 if setting.quick else 4):
                seconds = {}
                for path in (mount.files, mount.mountpoint)[:: -1 if (number + turn) % 2 else 1]:
                    seconds[path] = reader.call(command, path, *arguments)["seconds"]
                plain, through = seconds[mount.files], seconds[mount.mountpoint]
                found.add(f"{name}, plain files", plain, unit="s")
                which = "later epochs" if turn else "first epoch"
                target = TARGETS.get(engine) if turn else None
                found.add(f"{name}, {engine}, {which}, of plain", plain / through, at_least=target)


# Recipes.

DATA_BYTES_MAX = 400 << 20
EPOCH = r"epoch \d+: .*?([\d.]+) samples/s"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


@dataclass(frozen=True, slots=True)
class Data:
    """A recipe's dataset. make: writes it to a folder, with the arguments `full`, or `quick` for --quick."""

    make: Callable[..., None]
    full: tuple[int, ...]
    quick: tuple[int, ...]

    def folder(self, setting: Setting) -> Path:
        """The dataset's folder. The first call writes it."""
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


def recipes(setting: Setting, found: Figures) -> str:
    """The programs of tools/recipes, over a mount and over the plain files: samples per second.

    One process trains over each, and they alternate epoch by epoch, because a machine's speed varies by a tenth from
    one minute to the next. The first epoch is a warm-up; the figure is the median ratio of the others, each of which
    lists again. PyTorch computes with one thread, as under torchrun: a recipe then keeps one core busy with its model
    and one with its loader. With more threads than cores, the figure would reflect the kernel's scheduler: a thread
    that sleeps briefly, in an open for instance, finds its core taken. To add a recipe, add a line to RECIPES.
    """
    need_space(setting.folder, 6 * DATA_BYTES_MAX)
    wanted = RECIPES[:1] if setting.quick else RECIPES  # such a short run is mostly imports
    missing = {recipe.program: module for recipe in wanted for module in recipe.needs if find_spec(module) is None}
    if missing.keys() == {recipe.program for recipe in wanted}:
        raise BenchError(f"{', '.join(sorted(set(missing.values())))}: not installed; tools/setup test installs them")
    for recipe in wanted:
        if recipe.program not in missing:
            _compare(setting, found, recipe)
    without = [f"{program} needs {module}" for program, module in missing.items()]
    return "; ".join(["samples per second in the median epoch of each recipe", *without])


def _compare(setting: Setting, found: Figures, recipe: Recipe) -> None:
    """The figures of one recipe."""
    remote, name = recipe.data.folder(setting), recipe.program.removesuffix(".py")
    folder = setting.folder / f"mounts of {remote.name}"
    for _, engine in setting.turns():
        with fully_cached(engine, remote, folder) as mount:
            pairs = _alternate(recipe, remote, mount.mountpoint, 2 if setting.quick else recipe.epochs)
        found.add(f"{name}, plain files", median(plain for plain, _ in pairs), unit="samples/s")
        ratio = median(mounted / plain for plain, mounted in pairs)
        found.add(f"{name}, {engine}, of plain", ratio, at_least=TARGETS.get(engine))


def _alternate(recipe: Recipe, plain: Path, mounted: Path, epochs: int) -> list[tuple[float, float]]:
    """Samples per second over the plain files and over the mount, for each epoch but the first."""
    found = []
    with _training(recipe, plain, epochs) as over_plain, _training(recipe, mounted, epochs) as over_mounted:
        for number in range(epochs):
            rates = {over: _epoch(over) for over in (over_plain, over_mounted)[:: -1 if number % 2 else 1]}
            found.append((rates[over_plain], rates[over_mounted]))
    return found[1:]


def _training(recipe: Recipe, folder: Path, epochs: int) -> Child:
    """A recipe that waits for a line before each epoch, and prints one after it."""
    program = [Path(__file__).with_name("pause_epochs.py"), ROOT / "tools" / "recipes" / recipe.program, folder]
    words = [sys.executable, *recipe.launcher, *program, "--epochs", epochs, *recipe.arguments.split()]
    variables = {"PYTHONPATH": f"{SHIM}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    return Child(words, variables, answers=True, name=recipe.program)


def _epoch(training: Child) -> float:
    """Run an epoch; returns its samples per second."""
    training.send("")
    return float(training.expect(EPOCH)[1])
