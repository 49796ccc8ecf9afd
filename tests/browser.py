"""A real browser, without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import SET_UP

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"Chromium is not installed; {SET_UP}")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000",
)  # fmt: skip


def opened_in_browser(url: str, profile: Path) -> str:
    """The elements of a page after its scripts have run."""
    assert BROWSER
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
