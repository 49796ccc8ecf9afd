"""The operations on the disk of the cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from growfs import disk


def test_a_folder_is_removed_although_another_thread_removes_files_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an eviction does in a generation of a filled folder while that is removed."""
    folder = tmp_path / "generation"
    (folder / "class").mkdir(parents=True)
    files = [folder / "class" / name for name in ("a", "b", "c")]
    for file in files:
        file.write_bytes(b"content")
    unlink = os.unlink

    def unlink_after_another(path: Any, **more: Any) -> None:
        others = [file for file in files if file.exists() and file.name != os.path.basename(path)]
        for other in others[:1]:
            unlink(other)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    disk.remove_tree("GENERATION", folder)
    assert not folder.exists()
    disk.remove_tree("GENERATION", folder)
