"""Prints checks as they come: aligned and coloured on a terminal; in a pipe plain, and each on one line."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from growfs.doctor.check import Check, Level

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
LEVEL_CHARS, NAME_CHARS = 7, 12
PIPE_CHARS = 100_000


class Printer:
    """Prints to standard output. Meanwhile, a terminal shows what is being done."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=PIPE_CHARS, color_system=None)
        self._section = ""
        self._status = self._console.status("")

    def __enter__(self) -> Printer:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, doing: str) -> None:
        """Say what is being done."""
        self._status.update(Text(doing))

    def print(self, section: str, check: Check) -> None:
        """Print a check, after the title of its section if it is the first one there."""
        if section != self._section:
            self._console.print(*([""] if self._section else []), Text(section, "bold"), sep="\n")
            self._section = section
        row = Table.grid(padding=(0, 1))
        row.add_column(width=LEVEL_CHARS)
        row.add_column(width=NAME_CHARS)
        row.add_column()
        row.add_row(Text(check.level.value, STYLES[check.level]), check.name, self._text(check))
        self._console.print(row)

    def _text(self, check: Check) -> Text:
        if not check.remedy:
            return Text(check.text)
        if not self._console.is_terminal:
            return Text(f"{check.text}; {check.remedy}")
        return Text.assemble(check.text, "\n", (f"-> {check.remedy}", "cyan" if check.level is Level.OK else "bold"))

    def conclude(self, failures: list[str], warnings: list[str]) -> None:
        """Print the last line. failures, warnings: the names of the checks that found them."""
        text = Text("Mounting would work", STYLES[Level.OK])
        if failures:
            text = Text(f"Mounting would fail: {', '.join(failures)}", STYLES[Level.FAILURE])
        elif warnings:
            text = Text(f"Mounting would work, with a warning: {', '.join(warnings)}", STYLES[Level.WARNING])
        self._console.print("", text, sep="\n")
