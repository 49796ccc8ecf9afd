"""Finds out whether a pending signal will end a process. Then nobody waits for its open any more."""

from __future__ import annotations

import re
import signal
from pathlib import Path

TERMINATING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""These mean that the process should end, even if it has a handler (Python has one for SIGINT)."""
HARMLESS_BY_DEFAULT = (
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""By default these are ignored, or stop or continue the process (signal(7))."""


def is_ending(tid: int) -> bool:
    """Whether a thread is gone, or has a pending signal that ends its process or means that it should end.

    False for a thread of another pid namespace (tid 0), whose signals cannot be read: most signals are harmless.
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
    handled = pending & mask["SigCgt"] & _mask(*TERMINATING)
    deadly = pending & ~mask["SigCgt"] & ~_mask(*HARMLESS_BY_DEFAULT)
    effective = (handled | deadly) & ~mask["SigBlk"] & ~mask["SigIgn"]
    return bool(effective | pending & _mask(signal.SIGKILL))


def _mask(*signals: signal.Signals) -> int:
    """The format of /proc: bit n - 1 is signal n (proc_pid_status(5))."""
    return sum(1 << (number - 1) for number in signals)
