"""The terminal while a full-screen program runs: its modes, the alternate screen, keys and signals.

Whatever ends the program, the terminal is left as it was; also while it is suspended (Ctrl-Z).
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from contextlib import suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

READ_BYTES = 1024
KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
KEYS = {
    "\x1b": "escape",
    "\t": "tab",
    "\x1b[Z": "backtab",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[C": "right",
    "\x1bOC": "right",
    "\x1b[D": "left",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
HANDLED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Ended(Exception):
    """A signal ends the program, or the terminal is gone. code: what the program exits with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


GONE = Ended(128 + signal.SIGHUP)
"""The terminal was closed."""


class Terminal:
    """Owns the modes of the terminal from `with` on. console: on the terminal."""

    def __init__(self, console: Console) -> None:
        """Raises OSError if no keys can be read: from standard input, or else the process's terminal."""
        self.console = console
        self._live: Live | None = None
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else os.open("/dev/tty", os.O_RDONLY)
        self._modes: list[Any] = []
        self._reading, self._waking = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._waking, False)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Terminal:
        for number in HANDLED:
            self._before[number] = signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._enter()
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _enter(self) -> None:
        self._live = Live(
            console=self.console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        try:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
            self._live.start()
        except (OSError, termios.error):
            raise GONE from None

    def _leave(self) -> None:
        if self._live:
            with suppress(OSError, termios.error):  # the terminal is gone
                self._live.stop()
                termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._modes)
            self._live = None

    def show(self, frame: RenderableType) -> None:
        """Draw a frame over the whole screen. Raises Ended if the terminal is gone."""
        try:
            if self._live:
                self._live.update(frame, refresh=True)
        except OSError:
            raise GONE from None

    def wake(self) -> None:
        """Have `wait` return. May be called by any thread."""
        with suppress(BlockingIOError):  # full: it returns anyway
            os.write(self._waking, b"\0")

    def wait(self, timeout_s: float) -> list[str]:
        """The keys that are pressed: characters, or words such as "up". Returns at the first, at `wake`, or in time.

        Raises Ended if the program should end. Suspends it when that is asked for.
        """
        ready, _, _ = select.select([self._keys, self._reading], [], [], timeout_s)
        if self._reading in ready:
            for number in os.read(self._reading, READ_BYTES):
                self._handle(number)
        if self._keys not in ready:
            return []
        try:
            pressed = os.read(self._keys, READ_BYTES)
        except OSError:
            pressed = b""
        if not pressed:
            raise GONE
        return [KEYS.get(key, key) for key in KEY.findall(pressed.decode(errors="replace"))]

    def _handle(self, number: int) -> None:
        if number == signal.SIGINT:
            raise Ended(0)  # Ctrl-C ends it as q does
        if number in ENDING:
            raise Ended(128 + number)
        if number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT:  # it may have been stopped from outside
            self._leave()
            self._enter()

    def _suspend(self) -> None:
        self._leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # returns when the program goes on
        signal.signal(signal.SIGTSTP, ours)
        self._enter()
