"""The progress of a waiting command: a bar on a terminal and in a notebook, elsewhere a line from time to time."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from growfs.daemon.status_text import moving, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from growfs.status_and_metrics import MountStatus


LINE_EVERY_S = 15.0
"""A batch job that waits silently looks as if it hangs."""


class Bar:
    """A progress bar, removed at the end; if it cannot be drawn, a line to stderr every LINE_EVERY_S.

    In a notebook this needs ipywidgets. The bar is drawn from the first `show` on: if all is done before that, none is
    needed, and the library takes long to import.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._can_draw = os.isatty(2) or "IPython" in sys.modules
        self._began = self._said_at = time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._drawn[0].stop()

    def show(self, text: str, done: float = 0, total: float | None = None) -> None:
        """Update the bar. Without a total it only shows activity."""
        text = printable(text)
        if self._can_draw and not self._drawn:
            self._begin()
        if self._drawn:
            progress, task = self._drawn
            progress.update(task, text=text, completed=done, total=total)
        elif time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            # Standard error may be closed.
            click.echo(f"growfs: {self._title} for {self._said_at - self._began:.0f} s: {text}", err=True)

    def show_start(self, status: MountStatus) -> None:
        """Update the bar of a mount that is starting."""
        start = status.start
        self.show(moving(status), start.done if start else 0, start.needed if start else None)

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._can_draw = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
        if not self._can_draw:
            return
        text = TextColumn("{task.fields[text]}", markup=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), text, TimeElapsedColumn())
        progress = Progress(*columns, console=console, transient=True)
        progress.start()
        self._drawn = progress, progress.add_task(self._title, total=None, text="")
