"""Training programs over a mount whose files are all cached, compared with the same over the plain files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tools.benchmarks import recipe_data
from tools.benchmarks.child import Child, ReaderProcess
from tools.benchmarks.measure import ROOT, SHIM, Figures, Setting, need_modules, need_space
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
class Recipe:
    """program: its name in tools/recipes. make: writes its dataset to a folder, with these numbers. needs: modules.

    launcher: Python's arguments before the program.
    """

    program: str
    make: Callable[..., None]
    numbers: tuple[int, ...]
    epochs: int
    arguments: str
    needs: tuple[str, ...]
    launcher: tuple[str, ...] = ()


RECIPES = [
    Recipe("torch_imagefolder.py", recipe_data.images, (10, 40), 8, "--workers 1", ("torchvision",)),
    Recipe("torch_shards.py", recipe_data.shards, (16, 1000), 8, "--workers 1", ("torch",)),
    Recipe("torch_prefetch.py", recipe_data.volumes, (16, 256), 8, "--workers 1 --crops 40", ("torch",)),
    Recipe("torch_nodes.py", recipe_data.train_and_val, (10, 40, 4), 8, "--workers 1", ("torchvision",), TORCHRUN),
    Recipe("lightning_reload.py", recipe_data.images, (10, 40), 8, "--workers 1", ("torchvision", "lightning")),
    Recipe("tf_tfrecord.py", recipe_data.examples, (16, 5000), 6, "", ("tensorflow",)),
    Recipe("tf_input_fn.py", recipe_data.train_and_val_examples, (16, 2, 5000), 6, "", ("tensorflow",)),
    Recipe("keras_dataframe.py", recipe_data.objects, (1000, 128), 8, "", ("tensorflow", "pandas")),
    Recipe("webdataset_shards.py", recipe_data.tars, (8, 100), 6, "--workers 1", ("webdataset", "torch")),
    Recipe("safetensors_mmap.py", recipe_data.tensors, (2, 24_000), 20, "", ("safetensors", "torch")),
    Recipe("numpy_volumes.py", recipe_data.raws, (8, 64), 8, "--workers 1 --crops 50", ("numpy",)),
    Recipe("hf_datasets.py", recipe_data.tables, (16, 10_000), 6, "", ("datasets",)),
]
QUICK = [replace(RECIPES[0], numbers=(2, 4, 32, 32), epochs=2)]
"""Such a short run is mostly imports."""


def recipes(setting: Setting, found: Figures) -> str:
    """The programs of tools/recipes, over a mount and over the plain files: samples per second.

    One process trains over each, and they alternate epoch by epoch, because a machine's speed varies by a tenth from
    one minute to the next. The first epoch is a warm-up; the figure is the median ratio of the others, each of which
    lists again. PyTorch computes with one thread, as under torchrun: a recipe then keeps one core busy with its model
    and one with its loader. With more threads than cores, the figure would reflect the kernel's scheduler: a thread
    that sleeps briefly, in an open for instance, finds its core taken. To add a recipe, add a line to RECIPES.
    """
    wanted = QUICK if setting.quick else RECIPES
    need_modules(*{module for recipe in wanted for module in recipe.needs})
    need_space(setting.folder, 6 * DATA_BYTES_MAX)
    for recipe in wanted:
        _compare(setting, found, recipe)
    return "samples per second in the median epoch of each recipe"


def _compare(setting: Setting, found: Figures, recipe: Recipe) -> None:
    name, folder = recipe.program.removesuffix(".py"), setting.folder / f"mounts of {recipe.program}"
    remote = setting.folder / recipe.program
    recipe.make(remote, *recipe.numbers)
    for _, engine in setting.turns():
        with fully_cached(engine, remote, folder) as mount:
            pairs = _alternate(recipe, remote, mount.mountpoint)
        found.add(f"{name}, plain files", median(plain for plain, _ in pairs), unit="samples/s")
        ratio = median(mounted / plain for plain, mounted in pairs)
        found.add(f"{name}, {engine}, of plain", ratio, at_least=TARGETS.get(engine))


def _alternate(recipe: Recipe, plain: Path, mounted: Path) -> list[tuple[float, float]]:
    """Samples per second over the plain files and over the mount, for each epoch but the first."""
    found = []
    with _training(recipe, plain) as over_plain, _training(recipe, mounted) as over_mounted:
        for number in range(recipe.epochs):
            rates = {over: _epoch(over) for over in (over_plain, over_mounted)[:: -1 if number % 2 else 1]}
            found.append((rates[over_plain], rates[over_mounted]))
    return found[1:]


def _training(recipe: Recipe, folder: Path) -> Child:
    """A recipe that waits for a line before each epoch, and prints one after it."""
    program = [Path(__file__).with_name("pause_epochs.py"), ROOT / "tools" / "recipes" / recipe.program, folder]
    words = [sys.executable, *recipe.launcher, *program, "--epochs", recipe.epochs, *recipe.arguments.split()]
    variables = {"PYTHONPATH": f"{SHIM}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    return Child(words, variables, answers=True, name=recipe.program)


def _epoch(training: Child) -> float:
    """Run an epoch; returns its samples per second."""
    training.send("")
    return float(training.expect(EPOCH)[1])
