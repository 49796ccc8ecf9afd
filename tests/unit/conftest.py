"""Fixtures for tests of single components."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing

from tests.unit.local_cache import LocalCache, open_local_cache


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[LocalCache]:
    cache = open_local_cache(tmp_path)
    yield cache
    cache.database.close()


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """A clock that jumps ahead whenever all tasks wait."""
    return autojump_clock
