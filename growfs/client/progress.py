"""A progress bar, on a terminal and in a notebook."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """A progress bar, removed at the end; nothing where it cannot be drawn. A notebook needs ipywidgets for it.

    It is drawn from the first `show` on: what is done before that needs no bar, and the library takes long to import.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._can_draw = os.isatty(2) or "IPython" in sys.modules
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._drawn[0].stop()

    def show(self, text: str, done: float = 0, total: float | None = None) -> None:
        """Update the bar. Without a total it only shows activity."""
        if self._can_draw:
            self._drawn = self._drawn or self._begin()
            progress, task = self._drawn
            progress.update(task, text=text, completed=done, total=total)

    def _begin(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        can_draw = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
        text = TextColumn("{task.fields[text]}")
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), text, TimeElapsedColumn())
        progress = Progress(*columns, console=console, transient=True, disable=not can_draw)
        progress.start()
        return progress, progress.add_task(self._title, total=None, text="")
