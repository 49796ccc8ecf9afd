"""The status: it has every documented field, in the virtual files and in the command alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from growfs.status_and_metrics import status_fields
from tests.cli.support import closed
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree, until


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growfs]:
    """A mount of two directories of three files of 10,000 bytes, all cached and listed once by this process."""
    folder = tmp_path_factory.mktemp("status")
    growfs = Growfs(folder)
    with closed(growfs):
        make_tree(folder / "remote", directories=2, files=3)
        growfs.env[SETUP_VARIABLE] = "from growfs.cache import usage; usage.SAVE_EVERY_S = 0.1"
        growfs.mount(folder / "remote", "--settle", "0")
        until(lambda: growfs.status()["state"] == "complete")
        growfs.names()
        (growfs.mountpoint / "class0/0000.bin").read_bytes()
        until(lambda: growfs.status()["opens"]["max"])
        yield growfs


def test_status_has_the_documented_fields(mounted: Growfs) -> None:
    """Those of a mount that has started, without an outage, skipped files and other nodes."""
    documented = {
        field.path
        for field in status_fields()
        if not field.path.startswith(("exact.", "outage.", "skipped.", "peers.", "start."))
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
    assert (status["remote"]["files"], status["remote"]["bytes"], status["remote"]["listed"]) == (6, 60_000, True)
    assert (status["cache"]["files"], status["cache"]["limit_bytes"]) == (6, 1_000_000_000)
    assert status["cache"]["bytes"] == sum(
        path.stat().st_blocks * 512 for path in (mounted.cache / "files").rglob("*") if path.is_file()
    )
    assert status["cache"]["in_flight_bytes"] == status["cache"]["orphan_bytes"] == 0
    assert status["listed"] == {"files": 6, "bytes": 60_000, "new_files": 0}
    assert (status["fetch"]["files_total"], status["fetch"]["bytes_total"], status["fetch"]["failed"]) == (6, 60_000, 0)
    assert [status["opens"][name] for name in ("max", "total", "bytes_total")] == [1, 1, 10_000]
    assert (status["last_error"], status["skipped"]) == (None, [])


def test_every_way_to_the_status_agrees(mounted: Growfs) -> None:
    steady = ("version", "url", "mountpoint", "engine", "seed", "remote", "cache", "state", "pid")
    by_file, by_command = status_file(mounted), mounted.status()
    assert [by_file[key] for key in steady] == [by_command[key] for key in steady]
    lines = (mounted.mountpoint / ".growfs/status").read_text().splitlines()
    assert lines[:5] == mounted.run("status", mounted.mountpoint).stdout.splitlines()[:5]


def status_file(growfs: Growfs) -> dict[str, Any]:
    return dict(json.loads((growfs.mountpoint / ".growfs/status.json").read_text()))
