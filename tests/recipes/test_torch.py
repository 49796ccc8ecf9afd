"""The recipes for PyTorch, run unmodified over a real mount: each shows the behaviour that it demonstrates.

The cache grows while a recipe runs, or rotates. A recipe runs until it has printed what the test waits for, and no
timing is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from tests.frameworks.harness import BLOCK, ENV, FORKS
from tests.fuse.rotation_helpers import local
from tests.harness import Growfs
from tests.needs import need
from tests.recipes.running import ONLY_GROWTH, RECIPES, Recipe, after_growth, misses, running
from tests.servers import S3Server, free_port
from tools.benchmarks import recipe_data

START_S = 60.0

pytestmark = pytest.mark.timeout(180)


def pictures(folder: Path) -> Path:
    """Thirty pictures in six classes, of one block each."""
    recipe_data.images(folder, 6, 5, 8, 8)
    return folder


def mount_some(growfs: Growfs, remote: Path) -> None:
    """Mount a cache that holds twelve of the thirty pictures."""
    growfs.mount(pictures(remote), "--cache-size", 12 * BLOCK, *ONLY_GROWTH)
    growfs.resize(12, BLOCK)


def check_growth(recipe: Recipe, growfs: Growfs) -> None:
    """Grow the cache from 12 to 30 pictures: each epoch reads every cached picture, and nothing is missed."""
    after_growth(growfs, recipe, [12, 30], BLOCK)
    epochs = recipe.epochs
    assert all(epoch.samples == epoch.files for epoch in epochs)
    assert [epoch.files for epoch in epochs] == sorted(epoch.files for epoch in epochs)
    assert sum(epoch.count("new") for epoch in epochs) == epochs[-1].count("seen in all") == 30


def test_imagefolder_rebuilt_each_epoch_sees_more(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    mount_some(growfs, tmp_path / "remote")
    with running("torch_imagefolder.py", growfs, "--workers", 1) as recipe:
        check_growth(recipe, growfs)
        assert {epoch.count("classes") for epoch in recipe.epochs} == {6}


def test_imagefolder_rebuilt_each_epoch_sees_all_with_a_small_cache(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    growfs.mount(pictures(tmp_path / "remote"), "--cache-size", 12 * BLOCK, "--turnover", "50%")
    with running("torch_imagefolder.py", growfs, "--workers", 0) as recipe:
        recipe.until(lambda epoch: epoch.count("seen in all") == 30)
        assert max(epoch.files for epoch in recipe.epochs) <= 12
        assert misses(growfs) == 0


def test_imagefolder_built_once_sees_nothing_new(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    mount_some(growfs, tmp_path / "remote")
    with running("torch_imagefolder.py", growfs, "--workers", 0, "--once") as recipe:
        recipe.until(lambda _: True)
        growfs.resize(30, BLOCK)
        recipe.skip()
        later = recipe.until(lambda _: True)
        assert later.files == later.samples == later.count("seen in all") == 12
        assert later.count("new") == 0
        (reader,) = growfs.status()["readers"]
        assert reader["files_shown"] == 12
        assert "will see nothing new until it lists again" in reader["advice"]


def test_persistent_workers_list_again(growfs: Growfs, rclone_s3: S3Server, tmp_path: Path) -> None:
    need("torch")
    recipe_data.shards(tmp_path / "shards", 12, 10)
    each = 0
    for path in (tmp_path / "shards").iterdir():
        rclone_s3.put(f"persistent/{path.name}", path.read_bytes())
        each = -(-path.stat().st_size // BLOCK) * BLOCK
    growfs.env.update(rclone_s3.env)
    growfs.mount(f"s3://{rclone_s3.bucket}/persistent", "--cache-size", 5 * each, *ONLY_GROWTH)
    growfs.resize(5, each)
    with running("torch_shards.py", growfs, "--workers", 2) as recipe:
        after_growth(growfs, recipe, [5, 12], each)
        # No file is read by both workers.
        assert all(epoch.samples == 10 * epoch.files for epoch in recipe.epochs)
        assert recipe.epochs[-1].count("seen in all") == 12
        listed = {reader["pid"] for reader in growfs.status()["readers"] if reader["listed_at"] is not None}
        assert len(listed) == 2  # the same two from the first epoch to the last


def test_the_prefetcher_reports_both_wait_times(growfs: Growfs, tmp_path: Path) -> None:
    need("torch")
    recipe_data.volumes(tmp_path / "remote", 4, 20)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    with running("torch_prefetch.py", growfs, "--crops", 8, "--workers", 1, epochs=2) as recipe:
        recipe.finish()
        epochs = recipe.epochs
        assert [epoch.about.split()[-1] for epoch in epochs] == ["plain", "prefetched"]
        assert {(epoch.files, epoch.samples) for epoch in epochs} == {(4, 32)}
        assert re.fullmatch(r"wait per step: [\d.]+ ms plain, [\d.]+ ms prefetched\n", recipe.lines[-1])
        assert misses(growfs) == 0


PREFETCHED = """
import runpy, sys, threading, torch
prefetcher = runpy.run_path(sys.argv[1])["Prefetcher"]
cpu = torch.device("cpu")
batches = list(torch.arange(12).view(6, 2))
assert [batch.tolist() for batch in prefetcher(batches, cpu)] == [batch.tolist() for batch in batches]
assert list(prefetcher([], cpu)) == []

def broken():
    yield batches[0]
    raise OSError("the disk is gone")

given = iter(prefetcher(broken(), cpu))
assert next(given) is batches[0]
try:
    next(given)
except OSError as error:
    print("raised:", error)
for batch in prefetcher(batches, cpu):
    break
del batch
print("threads:", threading.active_count())
"""


def test_the_prefetcher_changes_no_batch_and_hides_no_error(tmp_path: Path) -> None:
    need("torch")
    (tmp_path / "prefetched.py").write_text(PREFETCHED)
    words = [str(tmp_path / "prefetched.py"), str(RECIPES / "torch_prefetch.py")]
    done = FORKS.run(words, ENV, START_S)
    assert done.stdout == "raised: the disk is gone\nthreads: 1\n", done.stderr


@contextmanager
def other_node(folder: Path) -> Iterator[Growfs]:
    """A second mount on this machine, which stands for another node."""
    folder.mkdir()
    growfs = Growfs(folder)
    try:
        yield growfs
    finally:
        if mounted_at(growfs.mountpoint):
            growfs.run("umount", growfs.mountpoint, "--lazy", check=False)
    assert "Traceback" not in growfs.log()


def test_nodes_read_disjoint_shares_of_equal_size(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    recipe_data.train_and_val(tmp_path / "remote", 3, 20, 2, 8, 8)
    job = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    job |= {"MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    flags = "--partition", "auto", "--show-files", 16, "--freeze", "val/**", "--cache-size", 20 * BLOCK
    with other_node(tmp_path / "other") as other:
        for number, each in enumerate((growfs, other)):
            each.env.update(GROUP_RANK=str(number), GROUP_WORLD_SIZE="2")
            each.mount(tmp_path / "remote", *flags)
        arguments = "--workers", 0
        with (
            running("torch_nodes.py", growfs, *arguments, env={**job, "RANK": 0}) as first,
            running("torch_nodes.py", other, *arguments, env={**job, "RANK": 1}),
        ):
            first.until(lambda _: sum(epoch.count("new") for epoch in first.epochs) >= 30)  # of 60
            for epoch in first.epochs:
                assert "10 and 10 on each node" in epoch.about
                assert (epoch.files, epoch.samples) == (20, 20)
                assert "validation 6 files" in epoch.about
            assert misses(growfs) == misses(other) == 0
            frozen = {path for path in local(growfs) if path.startswith("val/")}
            assert len(frozen) == 6
            assert frozen < local(other)
            assert len((local(growfs) & local(other)) - frozen) <= 3  # a first file of each class


def test_the_nodes_recipe_without_torchrun_prints_how_to_start_it(tmp_path: Path) -> None:
    need("torchvision")
    env = {name: value for name, value in ENV.items() if name != "LOCAL_RANK"}
    done = FORKS.run([str(RECIPES / "torch_nodes.py"), str(tmp_path)], env, START_S)
    assert done.returncode == 2
    assert "torchrun" in done.stderr.splitlines()[-1]


LIST_NOTHING = """
import runpy, sys
_, folder, *paths = sys.argv
for path in paths:
    sys.argv = [path, folder, *(["--workers", "0"] if "shards" in path or "prefetch" in path else [])]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        print(error)
"""


def test_a_folder_that_lists_nothing_is_named(tmp_path: Path) -> None:
    need("torchvision", "lightning")
    names = "coco_listed", "lightning_reload", "numpy_volumes", "torch_imagefolder", "torch_prefetch", "torch_shards"
    (tmp_path / "program.py").write_text(LIST_NOTHING)
    (tmp_path / "empty").mkdir()
    words = [tmp_path / "program.py", tmp_path / "empty", *(RECIPES / f"{name}.py" for name in names)]
    done = FORKS.run(list(map(str, words)), dict(ENV), START_S)
    printed = done.stdout.splitlines()
    assert len(printed) == len(names), done.stderr
    assert all(f"{tmp_path / 'empty'} lists no " in line for line in printed), printed


def test_lightning_reloads_and_sees_more(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "lightning")
    mount_some(growfs, tmp_path / "remote")
    with running("lightning_reload.py", growfs, "--workers", 0) as recipe:
        check_growth(recipe, growfs)


def test_hugging_face_trainer_lists_again(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "transformers", "accelerate")
    mount_some(growfs, tmp_path / "remote")
    with running("hf_trainer.py", growfs, "--workers", 1) as recipe:
        check_growth(recipe, growfs)


def test_yolo_lists_again_and_finds_every_label(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "ultralytics")
    recipe_data.detection(tmp_path / "remote", train=10, val=2, width=64, height=64)
    each = 2 * BLOCK  # an image and its label
    frozen = 2 * each
    flags = "--group", "{name}", "--freeze", "*/val/**"
    growfs.mount(tmp_path / "remote", "--cache-size", frozen + 4 * each, *flags, *ONLY_GROWTH)
    arguments = "--classes", 2, "--size", 64, "--batch", 4, "--workers", 0
    with running("yolo_relist.py", growfs, *arguments) as recipe:
        for files in (4, 10):
            growfs.run("set", growfs.mountpoint, f"cache-size={frozen + files * each}")
            recipe.until_files(files)
        assert {epoch.count("backgrounds") for epoch in recipe.epochs} == {0}
        assert misses(growfs) == 0


def test_coco_annotations_of_what_is_listed(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision", "pycocotools")
    recipe_data.coco(tmp_path / "remote", "train", 12, 8, 8)
    kept = -(-(tmp_path / "remote/annotations/instances_train.json").stat().st_size // BLOCK)
    flags = "--freeze", "annotations/**", *ONLY_GROWTH
    growfs.mount(tmp_path / "remote", "--cache-size", (kept + 4) * BLOCK, *flags)
    with running("coco_listed.py", growfs, "--split", "train", "--workers", 0) as recipe:
        for files in (4, 12):
            growfs.run("set", growfs.mountpoint, f"cache-size={(kept + files) * BLOCK}")
            recipe.until_files(files)
        assert all(epoch.samples == epoch.files and epoch.count("boxes") == 2 * epoch.files for epoch in recipe.epochs)
        assert recipe.epochs[-1].count("of 12 images so far") == 12
        assert misses(growfs) == 0


def test_a_run_that_resumes_reads_the_rest_of_its_epoch(growfs: Growfs, tmp_path: Path) -> None:
    need("torchvision")
    mount_some(growfs, tmp_path / "remote")
    arguments = "--checkpoint", tmp_path / "run.pt", "--batch", 5, "--workers", 0
    with running("torch_imagefolder.py", growfs, *arguments, "--stop-after", 1, unmounts=False) as recipe:
        recipe.finish()
    growfs.run("evict", growfs.mountpoint, "**")  # all but the last file of each class
    with running("torch_imagefolder.py", growfs, *arguments, epochs=2) as recipe:
        recipe.finish()
        resumed, _ = recipe.epochs
        assert (resumed.number, resumed.files, resumed.samples, resumed.count("before")) == (1, 12, 7, 5)
        assert misses(growfs) > 0
