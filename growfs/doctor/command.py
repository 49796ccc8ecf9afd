"""`diagnose`: runs an examination, and prints its checks as they come.

They are aligned and colored on a terminal; in a pipe they are plain, and each on one line.
"""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growfs.daemon.options import Options
from growfs.doctor.check import Check, Level
from growfs.doctor.examination import Effort, Examination

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
LEVEL_CHARS, NAME_CHARS = 7, 12
PIPE_CHARS = 100_000


def diagnose(url: str | None, mountpoint: Path | None, options: Options, effort: Effort, as_json: bool) -> int:
    """Print what is found, and return the exit code: 1 where a mount would fail. Raises UsageError."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that nothing is left behind
        signal.signal(number, signal.default_int_handler)
    if as_json:
        examination = Examination(url, mountpoint, options, effort)
        with closing(examination.run()) as found:
            list(found)
        click.echo(json.dumps(examination.report(), indent=1))
    else:
        with Printer() as printer:
            examination = Examination(url, mountpoint, options, effort, printer.show)
            with closing(examination.run()) as found:
                for section, check in found:
                    printer.print(section, check)
        printer.conclude(examination.named(Level.FAILURE), examination.named(Level.WARNING))
    return 1 if examination.named(Level.FAILURE) else 0


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
