"""The status: it has every documented field, in the virtual files and in the command alike."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from growfs.status import status_fields
from tests.cli.support import closed
from tests.harness import Growfs, make_tree, until


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growfs]:
    """A mount of two directories of three files of 10,000 bytes, all cached and listed once by this process."""
    folder = tmp_path_factory.mktemp("status")
    growfs = Growfs(folder)
    with closed(growfs):
        make_tree(folder / "remote", directories=2, files=3)
        growfs.mount(folder / "remote", "--settle", "0")
        until(lambda: growfs.status()["state"] == "complete")
        growfs.names()
        (growfs.mountpoint / "class0/0000.bin").read_bytes()
        until(lambda: growfs.status()["opens"]["max"])  # counted every few seconds
        yield growfs


def test_status_has_the_documented_fields(mounted: Growfs) -> None:
    """All that are there on a mount without an outage, skipped files and other nodes."""
    documented = {
        field.path for field in status_fields() if not field.path.startswith(("outage.", "skipped.", "peers."))
    }
    assert set(paths_of({"": status_file(mounted)})) == documented


def paths_of(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of all fields, but not of the opcodes below `requests`."""
    for name, value in tree.items():
        path = f"{prefix}.{name}".lstrip(".")
        inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
        if path and (inner is not value or not isinstance(inner, dict) or path == "requests"):
            yield path
        if isinstance(inner, dict) and path != "requests":
            yield from paths_of(inner, path)


def test_the_figures_are_right(mounted: Growfs) -> None:
    status = mounted.status()
    assert status["url"] == str(mounted.mountpoint.parent / "remote")
    assert status["mountpoint"] == str(mounted.mountpoint)
    assert status["engine"] in ("passthrough", "libfuse")
    assert (status["remote"]["files"], status["remote"]["bytes"], status["remote"]["listed"]) == (6, 60_000, True)
    assert (status["cache"]["files"], status["cache"]["limit_bytes"]) == (6, 1_000_000_000)
    assert status["cache"]["bytes"] == sum(
        path.stat().st_blocks * 512 for path in (mounted.cache / "files").rglob("*") if path.is_file()
    )
    assert status["cache"]["in_flight_bytes"] == status["cache"]["orphan_bytes"] == 0
    assert status["listed"] == {"files": 6, "bytes": 60_000}
    assert (status["fetch"]["files_total"], status["fetch"]["bytes_total"], status["fetch"]["failed"]) == (6, 60_000, 0)
    assert status["opens"]["max"] == 1
    assert (status["opens"]["total"], status["opens"]["bytes_total"]) == (1, 10_000)
    assert status["last_error"] is None
    assert status["skipped"] == []


def test_status_names_the_readers(mounted: Growfs) -> None:
    (reader,) = [reader for reader in mounted.status()["readers"] if reader["pid"] == os.getpid()]
    assert reader["files_shown"] == 6
    assert reader["files_opened"] == 1
    assert reader["listed_at"] > 1e9


def test_every_way_to_the_status_agrees(mounted: Growfs) -> None:
    steady = ("version", "url", "mountpoint", "engine", "seed", "remote", "cache", "state", "pid")
    by_file, by_command = status_file(mounted), mounted.status()
    assert [by_file[key] for key in steady] == [by_command[key] for key in steady]
    lines = (mounted.mountpoint / ".growfs/status").read_text().splitlines()
    assert lines[:5] == mounted.run("status", mounted.mountpoint).stdout.splitlines()[:5]


@pytest.mark.promise(8)
def test_virtual_files_open_by_name_and_are_never_listed(mounted: Growfs) -> None:
    assert not {path for path in mounted.names() if ".growfs" in path}
    assert ".growfs" not in [path.name for path in mounted.mountpoint.iterdir()]
    names = {path.name for path in (mounted.mountpoint / ".growfs").iterdir()}
    assert names == {"status", "status.json", "metrics", "files", "index.csv", "ledger.csv", "log"}
    for name in names:
        assert (mounted.mountpoint / ".growfs" / name).read_bytes()


def test_files_has_a_path_a_line(mounted: Growfs) -> None:
    text = (mounted.mountpoint / ".growfs/files").read_text()
    assert sorted(text.splitlines()) == sorted(mounted.names())


def test_index_is_a_table(mounted: Growfs) -> None:
    rows = list(csv.DictReader(io.StringIO((mounted.mountpoint / ".growfs/index.csv").read_text())))
    assert list(rows[0]) == ["path", "size", "directory", "opens"]
    assert {row["path"] for row in rows} == mounted.names()
    assert all(row["path"].startswith(row["directory"] + "/") and row["size"] == "10000" for row in rows)


def test_metrics_are_openmetrics(mounted: Growfs) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text = (mounted.mountpoint / ".growfs/metrics").read_text()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    figures = {metric.name: metric.samples[0].value for metric in families}
    assert figures["growfs_remote_files"] == figures["growfs_cache_files"] == 6
    assert figures["growfs_remote_listed"] == 1


def test_the_log_has_the_events(mounted: Growfs) -> None:
    assert "listed 6 files" in (mounted.mountpoint / ".growfs/log").read_text()
    assert "listed 6 files" in (mounted.cache / "log").read_text()


@pytest.mark.promise(8)
def test_a_virtual_file_is_fresh_at_each_open(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote")
    assert status_file(growfs)["state"] != "paused"
    growfs.run("pause", growfs.mountpoint)
    assert status_file(growfs)["state"] == "paused"
    assert "paused" in (growfs.mountpoint / ".growfs/status").read_text()


def status_file(growfs: Growfs) -> dict[str, Any]:
    return dict(json.loads((growfs.mountpoint / ".growfs/status.json").read_text()))
