"""Runs `growfs top`: watches mounts, shows frames, and follows the keys."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag

from rich.console import Console

from growfs.client.top.terminal import Ended, Terminal
from growfs.client.top.view import Shown, TopPage, frame
from growfs.client.top.watch import Watch, Watches

REDRAW_S = 1.0
FIND_S = 5.0
"""New mounts are looked for so often; that reads the command lines of all processes."""
FIRST_S = 3.0
"""A single frame shows the rates between two statuses. They take so long at most."""
PAGES = {page.value: page for page in TopPage}
STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10, "home": -(10**9)}
TURNS = {"tab": 1, "right": 1, "n": 1, "backtab": -1, "left": -1, "p": -1}


def run(mountpoint: Path | None) -> int:
    """Show a mount, or all of this machine, until q; returns the exit code. One frame where no terminal is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the locale has no block characters
    console = Console(highlight=False)
    try:
        terminal = Terminal(console) if sys.stdout.isatty() and not console.is_dumb_terminal else None
    except OSError:
        terminal = None
    if terminal is None:
        _print_once(mountpoint, console)
        return 0
    watches = Watches(mountpoint, terminal.wake)
    try:
        with terminal:
            _follow(terminal, watches)
    except Ended as ended:
        return ended.code
    finally:
        watches.stop()
    return 0


def _follow(terminal: Terminal, watches: Watches) -> None:
    shown = Shown()
    looked_at = time.monotonic()
    while True:
        if time.monotonic() - looked_at > FIND_S:
            watches.find_more()
            looked_at = time.monotonic()
        terminal.show(frame(list(watches), shown, *terminal.console.size))
        for key in terminal.wait(REDRAW_S):
            if key == "q":
                return
            shown = after(key, shown, len(watches))


def after(key: str, shown: Shown, mounts: int) -> Shown:
    """What is shown after a key is pressed."""
    if key in PAGES:
        return replace(shown, page=PAGES[key], row=0)
    if key == "escape":
        return replace(shown, page=TopPage.OVERVIEW, row=0)
    if key in TURNS:
        return replace(shown, number=(shown.number + TURNS[key]) % mounts, row=0)
    if key in STEPS:
        step = -STEPS[key] if shown.page is TopPage.EVENTS else STEPS[key]  # up shows earlier ones
        return replace(shown, row=max(0, shown.row + step))
    return shown


def _print_once(mountpoint: Path | None, console: Console) -> None:
    changed = Flag()
    watches = Watches(mountpoint, changed.set)
    deadline = time.monotonic() + FIRST_S
    while time.monotonic() < deadline and not all(len(watch.samples) > 1 or watch.trouble for watch in watches):
        changed.wait(REDRAW_S)
        changed.clear()
    watches.stop()
    width, height = console.width, 24
    for number in range(len(watches)):
        console.print(frame(list(watches), Shown(number=number), width, height), height=height)


def picture(watches: Iterable[Watch], shown: Shown, width: int, height: int) -> str:
    """A frame as an SVG, for documents."""
    console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(frame(list(watches), shown, width, height), height=height)
    return console.export_svg(title="growfs top")
