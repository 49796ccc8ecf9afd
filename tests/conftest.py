"""Fixtures and settings for all tests."""

import gc
import os
import signal

import pytest
from hypothesis import settings

from growfs.workers.process import KEEP_PRIORITY_VARIABLE
from tests.harness import daemons_are_forked, engine, growfs
from tests.inventories import inventories
from tests.run_folder import RunFolder
from tests.servers import certificate, http_folder, moto_s3, rclone_s3
from tests.store_servers import azure_store, azurite, gcs_endpoint, google_store, hub_store, nginx

__all__ = [
    "azure_store",
    "azurite",
    "certificate",
    "daemons_are_forked",
    "engine",
    "gcs_endpoint",
    "google_store",
    "growfs",
    "http_folder",
    "hub_store",
    "inventories",
    "moto_s3",
    "nginx",
    "rclone_s3",
]

settings.register_profile("whole", deadline=None, max_examples=50)  # a busy machine is slow, not wrong
settings.register_profile("quick", deadline=None, max_examples=15)  # tools/test --quick
settings.register_profile("long", deadline=None, max_examples=2_000)  # tools/test --long
settings.load_profile("whole")

os.environ[KEEP_PRIORITY_VARIABLE] = "1"

# A shell makes its background jobs ignore the first two, and nohup(1) the third. So would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

FOLDER = pytest.StashKey[RunFolder]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run, unless this is a worker, and have tmp_path be below it."""
    if not hasattr(config, "workerinput"):
        config.stash[FOLDER] = RunFolder()
        config.option.basetemp = config.option.basetemp or str(config.stash[FOLDER].path / "t")


def pytest_collection(session: pytest.Session) -> None:
    """Look for no garbage among the thousands of objects that collection makes: they all stay."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Look at the result before the folder is removed."""
    if FOLDER in session.config.stash:
        session.config.stash[FOLDER].is_kept = exitstatus == pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder, after all fixtures and workers have ended."""
    if FOLDER in config.stash:
        config.stash[FOLDER].close()
