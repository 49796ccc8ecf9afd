"""What growfs makes of the answers of fusermount3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from growfs.errors import GrowfsError
from growfs.fuse import mounting
from growfs.fuse.mounting import MountSpec


@pytest.mark.parametrize("has_profile", [True, False])
def test_a_refusal_by_apparmor_names_the_profile(
    has_profile: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, profile = tmp_path / "bin/fusermount3", tmp_path / "profile"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'fusermount3: mount failed: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    if has_profile:
        profile.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mounting, "APPARMOR_PROFILE", profile)
    spec = MountSpec(Path("/data/train"), tmp_path, allow_other=False, folder=os.open(tmp_path, os.O_PATH))
    with pytest.raises(GrowfsError, match=r"/data/train: fusermount3: mount failed: Permission denied") as refused:
        spec.attach()
    assert ("AppArmor may allow other folders" in str(refused.value)) is has_profile


def test_in_a_chroot_no_file_system_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no mounts outside of it."""
    monkeypatch.setattr(mounting, "mount_rows", list)
    assert mounting.file_system(Path("/data")) == ("", Path("/"))
