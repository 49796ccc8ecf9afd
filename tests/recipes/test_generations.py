"""The recipes of docs/how-it-decides.md for generations by their paths, as they stand there, and the two ways in which
ranks agree that it names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import namespace
from tests.frameworks.harness import ENV, images
from tests.harness import GROWFS, Growfs
from tests.needs import need

PAGE = Path(__file__).parents[2] / "docs/how-it-decides.md"
SECTION = PAGE.read_text().partition("## Generations by path")[2].partition("\n## ")[0]
RECIPES = re.findall(r"```(?:python|sh)\n(.*?)```", SECTION, re.DOTALL)
AGREE = {
    "broadcast": """
for epoch in range(epochs):
    path = [str(growfs.next_generation(mountpoint)) if rank == 0 else None]
    torch.distributed.broadcast_object_list(path)
    dataset = ImageFolder(path[0], transform)
""",
    "number": """
for epoch in range(epochs):
    dataset = ImageFolder(growfs.next_generation(mountpoint, 1 + epoch), transform)
""",
    "epoch": """
for _ in range(epochs):
    for folder in growfs.epoch(mountpoint):
        dataset = ImageFolder(folder, transform)
""",
}
FILES = 8


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path) -> Growfs:
    images(tmp_path / "remote", classes=2, each=FILES // 2)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    return growfs


def recipe(part: str, growfs: Growfs) -> str:
    """The recipe that contains a text, for this mount."""
    found: list[str] = [text for text in RECIPES if part in text]
    assert len(found) == 1
    return found[0].replace("/mnt/train", str(growfs.mountpoint))


def test_a_container_without_growfs_holds_a_generation_by_a_shell(mounted: Growfs) -> None:
    """In a pid namespace of its own, with nothing but a shell and coreutils."""
    listing = 'find "$2" -type f; readlink /proc/self/fd/5; exit'
    script = f"python() {{ set -- $2 $3; {listing}; }}\n" + recipe("exec 5<", mounted)
    command = ["unshare", "--pid", "--fork", "--mount-proc", "bash", "-euc", script]
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    for number in (1, 1):
        with namespace("", keep=mounted.mountpoint) as prefix:  # --mount-proc makes another, with all mounts
            words = [*prefix, *command]
            done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False)
        if "unshare" in done.stderr:
            pytest.skip(f"this machine allows no pid namespace: {done.stderr}")
        *files, held = done.stdout.splitlines()
        assert held == f"{mounted.mountpoint}/.growfs/generations/{number}", done.stderr
        assert len(files) == FILES
        assert all(file.startswith(held) for file in files)


@pytest.mark.parametrize("how", AGREE)
@pytest.mark.long
def test_ranks_agree(mounted: Growfs, tmp_path: Path, how: str) -> None:
    need("torchvision")
    before = f"""
import pathlib, growfs, torch.distributed
from torchvision.datasets import ImageFolder
torch.distributed.init_process_group("gloo")
mountpoint, rank, transform, epochs = {str(mounted.mountpoint)!r}, torch.distributed.get_rank(), None, 2
"""
    after = "torch.distributed.barrier()\npathlib.Path(f'{rank}.txt').write_text(str(dataset.root))"
    (tmp_path / "train.py").write_text(f"{before}\n{AGREE[how]}\n{after}")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py"]
    env = {**mounted.env, **ENV}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    roots = {(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)}
    expected = 2 if how == "number" else 1  # nothing is new, so only a number begins another one
    assert roots == {f"{mounted.mountpoint}/.growfs/generations/{expected}"}


def test_a_program_that_cannot_be_changed_runs_in_a_generation(mounted: Growfs) -> None:
    words = recipe("torchrun", mounted).split()
    assert words[:2] == ["growfs", "next"]
    place = words.index("--")
    command = [*GROWFS, *words[1 : place + 1], "sh", "-c", "pwd; ls -R ."]
    done = subprocess.run(command, env=mounted.env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(mounted.mountpoint / ".growfs/generations/1")
    assert done.stdout.count(".png") == FILES
    assert os.listdir(mounted.mountpoint / ".growfs/generations") == ["1"]
