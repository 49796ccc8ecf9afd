"""Whether a signal that waits for a thread is about to end its process: then nobody wants its open any more."""

from __future__ import annotations

import re
import signal
from pathlib import Path

END_BY_HABIT = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Somebody wants the process to end, also where it has a handler (Python has one for SIGINT)."""
NO_END_BY_DEFAULT = (
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""Their default is to be ignored, or to stop or go on (signal(7))."""


def is_ending(tid: int) -> bool:
    """Whether a thread is gone, or has a signal pending that ends its process or is meant to.

    Of one in another pid namespace (0) nobody can tell; it goes on waiting, for most signals are harmless.
    """
    if tid == 0:
        return False
    try:
        status = Path(f"/proc/{tid}/status").read_text()
    except OSError:
        return True
    masks = re.findall(r"^(Sig\w+|ShdPnd):\t([0-9a-f]{16})$", status, re.MULTILINE)
    mask = {name: int(value, 16) for name, value in masks}
    pending = mask["SigPnd"] | mask["ShdPnd"]
    handled = pending & mask["SigCgt"] & _mask(*END_BY_HABIT)
    deadly = pending & ~mask["SigCgt"] & ~_mask(*NO_END_BY_DEFAULT)
    wanted = (handled | deadly) & ~mask["SigBlk"] & ~mask["SigIgn"]
    return bool(wanted | pending & _mask(signal.SIGKILL))


def _mask(*signals: signal.Signals) -> int:
    """As in /proc: bit n - 1 is signal n (proc_pid_status(5))."""
    return sum(1 << (number - 1) for number in signals)
