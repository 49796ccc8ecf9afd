"""The fixtures of tests with real mounts, and of single components."""

from tests.fuse.conftest import engine, growfs, other, pytest_generate_tests, reader, server
from tests.unit.conftest import cache, clock

__all__ = ["cache", "clock", "engine", "growfs", "other", "pytest_generate_tests", "reader", "server"]
