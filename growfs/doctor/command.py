"""`diagnose`: runs an examination, and prints it."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import click

from growfs.daemon.options import Options
from growfs.doctor.check import Level
from growfs.doctor.examination import Effort, Examination
from growfs.doctor.printer import Printer


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
