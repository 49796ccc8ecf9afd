"""Extensions and optional engines can be deleted: what remains is a growfs without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import growfs as api
from growfs.extensions import ALL, MOUNT, REMOTE
from tests.harness import Growfs, make_tree, usable_engine

PACKAGE = Path(api.__file__).parent
WITHOUT_A_LINE = {"fstab"}  # the package's entry point calls it


def test_each_extension_has_a_line() -> None:
    folders, commands = (
        {path.parent.name for path in (PACKAGE / "extensions").glob(f"*/{name}.py")} for name in ("__init__", "command")
    )
    assert commands == {extension for _, extension in ALL.values()}
    assert folders == commands | {*MOUNT, *REMOTE, *WITHOUT_A_LINE}


def test_growfs_mounts_without_any_extension_or_other_engine(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "code/growfs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "code/growfs/version.py").write_text('__version__ = "0.without"\n')
    extensions = tmp_path / "code/growfs/extensions"
    shutil.rmtree(extensions)
    extensions.mkdir()
    (extensions / "__init__.py").write_text("ALL, MOUNT, REMOTE, FRONT_ENDS = {}, {}, (), ()\n")
    engine = usable_engine("either", tmp_path)
    shutil.rmtree(tmp_path / "code/growfs/fuse/links")
    others = ["fuse/libfuse.py"] if engine == "passthrough" else []
    for file in ("vfs/open_counter.py", "vfs/file_events.py", *others):
        (tmp_path / "code/growfs" / file).unlink()
    monkeypatch.chdir(tmp_path / "code")  # where python -m looks first
    growfs.starts_python = True
    growfs.env["PYTHONPATH"] = str(tmp_path / "code")
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.mount(tmp_path / "remote", "--engine", engine)
    assert growfs.content() == tree
    status = growfs.status()
    assert (status["version"], status["cache"]["files"]) == ("0.without", len(tree))
    generation = Path(growfs.run("next", growfs.mountpoint).stdout.strip())
    assert sorted(path.name for path in generation.iterdir()) == sorted({path.split("/")[0] for path in tree})
    shown = growfs.run("--help").stdout
    assert "umount" in shown
    assert not any(f"  {name} " in shown for name in ALL)
    for flag in ("--exact", "--manifest", "--members", "--producer"):
        refused = growfs.run("mount", "s3://bucket", "mnt", flag, check=False).stderr
        assert "No such option" in refused
        assert flag in refused
