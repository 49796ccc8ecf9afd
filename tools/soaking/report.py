"""What a reader reports of each epoch: one line of JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from tools.soaking.content import WrongBytes

ERRNO_TEXTS = {os.strerror(number): number for number in range(1, 134)}


@dataclass(frozen=True, slots=True)
class Epoch:
    """began, ended: on the clock of time.monotonic. versions: of each file that was read, all of it checked.

    error: what the framework raised, or an empty text. code: the errno in it, or 0. wrong: whether bytes were wrong.
    """

    began: float
    ended: float
    bytes: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    error: str = ""
    code: int = 0
    wrong: bool = False


def run_epochs(read: Callable[[], tuple[dict[str, int], int]]) -> None:
    """Run epochs for ever, and report each on standard output. read: returns (versions, bytes).

    After each it waits as a training that saves and validates: the second argument of the program, in seconds.
    """
    pause_s = float(sys.argv[2])
    while True:
        began = time.monotonic()
        try:
            versions, read_bytes = read()
            if not versions:
                raise FileNotFoundError(2, "No such file or directory: nothing is listed")
            epoch = Epoch(began, time.monotonic(), read_bytes, versions)
        except Exception as error:  # noqa: BLE001 - whatever a framework makes of it
            text = " ".join(str(error).split())
            wrong = isinstance(error, WrongBytes) or "WrongBytes" in text or type(error).__name__ == "DataLossError"
            epoch = Epoch(
                began, time.monotonic(), error=f"{type(error).__name__}: {text}", code=errno_in(error), wrong=wrong
            )
        sys.stdout.write(json.dumps(asdict(epoch)) + "\n")
        sys.stdout.flush()
        time.sleep(pause_s)


def errno_in(error: Exception) -> int:
    """The errno of an error: its own, or the one whose text is in its message."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, FileNotFoundError):  # torchvision's, when it finds no file in the class folders
        return errno.ENOENT
    return next((number for text, number in ERRNO_TEXTS.items() if text in str(error)), 0)
