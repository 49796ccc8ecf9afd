"""The command that mounts, for programs that run it: its words, a file with its options, and its errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from growfs.errors import GrowfsError, UsageError


def config_text(options: Mapping[str, Any]) -> str:
    """Options by field name, in the form of a file for --config."""
    # JSON's text, numbers, booleans and lists of them are also valid TOML, except for its escapes of surrogates.
    values = {name: json.dumps(value, default=str, ensure_ascii=False) for name, value in options.items()}
    return "".join(f"{name.replace('_', '-')} = {value}\n" for name, value in values.items())


def mount_command(url: str, mountpoint: Path, *flags: str) -> list[str]:
    """The words of a command that mounts."""
    return [sys.executable, "-m", "growfs.cli", "mount", *flags, "--", url, str(mountpoint)]


def mount_error(exit_code: int, errors: str) -> GrowfsError:
    """The error of such a command. errors: what it printed to standard error."""
    message = errors.strip().rpartition("\n")[2].removeprefix("growfs: ")
    if exit_code < 0:
        message = f"the mount command was killed by signal {-exit_code}; check dmesg: memory may have run out"
    return (UsageError if exit_code == UsageError.exit_code else GrowfsError)(message)
