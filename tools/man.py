"""Writes the man page, docs/growfs.1, from the help of the commands: python -m tools.man. Format: man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from growfs.cli import main
from tools.benchmarks.measure import ROOT

PAGE = ROOT / "docs/growfs.1"
HEAD = """\
.\\" Written by: python -m tools.man
.TH GROWFS 1 "" growfs "User Commands"
.SH NAME
growfs \\- train on data larger than the local disk
"""
FOOT = """\
.SH ENVIRONMENT
.TP
\\fBGROWFS_\\fIOPTION\\fR
The default of an option of \\fBgrowfs mount\\fR and \\fBgrowfs fill\\fR: \\fBGROWFS_CACHE_SIZE\\fR for
\\fB\\-\\-cache\\-size\\fR.
.SH FILES
.TP
\\fI~/.config/growfs/config.toml\\fR
Options, unless \\fB\\-\\-config\\fR names another file.
.TP
\\fIMOUNTPOINT/.growfs/\\fR
Virtual files and folders: the status, the log, the generations, and the parts of a pass.
.SH EXIT STATUS
0 after success, 1 after a failure, 2 after a usage error, and 130 after Ctrl\\-C.
.SH SEE ALSO
https://github.com/growfs/growfs/tree/main/docs
"""


class Roff(click.HelpFormatter):
    """Writes the help of a command as part of a man page."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The command becomes a section, and its usage the first line."""
        self.write(f".SH {escaped(prog.upper())}\n.B {escaped(prog)}\n{escaped(args)}\n")

    def write_paragraph(self) -> None:
        self.write(".PP\n")

    def write_text(self, text: str) -> None:
        self.write("\n.PP\n".join(escaped(" ".join(part.split())) for part in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        for term, text in rows:
            if "--help" not in term:  # which each command has
                self.write(f".TP\n.B {escaped(term)}\n{escaped(text)}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a subsection, if the block writes anything."""
        before = len(self.buffer)
        yield
        if self.buffer[before:]:
            self.buffer.insert(before, f".SS {escaped(name)}\n")

    @contextmanager
    def indentation(self) -> Iterator[None]:
        self.write_paragraph()
        yield


def escaped(text: str) -> str:
    """Text that roff prints as it is."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)


def commands(context: click.Context) -> Iterator[click.Context]:
    """The command of a context and its subcommands, each before its own."""
    yield context
    if isinstance(group := context.command, click.Group):
        for name in group.list_commands(context):
            if command := group.get_command(context, name):
                yield from commands(command.make_context(name, [], context, resilient_parsing=True))


def page() -> str:
    roff = Roff()
    for context in commands(main.make_context("growfs", [], resilient_parsing=True)):
        context.command.format_help(context, roff)
    return HEAD + roff.getvalue() + FOOT


if __name__ == "__main__":
    PAGE.write_text(page())
