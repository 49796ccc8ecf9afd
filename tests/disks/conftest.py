"""Fixtures of this folder: file systems."""

from __future__ import annotations

from tests.disks.file_systems import make_file_system

__all__ = ["make_file_system"]
