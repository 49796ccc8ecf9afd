"""Commands without a MOUNTPOINT, which go to the only mount of this user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from growfs import cli
from growfs.daemon import running as daemons
from growfs.daemon.running import find
from tests.cli.support import NOBODY
from tests.harness import Growfs, make_tree


def test_a_command_goes_to_the_only_mount_of_its_user(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote")
    own = find(growfs.mountpoint)
    of_another, second = replace(own, owner=NOBODY), replace(own, mountpoint=tmp_path)
    found = [of_another, own]
    monkeypatch.setattr(daemons, "running", lambda: found)  # without the mounts of other tests
    for command in ("status", "wait", "pause", "resume", "release"):
        assert str(growfs.mountpoint) in CliRunner().invoke(cli.main, [command]).stdout
    found.append(second)
    refused = CliRunner().invoke(cli.main, ["pause"])
    assert refused.exit_code == 2
    assert f"2 mounts are running; name one: {growfs.mountpoint}, {tmp_path}" in refused.stderr
    found[:] = [of_another]
    assert "no mount of this user is running" in CliRunner().invoke(cli.main, ["status"]).stderr
