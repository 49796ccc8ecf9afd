"""The fixtures of tests with real mounts."""

from tests.fuse.conftest import engine, growfs, pytest_generate_tests, reader

__all__ = ["engine", "growfs", "pytest_generate_tests", "reader"]
