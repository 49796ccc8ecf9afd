"""`Function`: a function of the user, by name; where it is searched for, and how it is imported.

Only worker processes call such a function: its module may be slow to import, start threads, or crash. `python -m
growfs.remote.user_functions NAME FOLDER` prints the problem if it cannot be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growfs.errors import UsageError

_PATTERN = re.compile(r"(?:(.+\.py|\w+(?:\.\w+)*):([^\W\d]\w*(?:\.\w+)*)|(\w+))")


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function. module: a dotted name, or the absolute path of a file. folder: searched first for the
    module, as Python searches the current folder.
    """

    module: str
    name: str
    folder: str

    @classmethod
    def parse(cls, text: str, folder: str) -> Function:
        """Parse 'module:function' or 'file.py:function'; a name alone is one of growfs's own. Raises UsageError."""
        found = _PATTERN.fullmatch(text)
        if not found:
            raise UsageError(f"{text!r} is not a function; use module:function or path/to/file.py:function")
        module = found[1] or "growfs.producers"
        if module.endswith(".py"):
            module = str(Path(folder, Path(module).expanduser()))
        return cls(module, found[2] or found[3], folder)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def is_growfs_own(self) -> bool:
        """Whether it comes with growfs."""
        return self.module.partition(".")[0] == "growfs"

    def load(self) -> Callable[..., Any]:
        """Import it. Any error of the module is raised as a UsageError."""
        advice = f"growfs looks in {self.folder}, then on PYTHONPATH and in the installed packages"
        try:
            module = found = self._import()
            for attribute in self.name.split("."):
                found = getattr(found, attribute, None)
        except FileNotFoundError as error:
            raise UsageError(f"{self}: there is no file {error.filename}") from error
        except ModuleNotFoundError as error:
            raise UsageError(f"{self}: there is no module {error.name}; {advice}") from error
        except Exception as error:
            detail = f"{type(error).__name__}: {error}; try: python -c 'import {Path(self.module).stem}'"
            raise UsageError(f"{self}: its module cannot be imported: {detail}") from error
        if not callable(found):
            raise UsageError(f"{self}: {module.__file__ or self.module} has no function {self.name}; check the name")
        loaded: Callable[..., Any] = found
        return loaded

    def _import(self) -> Any:
        is_file = self.module.endswith(".py")
        folder = str(Path(self.module).parent) if is_file else self.folder
        if not self.is_growfs_own and folder not in sys.path:
            sys.path.insert(0, folder)
        if not is_file:
            return importlib.import_module(self.module)
        spec = importlib.util.spec_from_file_location(Path(self.module).stem, self.module)
        assert spec
        assert spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


if __name__ == "__main__":
    try:
        Function.parse(*sys.argv[1:]).load()
    except UsageError as error:
        sys.exit(str(error))
