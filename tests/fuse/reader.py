"""Separate processes that read a mount: generations depend on which process lists and which opens."""

from __future__ import annotations

import itertools
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROGRAM = """
import marshal, mmap, os, sys

def list(path):
    return sorted(os.listdir(path))

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

def walk(path):
    return sorted(os.path.relpath(os.path.join(root, name), path) for root, _, names in os.walk(path) for name in names)

def has_empty_folders(path):
    return not all(folders or names for _, folders, names in os.walk(path))

def read_all(*paths):
    return sum(read(path) for path in paths)

def read_in_children(*paths):
    children = []
    for number in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                read_all(*paths[number::2])
            except OSError as error:
                os._exit(error.errno)
            os._exit(0)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise OSError(os.waitstatus_to_exitcode(status), "a child failed")

opened = {}

def keep_open(path):
    opened.setdefault(path, []).append(os.open(path, os.O_RDONLY))
    return len(os.read(opened[path][-1], 1 << 20))

def close(path):
    os.close(opened[path].pop())

def chdir(path):
    os.chdir(path)

maps = {}

def map(path):
    with open(path, "rb") as file:
        maps[path] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

def mapped(path):
    return maps[path][:].hex()

def lines(path):
    with open(path) as file:
        return file.read().splitlines()

def forked(function, path):
    if os.fork() == 0:
        globals()[function](path)
        os._exit(0)
    return os.wait()[1]

def forked_read(path):
    return forked("read", path)

def forked_list_and_read(path):
    return forked("list_and_read", path)

def list_and_read(path):
    read(os.path.join(path, list(path)[0]))

def spawned_read(path):
    import subprocess
    subprocess.run(["sh", "-c", 'cat "$1" >/dev/null; :', "sh", path], check=True)

os.chdir("/")
print(os.getpid(), flush=True)
for line in sys.stdin:
    verb, *paths = marshal.loads(bytes.fromhex(line))
    try:
        answer = {"result": globals()[verb](*paths)}
    except OSError as error:
        answer = {"errno": error.errno}
    print(marshal.dumps(answer).hex(), flush=True)
"""
"""It imports what is built in: a test starts several, and json and subprocess take longer than all else."""


_JOBS = itertools.count()


class Reader:
    """A process that lists and reads a mount on request. Paths are relative to the mount.

    job: readers with the same one, but for numbers, belong to one job: each has a wrapper script for its parent, and
    their command lines are the same. Without it, it is a job of its own.
    """

    def __init__(self, mountpoint: Path, job: str | None = None) -> None:
        self._mountpoint = mountpoint
        program = [sys.executable, "-S", "-E", "-c", PROGRAM, job or "x" * next(_JOBS)]
        command = ["sh", "-c", '"$@"; :', "sh", *program]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.pid = int(self._process.stdout.readline())

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def list(self, path: str = "") -> set[str]:
        return set(self.request("list", path))

    def read(self, path: str) -> int:
        return int(self.request("read", path))

    def walk(self, path: str = "") -> set[str]:
        """All files below a directory, by their paths in the mount; each directory is listed once."""
        return {os.path.normpath(os.path.join(path, name)) for name in self.request("walk", path)}

    def read_all(self, paths: Iterable[str]) -> int:
        """Open and read files, one after the other; returns their total length. Raises OSError."""
        return int(self.request("read_all", *paths))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def lines(self, path: str) -> set[str]:
        return set(self.request("lines", path))

    def request(self, verb: str, *paths: str) -> Any:
        """Call one of the functions of PROGRAM; returns its result. Raises OSError."""
        assert self._process.stdin
        assert self._process.stdout
        request = [verb, *(str(self._mountpoint / path) for path in paths)]
        self._process.stdin.write(f"{marshal.dumps(request).hex()}\n")
        self._process.stdin.flush()
        answer = marshal.loads(bytes.fromhex(self._process.stdout.readline()))
        if "errno" in answer:
            raise OSError(answer["errno"], " ".join(paths[:3]))
        return answer["result"]
