"""A progress bar, on a terminal and in a notebook."""

from __future__ import annotations

from importlib.util import find_spec


class Bar:
    """A progress bar, removed at the end; nothing where it cannot be drawn. A notebook needs ipywidgets for it."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        can_draw = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
        text = TextColumn("{task.fields[text]}")
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), text, TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not can_draw)
        self._task = self._progress.add_task(title, total=None, text="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, text: str, done: float = 0, total: float | None = None) -> None:
        """Update the bar. Without a total it only shows activity."""
        self._progress.update(self._task, text=text, completed=done, total=total)
