"""Epochs for a training loop, of a mount or a filled folder; with --exact, the parts of a pass.

Everything is counted in the process that calls, and goes through paths of the mount. So the ranks of a job need no
agreement, and containers and other users get the same parts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from growfs.client.generation import hold_part, next_generation
from growfs.daemon.control_client import call
from growfs.daemon.place import front_end_at
from growfs.errors import GrowfsError, UsageError
from growfs.paths import absolute_path
from growfs.vfs.attributes import FOLDER_NAME, PARTS, PASSES

OPTIONS = {
    "seed": "--seed",
    "cache_bytes": "--cache-size",
    "part_bytes": "--part-size",
    "partition": "--partition",
    "group": "--group",
}
"""The options that decide which files a part has, by their names in a description of a pass."""

begun = Counter[Path]()
"""How many epochs this process has begun without a number, by path."""


def epoch(path: Path, number: int | None, part: int, catalog: Mapping[str, Any] | None) -> Generator[Path, None, None]:
    """See `growfs.epoch`."""
    path = absolute_path(path).resolve()
    number = pass_number(path, number)
    if not number:
        yield next_generation(path)
        return
    if catalog is not None:
        check(path, number, catalog)
    while part <= describe(path, number)["parts"]:  # until the pass begins, this follows the remote
        folder = _passes(path) / str(number) / str(part)
        front_end = front_end_at(path)
        if not front_end:
            _wait_for(path, folder)
        # Not while the next part is waited for: two ranks at different parts would wait for each other.
        with hold_part(path, front_end.cache, number, part) if front_end else nullcontext():
            yield folder
        part += 1


def position(part: Path, *, next: bool) -> dict[str, Any]:
    """See `growfs.position`."""
    part = absolute_path(part)
    path = part.parents[3 if part.parents[2].name == FOLDER_NAME else 2]
    if part.parent.parent != _passes(path) or not part.name.isdecimal():
        raise GrowfsError(f"{part}: is not a part of a pass; pass a folder that growfs.epoch yielded")
    number = int(part.parent.name)
    return {"number": number, "part": int(part.name) + next, "catalog": describe(path, number)["catalog"]}


def pass_number(path: Path, number: int | None) -> int:
    """The number of a pass, by default of the next one in this process; 0 without --exact. Raises UsageError."""
    if not os.path.isdir(_passes(path)):  # also if the daemon is gone: then `next_generation` says so
        return 0
    if number is None:
        begun[path] += 1
        return begun[path]
    if number < 1:
        raise UsageError(f"number={number}: passes are numbered from 1")
    return number


def _passes(path: Path) -> Path:
    """The folder of passes; there is none without --exact."""
    return path / PASSES if front_end_at(path) else path / FOLDER_NAME / PASSES


def describe(path: Path, number: int) -> dict[str, Any]:
    """How many files each part of a pass has, and what decides which ones."""
    if front_end := front_end_at(path):
        return dict(call(front_end.cache, "describe", answer_s=None, number=number))
    try:
        return dict(json.loads((_passes(path) / str(number) / PARTS).read_bytes()))
    except OSError as error:
        raise GrowfsError(
            f"{path}: pass {number} cannot be divided: {error.strerror}; see growfs status {path}"
        ) from None


def _wait_for(path: Path, part: Path) -> None:
    """Wait until a mount has cached a part."""
    try:
        os.close(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise GrowfsError(f"{part}: cannot be opened: {error.strerror}; see growfs status {path}") from None


def check(path: Path, number: int, then: Mapping[str, Any]) -> None:
    """Raise GrowfsError if the parts of a pass have changed since a position was saved."""
    now = describe(path, number)["catalog"]
    different = [name for name in now if now[name] != then.get(name)]
    if not different:
        return
    options = [f"{OPTIONS[name]} is {now[name]}, but was {then.get(name)}" for name in different if name in OPTIONS]
    remedy = f"begin the next pass with number={number + 1}"
    if options:
        what, remedy = "; ".join(options), "mount with the same options"
    elif "files" in different or "bytes" in different:
        what = (
            f"the remote has {now['files']:,} files ({now['bytes']:,} bytes), but had {then.get('files'):,}"
            f" ({then.get('bytes'):,} bytes)"
        )
    else:
        what = "some files of the remote were replaced, or other files are frozen or pinned"
    raise GrowfsError(
        f"{path}: pass {number} has different parts than when the position was saved: {what}; {remedy}, or omit"
        " catalog= to resume anyway"
    )
