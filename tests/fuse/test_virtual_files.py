"""`.growfs/` opens by name and is in no listing; each of its files has the documented content."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import Library
from tests.harness import Growfs, make_tree, until

NAMES = {"status", "status.json", "metrics", "files", "index.csv", "ledger.csv", "log"}


@pytest.mark.promise(8)
def test_the_folder_is_unlisted_and_opens_by_name(library: Library) -> None:
    control = library.path / ".growfs"
    assert ".growfs" not in os.listdir(library.path)
    found = subprocess.run(["find", library.path], check=True, capture_output=True, timeout=60).stdout
    assert b".growfs" not in found
    assert control.is_dir()
    assert set(os.listdir(control)) - {"current"} == {*NAMES, "generations"}
    assert all((control / name).is_file() and (control / name).read_bytes() for name in NAMES)
    assert {(control / name).stat().st_size for name in NAMES} == {0}
    with pytest.raises(FileNotFoundError):
        (control / "nothing").open()
    with pytest.raises(FileNotFoundError):
        (library.path / "sizes" / ".growfs").stat()


def test_a_listing_does_not_stop_the_times_of_its_files(library: Library) -> None:
    control = library.path / ".growfs"
    os.listdir(control)
    before = (control / "status").stat().st_mtime_ns
    until(lambda: (control / "status").stat().st_mtime_ns > before)


@pytest.mark.promise(8, 31)
def test_a_remote_folder_of_that_name_is_skipped_and_reported(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1)
    (tmp_path / "remote" / ".growfs").mkdir()
    (tmp_path / "remote" / ".growfs" / "status").write_text("not ours")
    growfs.mount(tmp_path / "remote")
    assert "not ours" not in (growfs.mountpoint / ".growfs/status").read_text()
    assert [skip["reason"] for skip in growfs.status()["skipped"]] == [".growfs is reserved"]


def test_status_is_readable_text_and_json_that_agrees_with_the_command(library: Library, engine: str) -> None:
    text = (library.path / ".growfs/status").read_text()
    for word in (str(library.remote), str(library.path), f"{len(library.tree)} files", "complete", engine):
        assert word in text
    from_file = json.loads((library.path / ".growfs/status.json").read_text())
    from_command = library.growfs.status()
    assert from_file.keys() == from_command.keys()
    for key in ("url", "mountpoint", "pid", "state", "remote", "cache", "seed"):
        assert from_file[key] == from_command[key]
    assert from_file["remote"]["files"] == from_file["cache"]["files"] == len(library.tree)
    assert from_file["remote"]["bytes"] == sum(map(len, library.tree.values()))


def test_metrics_are_openmetrics(library: Library) -> None:
    text = (library.path / ".growfs/metrics").read_text()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples["growfs_cache_files"] == len(library.tree)
    assert samples["growfs_remote_bytes"] == sum(map(len, library.tree.values()))
    assert samples["growfs_fetch_failed_total"] == 0


def index(mountpoint: Path) -> list[dict[str, str]]:
    with (mountpoint / ".growfs/index.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.promise(5)
def test_files_and_index_have_the_listed_paths(library: Library) -> None:
    text = (library.path / ".growfs/files").read_text()
    assert all(f"{path}\n" in text for path in library.tree)
    assert len(text.encode()) == sum(len(path.encode()) + 1 for path in library.tree)
    rows = index(library.path)
    assert list(rows[0]) == ["path", "size", "directory", "opens"]
    assert {row["path"]: int(row["size"]) for row in rows} == {
        path: len(content) for path, content in library.tree.items()
    }
    assert all(row["directory"] == row["path"].rpartition("/")[0] for row in rows)


def test_index_counts_opens(growfs: Growfs, tmp_path: Path) -> None:
    growfs.env[SETUP_VARIABLE] = "from growfs.cache import usage; usage.SAVE_EVERY_S = 0.1"
    tree = make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote")
    for path in tree:
        for _ in range(int(path[-5]) + 1):
            (growfs.mountpoint / path).read_bytes()

    def opens() -> dict[str, int]:
        return {row["path"]: int(row["opens"]) for row in index(growfs.mountpoint)}

    until(lambda: opens() == {path: int(path[-5]) + 1 for path in tree})
    until(lambda: growfs.status()["opens"]["max"] == 3)
    assert growfs.status()["opens"]["mean"] == 2


def test_the_log_has_the_last_lines_of_all_output(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote")
    log, shown = growfs.cache / "log", growfs.mountpoint / ".growfs/log"
    assert "listed 2 files" in shown.read_text()
    log.with_name("log.1").write_bytes(b"before the rotation\n")
    assert shown.read_bytes() == b"before the rotation\n" + log.read_bytes()
    with log.open("a") as output:
        output.write("printed, \xff, by the daemon\n" * 1500)
    assert shown.read_bytes().splitlines() == [b"printed, \xc3\xbf, by the daemon"] * 1000


@pytest.mark.promise(8)
def test_each_open_reads_a_snapshot_of_its_own(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote", "--settle", "0")
    control = growfs.mountpoint / ".growfs"
    with (control / "status.json").open("rb") as file:
        beginning = file.read(10)
        (growfs.mountpoint / "class0/0000.bin").read_bytes()
        os.listdir(growfs.mountpoint)
        rest = file.read()
        assert json.loads(beginning + rest)["generation"] == 0
        file.seek(5)
        assert file.read() == (beginning + rest)[5:]
        assert os.pread(file.fileno(), 100, 1 << 20) == b""
    assert json.loads((control / "status.json").read_text())["generation"] == 1


def test_ordinary_programs_read_virtual_files(library: Library) -> None:
    file = library.path / ".growfs/files"
    for command in (["cat"], ["head", "-c", "1000000"], ["grep", ""]):
        output = subprocess.run([*command, file], check=True, capture_output=True, timeout=60).stdout
        assert output.splitlines() == file.read_bytes().splitlines(), command
