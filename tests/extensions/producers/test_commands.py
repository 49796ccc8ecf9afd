"""Producers, where the engine makes no difference: which function runs, and which cache it uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.extensions.producers import producer_functions
from tests.extensions.producers.test_producers import complete
from tests.harness import Growfs, make_tree, until

FUNCTIONS = producer_functions.__file__


@pytest.fixture
def outside(growfs: Growfs, tmp_path: Path) -> Path:
    """A folder that a producer must not write to."""
    folder = tmp_path / "outside"
    folder.mkdir()
    growfs.env[producer_functions.OUTSIDE] = str(folder)
    return folder


@pytest.mark.promise(40)
def test_a_later_try_of_a_failing_producer_succeeds(growfs: Growfs, tmp_path: Path, outside: Path) -> None:
    growfs.tolerate_log = True
    tree = make_tree(tmp_path / "remote", 1, 3, 100)
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:sometimes", "--producer-retries", 10_000, "--no-wait")
    until(lambda: "RuntimeError: not yet, 0000.bin (try 1 of 10001)" in growfs.log())
    for path in tree:
        (outside / Path(path).name).touch()
    assert complete(growfs) == tree


def test_another_producer_has_another_cache(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", 1, 1, 2000)
    backwards = ("--producer", f"{FUNCTIONS}:backwards")
    for more in ((), ("--producer", "growfs.producers:copy"), backwards, (*backwards, "--rename", "{stem}")):
        growfs.mount(tmp_path / "remote", "--no-wait", *more)
        growfs.umount()
    assert sum(path.is_dir() for path in growfs.cache_dir.iterdir()) == 4


@pytest.mark.promise(40)
def test_files_with_equal_output_names_are_skipped_and_reported(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", 2, 2, 1000)
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:backwards", "--rename", "{name}")
    status = growfs.status()
    assert sorted(complete(growfs)) == ["0000", "0001"]
    (skipped,) = status["skipped"]
    assert (skipped["files"], skipped["example"].split("/")[-1]) == (2, "0000.bin")
    assert "--rename" in skipped["reason"]


def test_a_producer_is_imported_from_the_working_directory(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "remote", 1, 1, 10)
    package = tmp_path / "project" / "mine"
    package.mkdir(parents=True)
    (package / "helpers.py").write_text("word = b'helped'\n")
    (package / "shards.py").write_text(
        "from mine.helpers import word\nclass Make:\n    @staticmethod\n    def it(source, out): out.write(word)\n"
    )
    monkeypatch.chdir(package.parent)
    growfs.mount(tmp_path / "remote", "--producer", "mine.shards:Make.it")
    assert set(complete(growfs).values()) == {b"helped"}
    growfs.umount()
    for wrong, why in (("mine.shard:make", "no module mine.shard"), ("mine.shards:make", "has no function make")):
        refused = growfs.mount(tmp_path / "remote", "--producer", wrong, check=False)
        assert refused.returncode == 2
        assert f"{wrong}: " in refused.stderr
        assert why in refused.stderr
        assert str(package.parent) in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.promise(42)
def test_producer_processes_end_with_the_daemon(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "hangs.bin").touch()
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:troubled", "--no-wait", "--producer-timeout", 0)
    until(lambda: "printed over hangs" in growfs.log())
    growfs.kill()
    scratch = [path for path in (growfs.cache / "partial").iterdir() if path.is_dir()]
    assert scratch
    until(lambda: not working_in(scratch[0]))
    growfs.umount()


def working_in(folder: Path) -> list[int]:
    """The processes whose working directory is below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append(int(process.name))
        except OSError:
            continue
    return found
