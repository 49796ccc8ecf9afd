"""Fixtures for tests of single rooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.rooms import Rooms, open_rooms


@pytest.fixture
def rooms(tmp_path: Path) -> Iterator[Rooms]:
    """An empty cache."""
    rooms = open_rooms(tmp_path)
    yield rooms
    rooms.database.close()
