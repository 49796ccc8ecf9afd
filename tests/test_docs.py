"""What the documents say of options, verbs, virtual files and status is what the program has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from growfs.cli import main
from growfs.config import Options, flag_name
from growfs.virtual import RecentLog, virtual_files

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def option_rows() -> Iterator[str]:
    """The lines of the README's table of options."""
    for row in fields(Options):
        meta = row.metadata
        value = f" {meta['metavar']}" if "metavar" in meta else ""
        default = f"`{meta['default']}`" if meta.get("default") else ""
        cells = (f"`{flag_name(row.name)}{value}`", default, meta["help"])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def test_every_option_is_in_the_readme_as_in_its_help() -> None:
    table = [line for line in README.splitlines() if line.startswith("| `--")]
    assert table == list(option_rows())


def test_every_verb_is_in_the_readme() -> None:
    told = set(re.findall(r"`([a-z]+)(?: MOUNTPOINT[^`]*)?`", README)) | set(re.findall(r"`growfs ([a-z]+)", README))
    assert set(main.commands) <= told


def test_every_virtual_file_is_in_the_readme() -> None:
    async def nothing() -> dict[str, Any]:
        return {}

    rows = virtual_files(Path(), nothing, RecentLog())
    assert {row.name for row in rows} == set(re.findall(r"\| `\.growfs/([\w.]+)`", README))


def test_every_option_that_can_be_set_is_named_in_the_readme() -> None:
    (line,) = (line for line in README.splitlines() if "`growfs set MOUNTPOINT" in line)
    assert all(flag_name(row.name)[2:] in line for row in fields(Options) if row.metadata["live"])


def test_every_error_number_of_a_miss_is_in_the_semantics() -> None:
    semantics = (ROOT / "SEMANTICS.md").read_text()
    assert all(f"| {name} |" in semantics for name in ("EIO", "ETIMEDOUT", "EFBIG", "ENOSPC", "ENOENT"))
