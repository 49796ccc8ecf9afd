"""A test whose module or program is missing is skipped, with a line that says what installs it."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

SET_UP = "tools/setup test installs it"
EXTRAS = {
    "nvidia": "pip install '.[dali]'",
    "opencensus": "pip install 'ray[default]'",
    "pydantic": "pip install 'ray[train]'",
    "ray": "pip install '.[ray]'",
    "transformers": "pip install '.[trainers]'",
    "ultralytics": "pip install '.[trainers]'",
}
"""What installs the packages that are too large for the extra `test`."""


def need(*modules: str) -> None:
    """Skip unless each of these modules is installed."""
    for module in modules:
        package = module.partition(".")[0]  # find_spec imports it
        if find_spec(package) is None or find_spec(module) is None:
            pytest.skip(f"{module} is not installed; {EXTRAS.get(package, SET_UP)}", allow_module_level=True)


def use(module: str) -> Any:
    """Import this module, or skip if it is not installed."""
    need(module)
    return import_module(module)


def need_programs(*names: str, by: str = SET_UP) -> None:
    """Skip unless each of these programs is installed. by: what installs them."""
    for name in names:
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed; {by}")
