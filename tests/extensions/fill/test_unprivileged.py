"""A user without any privilege, on a machine without FUSE, trains on a folder that grows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.support import NOBODY, namespace, other_user

CACHE_BYTES = 60 * 4096

PROGRAM = """
import os, sys, time
import growfs

folder, reads = sys.argv[1:]
names, trees = set(), set()
while len(trees) < 3 or len(names) <= 60:
    path = growfs.next_generation(folder)
    trees.add(path)
    if reads == "ImageFolder":
        import torch, torchvision
        data = torchvision.datasets.ImageFolder(path, torchvision.transforms.ToTensor())
        assert data.class_to_idx == {"cat": 0, "dog": 1}
        model = torch.nn.Linear(3 * 8 * 8, 2)
        for images, labels in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1):
            torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
        read = {os.path.relpath(name, path) for name, _ in data.samples}
    else:
        read = {f"{kind}/{name}" for kind in os.listdir(path) for name in os.listdir(path / kind)}
        for name in read:
            (path / name).read_bytes()
    names |= read
    time.sleep(0.3)
print(len(trees), len(names))
"""


@pytest.mark.promise(43, 44)
@pytest.mark.parametrize("reads", ["plain files", pytest.param("ImageFolder", marks=pytest.mark.long)])
def test_nobody_trains_without_fuse(reads: str, tmp_path: Path) -> None:
    without_fuse = f"touch {tmp_path}/fuse; mount --bind {tmp_path}/fuse /dev/fuse"
    with other_user() as user, namespace(without_fuse) as user.before:
        for kind in ("cat", "dog"):
            (user.folder / "remote" / kind).mkdir(parents=True)
            for number in range(60):
                Image.new("RGB", (8, 8), (number, 0, 0)).save(user.folder / "remote" / kind / f"{number:03}.png")
        (user.folder / "train").mkdir()
        os.chown(user.folder / "train", NOBODY, NOBODY)
        folder = user.folder / "train"
        user.prefix = (shutil.which("setpriv") or "setpriv", "--no-new-privs", *user.prefix[1:])
        assert "growfs fill" in user.run("mount", user.folder / "remote", folder).stderr
        done = user.run("fill", user.folder / "remote", folder, "--cache-size", CACHE_BYTES, "--turnover", "40%")
        assert (done.returncode, done.stderr) == (0, "")
        shim = str(Path(__file__).parents[2] / "frameworks" / "shim")
        user.env["PYTHONPATH"] = os.pathsep.join(filter(None, (shim, user.env.get("PYTHONPATH"))))
        trained = user.run_program(user.python, "-c", PROGRAM, folder, reads)
        stopped = user.run("stop", folder)
        assert trained.returncode == 0, trained.stderr
        generations, files = map(int, trained.stdout.split())
        assert generations >= 3
        assert files > 60
        assert stopped.returncode == 0
