"""The folder of a test run: all that its tests write is below it, and TMPDIR names it.

A run that is killed would leave mounts, daemons and servers. So a process watches each run: after its end, it kills
what still runs and belongs to the folder, unmounts what is mounted there, and deletes the folder. That of a run with
failures stays until the next run begins.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PREFIX = "growfs-tests-"
KEEP = "keep"
"""The line that the watching process reads if the folder shall stay."""
END_S_MAX = 30.0


class RunFolder:
    """The folder of this run, made now. The watching process ends with `close`, or when this process does."""

    def __init__(self) -> None:
        remove_left_over(Path(tempfile.gettempdir()))
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}")).resolve()
        lock = os.open(made, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name[1:]))  # locked, so another run does not remove it
        self.is_kept = False
        self.path.chmod(0o1777)  # as /tmp, which it stands for: some tests are other users
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.path)
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "tests.run_folder", str(self.path)],
            stdin=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={name: text for name, text in os.environ.items() if name != "TMPDIR"},
            start_new_session=True,
            pass_fds=[lock],
        )
        os.close(lock)

    def close(self) -> None:
        """End what is left of the run, and delete the folder unless it is kept."""
        self._watcher.communicate(KEEP if self.is_kept else "")


def remove_left_over(below: Path) -> None:
    """Remove the folders of earlier runs, which nobody watches anymore."""
    for folder in below.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or another run removes it, too
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    clear(folder)
                    delete(folder)
            except BlockingIOError:
                pass
            finally:
                os.close(lock)


def clear(folder: Path) -> None:
    """End all processes of a run, and unmount what is mounted below its folder."""
    deadline = time.monotonic() + END_S_MAX
    while (left := list(processes_of(folder))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for mountpoint in reversed(mountpoints()):
        if folder in mountpoint.parents:
            subprocess.run(["umount", "--lazy", str(mountpoint)], check=False)


def delete(folder: Path) -> None:
    """Delete a folder. It may have 100,000 files, which takes Python far longer than this program."""
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


def mountpoints() -> list[Path]:
    """All mounts of this mount namespace, of whatever type, oldest first."""
    lines = Path("/proc/self/mounts").read_bytes().splitlines()
    paths = (re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), line.split()[1]) for line in lines)
    return [Path(os.fsdecode(path)) for path in paths]


def processes_of(folder: Path) -> Iterator[int]:
    """The processes that a run has started, by their environment or, as growfs writes its titles over that, by these.

    A program that only looks at a file there, such as a pager, is none of them.
    """
    name = os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            is_python = Path(os.readlink(process / "exe")).name.startswith("python")
            known_by = (process / "environ").read_bytes() + ((process / "cmdline").read_bytes() if is_python else b"")
            if name in known_by and int(process.name) != os.getpid():
                yield int(process.name)


def main() -> None:
    """The program of the watching process."""
    folder = Path(sys.argv[1])
    keep = sys.stdin.read() == KEEP
    clear(folder)
    if not keep:
        delete(folder)


if __name__ == "__main__":
    main()
