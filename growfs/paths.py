"""Paths as users give them: relative to a home directory, or to the working directory, which may have been deleted."""

from __future__ import annotations

import os
from pathlib import Path

from growfs.errors import UsageError

StrPath = str | os.PathLike[str]
"""A path in either form, as the functions of `os` take it."""


def absolute_path(path: StrPath) -> Path:
    """A path made absolute; ~ stands for the home directory. Raises UsageError if it is relative to nothing."""
    try:
        return Path(path).expanduser().absolute()
    except FileNotFoundError:
        raise UsageError(
            f"{path}: is relative to the working directory, which was deleted; cd to a folder that exists, or use an"
            " absolute path"
        ) from None
    except RuntimeError:
        raise UsageError(f"{path}: there is no such home directory; use an absolute path") from None


def shown_path(path: Path) -> str:
    """An absolute path for people, which `absolute_path` also accepts: ~ stands for the home directory."""
    home = Path(os.path.expanduser("~"))
    is_below = home in path.parents and home.parent != home  # the home of a container's user may be /
    return str("~" / path.relative_to(home)) if is_below else str(path)


def working_folder() -> Path:
    """The working directory; / if it was deleted, where none of the user's files are found either."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")
