"""Epochs for a training loop, of a mount or a filled folder; with --exact, their parts, and the position.

A program asks for the next part by reading a file of the mount, which works for all users and in containers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growfs.client.generation import next_part as next_part_of_folder
from growfs.daemon.control_client import call
from growfs.daemon.running import find_living
from growfs.errors import GrowfsError
from growfs.folder.layout import cache_of
from growfs.paths import absolute_path
from growfs.vfs.attributes import FOLDER_NAME, NEXT_PART


def epoch(path: Path) -> Iterator[Path]:
    """See `growfs.epoch`."""
    path = absolute_path(path)
    while True:
        folder, answer = _next_part(path)
        yield folder
        if answer.get("part") == answer.get("parts"):  # without --exact, an epoch has one part
            return


def _next_part(path: Path) -> tuple[Path, dict[str, int]]:
    """Begin the next part, or without --exact the next generation, for this process; also returns its numbers."""
    if cache_of(path):
        folder, answer = next_part_of_folder(path)
        if not answer:
            raise GrowfsError(f"{path}: its daemon does not answer, so no part can begin; see growfs status {path}")
        return folder, answer
    try:
        return path, dict(json.loads(Path(path, FOLDER_NAME, NEXT_PART).read_bytes()))
    except FileNotFoundError:
        return next_part_of_folder(path)
    except OSError as error:
        raise GrowfsError(f"{path}: its next part cannot be read: {error.strerror}; see growfs status") from None


def _not_exact(path: Path) -> GrowfsError:
    return GrowfsError(f"{path}: has no passes; mount it with --exact")


def position(path: Path, *, next: bool = False) -> dict[str, Any]:
    """See `growfs.position`."""
    status = _status(absolute_path(path))
    exact = status.get("exact")
    if exact is None:
        raise _not_exact(path)
    if not exact["parts"]:
        raise GrowfsError(f"{path}: its first pass has not begun; wait until training can start: growfs wait {path}")
    is_coming = next or not exact["part"]
    number = exact["next_pass"] if is_coming else exact["pass"]
    catalog = {name: exact[f"catalog_{name}"] for name in ("files", "bytes", "digest")}
    return {
        "seed": status["seed"],
        "pass": number,
        "part": exact["next_part"] if is_coming else exact["part"],
        "cache_bytes": exact["cache_bytes"],
        "part_bytes": exact["part_bytes"],
        "partition": status["partition"],
        "group": exact["group"],
        "catalog": catalog if number == exact["pass"] else None,
    }


def _status(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(path, FOLDER_NAME, "status.json").read_bytes()))
    except (OSError, ValueError):  # of `growfs fill`, or not mounted
        return dict(call(find_living(path).cache, "status"))


def resume(path: Path, position: dict[str, Any], *, force: bool = False) -> None:
    """See `growfs.resume`."""
    path = absolute_path(path)
    if _status(path).get("exact") is None:
        raise _not_exact(path)
    call(find_living(path).cache, "go_to", position=position, force=force)
