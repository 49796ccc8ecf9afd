"""`growfs cache`: which caches there are, and how they are removed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from growfs import cli
from growfs.daemon import options
from tests.cli.support import assert_refused, other_user
from tests.harness import Growfs, make_tree


def caches(growfs: Growfs) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(growfs.run("cache", "list", growfs.cache_dir, "--json").stdout)
    return rows


def test_caches_are_listed_with_their_use_and_removed_when_they_have_none(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caches(growfs) == []
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    (row,) = caches(growfs)
    assert (row["path"], row["url"]) == (str(growfs.cache), str(tmp_path / "remote"))
    assert row["mountpoint"] == str(growfs.mountpoint)
    growfs.env["GROWFS_CACHE_DIR"] = os.path.relpath(growfs.cache_dir)
    table = growfs.run("cache", "list").stdout.splitlines()
    assert table[0].split() == ["CACHE", "URL", "SIZE", "LAST", "USED", "IN", "USE"]
    assert os.path.relpath(growfs.cache) in table[1]
    monkeypatch.setattr(options, "DEFAULT_CACHE_DIR", str(growfs.cache_dir))
    assert str(growfs.cache) in CliRunner().invoke(cli.main, ["cache", "list"]).output
    refused = growfs.run("cache", "remove", growfs.cache, check=False)
    assert_refused(refused, f"{growfs.cache}: in use; unmount it first: growfs umount {growfs.mountpoint}")
    assert growfs.content() == tree
    cache = growfs.cache
    growfs.umount()
    (row,) = caches(growfs)
    assert (row["bytes"], row["mountpoint"]) == (6 * 12_288, None)
    growfs.run("cache", "remove", cache)
    assert not cache.exists()
    assert caches(growfs) == []


def test_prune_removes_what_is_old_and_nothing_else(growfs: Growfs, tmp_path: Path) -> None:
    kept, old = list[Path](), list[Path]()
    for name, age_s in (("new", 0), ("old", 40 * 86_400)):
        make_tree(tmp_path / name, directories=1, files=1)
        growfs.mount(tmp_path / name, "--wait-files", 1)
        (cache,) = {Path(row["path"]) for row in caches(growfs)} - {*kept, *old}
        growfs.umount()
        log = growfs.cache_dir / f"{name}-0123abcd.log"
        log.write_text("")
        for path in (cache / "lock", log):
            os.utime(path, (path.stat().st_mtime - age_s,) * 2)
        (old if age_s else kept).extend([cache, log])
    (growfs.cache_dir / "other").mkdir()
    others = [growfs.cache_dir / name for name in ("train.log", "train-20261015.log")]
    for path in others:
        path.touch()
        os.utime(path, (0, 0))
    kept += [growfs.cache_dir / "other", *others]
    asked = growfs.run("cache", "prune", growfs.cache_dir, check=False)
    assert asked.returncode == 1, "nobody has answered"
    assert all(str(path) in asked.stdout for path in old)
    assert not any(str(path) in asked.stdout for path in kept)
    assert all(path.exists() for path in old)
    growfs.run("cache", "prune", growfs.cache_dir, "--yes")
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)
    assert "nothing in " in growfs.run("cache", "prune", growfs.cache_dir).stdout


def test_caches_of_other_users_are_left_out() -> None:
    """In a directory that users share."""
    with other_user() as user:
        other = user.folder / "shared" / "other"
        other.mkdir(mode=0o700, parents=True)
        (other / "catalog.sqlite").touch()
        done = user.run("cache", "list", other.parent)
        assert (done.returncode, done.stderr) == (0, "")
        assert_refused(user.run("cache", "remove", other), "other: is not a cache")


def test_only_a_cache_is_removed(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    assert_refused(growfs.run("cache", "remove", tmp_path / "precious", check=False), "precious: is not a cache")
    (tmp_path / "precious/catalog.sqlite").write_bytes(b"something else, that is longer than a header" * 100)
    assert_refused(growfs.run("cache", "remove", tmp_path / "precious", check=False), "precious")
    assert (tmp_path / "precious/catalog.sqlite").exists()
    (tmp_path / "train.log").touch()
    assert_refused(growfs.run("cache", "remove", tmp_path / "train.log", check=False), "train.log: is not a cache")
    assert (tmp_path / "train.log").exists()
