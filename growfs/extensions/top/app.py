"""Runs `growfs top`: watches mounts, shows frames, and handles the keys.

However the program ends, the terminal is restored, as it is while the program is suspended (Ctrl-Z).
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live

from growfs.extensions.top.view import Shown, TopPage, frame
from growfs.extensions.top.watch import Watch, find_new
from growfs.proc import not_ignored

PAGES = {page.value: page for page in TopPage} | {"\x1b": TopPage.OVERVIEW}  # escape
TURNS = {
    "\t": 1,
    "\x1b[C": 1,  # right
    "n": 1,
    "\x1b[Z": -1,  # shift-tab
    "\x1b[D": -1,  # left
    "p": -1,
}
STEPS = {
    "\x1b[A": -1,  # up
    "k": -1,
    "\x1b[B": 1,  # down
    "j": 1,
    "\x1b[5~": -10,  # page up
    "\x1b[6~": 10,  # page down
    "\x1b[H": -(10**9),  # home
}


def run(mountpoint: Path | None) -> int:
    """Show one mount, or all on this machine, until q; returns the exit code. Without a terminal, show one frame."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # in case the locale has no block characters
    console = Console(highlight=False)
    watches: list[Watch] = []
    find_new(mountpoint, watches)
    keys = _keys() if sys.stdout and sys.stdout.isatty() and not console.is_dumb_terminal else None
    if keys is None:
        _print_once(watches, console)
        return 0
    handled = not_ignored(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    for number in handled:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    shown: Shown | None = Shown()
    try:
        while shown:
            with _screen(console, keys) as live:
                shown = _follow(live, keys, mountpoint, watches, shown)
            if shown:
                os.killpg(0, signal.SIGTSTP)  # returns when the program continues
    except (OSError, termios.error):
        return 128 + signal.SIGHUP  # the window was closed
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)  # one more would interrupt the interpreter's own cleanup
    return 0


def _keys() -> int | None:
    """A descriptor to read keys from: standard input, or else the process's terminal."""
    with suppress(OSError):
        return sys.stdin.fileno() if sys.stdin.isatty() else os.open("/dev/tty", os.O_RDONLY)
    return None


@contextmanager
def _screen(console: Console, keys: int) -> Iterator[Live]:
    """The alternate screen, and a terminal that passes every key on."""
    modes = termios.tcgetattr(keys)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    try:
        tty.setcbreak(keys)
        passing = termios.tcgetattr(keys)
        passing[3] &= ~termios.ISIG  # Ctrl-C and Ctrl-Z are keys
        termios.tcsetattr(keys, termios.TCSADRAIN, passing)
        live.start()
        yield live
    finally:
        with suppress(OSError, termios.error):  # the window was closed
            live.stop()
            termios.tcsetattr(keys, termios.TCSAFLUSH, modes)


def _follow(live: Live, keys: int, mountpoint: Path | None, watches: list[Watch], shown: Shown) -> Shown | None:
    """Show frames. Returns the last view if the program is to be suspended, and None if it is to end."""
    looked_at = time.monotonic()
    while True:
        # To search for new mounts, the command lines of all processes are read.
        if not mountpoint and time.monotonic() - looked_at > 5.0:
            find_new(None, watches)
            looked_at = time.monotonic()
        live.update(frame(watches, shown), refresh=True)
        if not select.select([keys], [], [], 0.5)[0]:
            continue
        pressed = os.read(keys, 1024)
        if not pressed:
            raise OSError("the window was closed")
        for key in re.findall(r"\x1b(?:\[[0-9;]*[A-Za-z~])?|.", pressed.decode(errors="replace"), re.DOTALL):
            if key in ("q", "\x03"):  # Ctrl-C
                return None
            if key == "\x1a":  # Ctrl-Z
                return shown
            shown = after(key, shown, len(watches))


def after(key: str, shown: Shown, mounts: int) -> Shown:
    """The view after a key is pressed."""
    if key in PAGES:
        return replace(shown, page=PAGES[key], row=0)
    if key in TURNS:
        return replace(shown, number=(shown.number + TURNS[key]) % mounts, row=0)
    if key in STEPS:
        step = -STEPS[key] if shown.page is TopPage.EVENTS else STEPS[key]  # up shows earlier ones
        return replace(shown, row=max(0, shown.row + step))
    return shown


def _print_once(watches: list[Watch], console: Console) -> None:
    deadline = time.monotonic() + 3.0  # for the rates, which take two statuses
    while time.monotonic() < deadline and not all(watch.rates or watch.trouble for watch in watches):
        time.sleep(0.05)
    for number in range(len(watches)):
        console.print(frame(watches, Shown(number=number)), height=24)
