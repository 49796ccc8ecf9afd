"""Processes and threads as described by /proc (proc(5)), as far as visible to this user; root sees all."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

TERMINATING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that mean that the process should end, even if it has a handler (Python has one for SIGINT)."""
HARMLESS_BY_DEFAULT = (
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""Signals that by default are ignored, or stop or continue the process (signal(7))."""
SIGNALS_EVERY_S = 0.1
"""How often the signals of a process that waits are checked."""


class Process(NamedTuple):
    """A process as described by /proc. start: clock ticks after boot (proc(5), field 22). is_forked: it was forked, and
    has run no program since.
    """

    pid: int
    parent: int
    start: str
    command: str
    is_forked: bool = False

    @property
    def started_s(self) -> float:
        """When it started, in seconds after boot."""
        return int(self.start) / os.sysconf("SC_CLK_TCK")

    @property
    def age_s(self) -> float:
        """How long it has been running."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started_s

    @property
    def command_line(self) -> bytes:
        """Its arguments, each followed by a NUL; empty if it is gone."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return b""

    @property
    def program(self) -> str | None:
        """The file that it runs; None if this user may not see that."""
        with suppress(OSError):
            return os.readlink(f"/proc/{self.pid}/exe")
        return None


def read_text(file: str) -> str:
    """A file of the system, as text. What is not UTF-8 in it is replaced. Raises OSError.

    Paths may be any bytes, and the kernel cuts the name of a process to 15 of them, even mid-character.
    """
    return Path(file).read_bytes().decode(errors="replace")


def read_lines(file: str) -> list[str]:
    """As `read_text`. A line ends with a newline only: a name may have the other characters that end one in Python."""
    return [line for line in read_text(file).split("\n") if line]


def process(pid: int) -> Process | None:
    """The process with that id, or None if there is none."""
    try:
        stat = read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    command, _, rest = stat.partition("(")[2].rpartition(") ")
    fields = rest.split()
    is_forked = bool(int(fields[6]) & 0x40)  # PF_FORKNOEXEC (include/linux/sched.h)
    return Process(pid, int(fields[1]), fields[19], command, is_forked)


def is_killed(pid: int) -> bool:
    """Whether a process was killed and is not gone yet: its first thread has ended, but others may wait in the kernel.

    Their files are open until then, and so are the locks and sockets of the process.
    """
    with suppress(OSError):
        return read_text(f"/proc/{pid}/stat").rpartition(") ")[2][0] in "ZX"  # proc_pid_stat(5)
    return False


def sees(pid: int, folder: Path) -> bool:
    """Whether a process finds that folder at its path: it may have another root or mounts. True if nobody can tell."""
    root = f"/proc/{pid}/root"
    try:
        os.stat(root)
        seen, own = os.stat(f"{root}{folder}"), os.stat(folder)
    except FileNotFoundError as error:
        return str(error.filename) == root or not os.path.exists(root)  # it has ended
    except OSError:
        return True
    return (seen.st_dev, seen.st_ino) == (own.st_dev, own.st_ino)


def lineage(found: Process) -> Iterator[Process]:
    """A process and its ancestors, without the first process of the system."""
    current: Process | None = found
    while current:
        yield current
        current = process(current.parent) if current.parent > 1 else None


def thread_group(tid: int) -> int:
    """The process that a thread belongs to; the number itself if /proc does not know it."""
    try:
        return next(int(line.split()[1]) for line in read_lines(f"/proc/{tid}/status") if line.startswith("Tgid:"))
    except OSError:
        return tid


def pids() -> Iterator[int]:
    """The processes of this machine, in the order of their ids; none if there is no /proc."""
    with suppress(FileNotFoundError):
        yield from sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def name_of(pid: int) -> str:
    """A process, as 'command (pid)'. Raises OSError if there is none."""
    return f"{read_text(f'/proc/{pid}/comm').strip()} ({pid})"


def begins_with(pid: int, title: str) -> bool:
    """Whether the command line of a process begins with a title. Raises OSError if there is no such process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(os.fsencode(title))


def opened(pid: int) -> set[str]:
    """The paths that a process has open. Raises OSError."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found.add(os.readlink(link))
    return found


def users_of(folder: Path) -> Iterator[int]:
    """The processes that have a folder or anything below it open or mapped, or as their working or root directory."""
    below = f"{folder}/"
    for pid in pids():
        process = Path(f"/proc/{pid}")
        with suppress(OSError):
            paths = {os.readlink(process / "cwd"), os.readlink(process / "root"), *opened(pid)}
            if (
                any(f"{path}/".startswith(below) for path in paths)
                or os.fsencode(below) in (process / "maps").read_bytes()
            ):
                yield pid


def set_title(title: str) -> None:
    """Show a title in place of the command line of this process; what is not UTF-8 in it is replaced."""
    from setproctitle import setproctitle

    setproctitle(os.fsencode(title).decode(errors="replace"))


def is_ending(tid: int) -> bool:
    """Whether a thread that waits for an answer has a pending signal that ends its process or asks it to end.

    False if its signals cannot be read: the thread is in another pid namespace (tid 0), or belongs to another user
    while /proc is mounted with hidepid (proc(5)). Most signals are harmless.
    """
    try:
        status = read_text(f"/proc/{tid}/status")
    except OSError:
        return False
    masks = re.findall(r"^(Sig\w+|ShdPnd):\t([0-9a-f]{16})$", status, re.MULTILINE)
    mask = {name: int(value, 16) for name, value in masks}
    pending = mask["SigPnd"] | mask["ShdPnd"]
    handled = pending & mask["SigCgt"] & _mask(*TERMINATING)
    deadly = pending & ~mask["SigCgt"] & ~_mask(*HARMLESS_BY_DEFAULT)
    effective = (handled | deadly) & ~mask["SigBlk"] & ~mask["SigIgn"]
    return bool(effective | pending & _mask(signal.SIGKILL))


def become(program: str, *arguments: object, env: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by a program, found in PATH. Raises OSError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would too
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(program, [program, *map(str, arguments)], env or os.environ)


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The signals that this process does not ignore, and for which it may therefore set a handler.

    nohup(1) makes a command ignore SIGHUP, and a shell makes its background jobs ignore SIGINT and SIGQUIT.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _mask(*signals: signal.Signals) -> int:
    """The format of /proc: bit n - 1 is signal n (proc_pid_status(5))."""
    return sum(1 << (number - 1) for number in signals)
