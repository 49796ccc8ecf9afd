"""The status of a real mount: its figures are right, in the virtual files and in the command alike."""

from __future__ import annotations

import json
from pathlib import Path

from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree, until


def test_the_figures_are_right_in_every_way_to_the_status(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.env[SETUP_VARIABLE] = "from growfs.cache import usage; usage.SAVE_EVERY_S = 0.1"
    growfs.mount(tmp_path / "remote", "--settle", "0")
    until(lambda: growfs.status()["state"] == "complete")
    assert len(growfs.names()) == 6
    (growfs.mountpoint / "class0/0000.bin").read_bytes()
    until(lambda: growfs.status()["opens"]["max"])
    status = json.loads((growfs.mountpoint / ".growfs/status.json").read_text())
    assert (status["remote"]["files"], status["remote"]["bytes"], status["remote"]["listed"]) == (6, 60_000, True)
    assert (status["cache"]["files"], status["cache"]["limit_bytes"]) == (6, 1_000_000_000)
    assert status["cache"]["bytes"] == sum(
        path.stat().st_blocks * 512 for path in (growfs.cache / "files").rglob("*") if path.is_file()
    )
    assert status["cache"]["in_flight_bytes"] == status["cache"]["orphan_bytes"] == 0
    assert status["listed"] == {"files": 6, "bytes": 60_000, "new_files": 0}
    assert (status["fetch"]["files_total"], status["fetch"]["bytes_total"], status["fetch"]["failed"]) == (6, 60_000, 0)
    assert [status["opens"][name] for name in ("max", "total", "bytes_total")] == [1, 1, 10_000]
    assert (status["last_error"], status["skipped"]) == (None, [])
    printed = json.loads(growfs.run("status", "--json", growfs.mountpoint).stdout)
    assert printed.keys() == status.keys()
    for name in ("version", "url", "mountpoint", "engine", "seed", "remote", "cache", "state", "pid"):
        assert printed[name] == status[name]
    lines = (growfs.mountpoint / ".growfs/status").read_text().splitlines()
    assert lines[:5] == growfs.run("status", growfs.mountpoint).stdout.splitlines()[:5]
