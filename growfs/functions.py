"""A function of the user's: by which name it goes, where it is looked for, and how it is imported.

Only worker processes call one: its module may be slow to import, start threads, or crash. `python -m growfs.functions
NAME FOLDER` ends with a line that says what is wrong, where it cannot be imported.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.errors import UsageError

READY_MADE = "growfs.producers"


@dataclass(frozen=True, slots=True)
class Function:
    """module: its dotted name. folder: where that is looked for first, as it is where Python is started."""

    module: str
    name: str
    folder: str

    @classmethod
    def parse(cls, text: str, folder: str) -> Function:
        """What 'module:function' names; a name alone is one of growfs's own. Raises UsageError."""
        module, _, name = text.rpartition(":")
        if not re.fullmatch(r"\w+", name) or not re.fullmatch(r"(\w+(\.\w+)*)?", module):
            raise UsageError(f"{text!r} is no function; write it as module:function, such as {READY_MADE}:tar")
        return cls(module or READY_MADE, name, folder)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def is_growfs_own(self) -> bool:
        """Whether it comes with growfs."""
        return self.module.partition(".")[0] == "growfs"

    def load(self) -> Callable[..., Any]:
        """Import it. Raises UsageError, whatever the module raises."""
        if not self.is_growfs_own and self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        advice = f"it is looked for in {self.folder}, then on PYTHONPATH and among what is installed"
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise UsageError(f"{self}: there is no module {error.name}; {advice}") from None
        except Exception as error:  # noqa: BLE001 - whatever the user's module does when it is imported
            told = f"{type(error).__name__}: {error}; try: python -c 'import {self.module}'"
            raise UsageError(f"{self}: its module cannot be imported: {told}") from None
        function = getattr(module, self.name, None)
        if not callable(function):
            raise UsageError(f"{self}: {module.__file__ or self.module} has no function {self.name}; check the name")
        loaded: Callable[..., Any] = function
        return loaded

    def code(self) -> str:
        """What differs when the function may have been changed: the digest of its file; growfs's own have none."""
        if self.is_growfs_own:
            return ""
        function = self.load()
        try:
            return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
        except (TypeError, OSError):  # of no Python file
            return ""


if __name__ == "__main__":
    try:
        Function.parse(*sys.argv[1:]).load()
    except UsageError as error:
        sys.exit(str(error))
