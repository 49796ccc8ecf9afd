"""Processes that read the generations of a folder. Run as a program, this module is one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import growfs
from growfs.errors import GrowfsError
from tests.harness import FORKS


class Reader:
    """A process that reads. Paths are relative to the generation that it has, unless they are absolute."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = FORKS.start(["-m", "tests.generation_readers"], os.environ, stdin=pipe, stdout=pipe)

    def next_generation(self, folder: Path, number: int | None = None) -> Path:
        """Call `growfs.next_generation`; what is read is relative to its result. Raises OSError with its warning."""
        return Path(self._request("next_generation", str(folder), number))

    def begin_part(self, folder: Path, number: int, part: int) -> None:
        """Begin an epoch with a part; what is read is relative to it. Raises OSError."""
        self._request("begin_part", str(folder), number, part)

    def next_part(self) -> None:
        """Go on with the next part of the epoch. Raises OSError."""
        self._request("next_part")

    def names(self, path: str = "") -> set[str]:
        """All files below a directory of the generation."""
        return set(self._request("names", path))

    def list(self, path: str) -> list[str]:
        """The names in a directory."""
        return list(self._request("list", path))

    def read(self, path: str) -> int:
        """Open, read and close a file; returns its length. Raises OSError."""
        return int(self._request("read", path))

    def open(self, path: str) -> int:
        """Open and read a file, and keep it open; returns its length. Raises OSError."""
        return int(self._request("open", path))

    def close(self, path: str) -> None:
        """Close a file that is kept open."""
        self._request("close", path)

    def fork(self) -> None:
        """Fork a child that does nothing until the process ends."""
        self._request("fork")

    def end(self, kill: bool = False) -> None:
        """End the process, by SIGKILL if that is asked for."""
        assert self._process.stdin
        assert self._process.stdout
        if kill:
            self._process.kill()
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _request(self, verb: str, *arguments: str | int | None) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise OSError(*answer["error"])
        return answer["result"]


class Readers(ExitStack):
    """Ends the processes at the end of the block."""

    def new(self) -> Reader:
        """A new process."""
        reader = Reader()
        self.callback(reader.end)
        return reader


class _Program:
    """In the process."""

    def __init__(self) -> None:
        self.tree = ""
        self.epochs: list[Iterator[Path]] = []
        self.open_files: dict[str, list[int]] = {}

    def answer(self, verb: str, *arguments: str) -> dict[str, Any]:
        try:
            return {"result": getattr(self, verb)(*arguments)}
        except OSError as error:
            return {"error": [error.errno, str(error)]}
        except (Warning, GrowfsError) as error:
            return {"error": [0, str(error)]}

    def next_generation(self, folder: str, number: int | None) -> str:
        self.tree = str(growfs.next_generation(folder, number))
        return self.tree

    def begin_part(self, folder: str, number: int, part: int) -> None:
        epoch = growfs.epoch(folder, number, part)
        self.tree = str(next(epoch))
        self.epochs.append(epoch)  # until the next part is held, as a loop over one epoch does
        del self.epochs[:-1]

    def next_part(self) -> None:
        self.tree = str(next(self.epochs[-1]))

    def names(self, path: str) -> list[str]:
        top = os.path.join(self.tree, path)
        return [os.path.relpath(os.path.join(root, name), top) for root, _, names in os.walk(top) for name in names]

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(os.path.join(self.tree, path)))

    def read(self, path: str) -> int:
        with open(os.path.join(self.tree, path), "rb") as file:
            return len(file.read())

    def open(self, path: str) -> int:
        fd = os.open(os.path.join(self.tree, path), os.O_RDONLY)
        self.open_files.setdefault(path, []).append(fd)
        return len(os.read(fd, 1 << 20))

    def close(self, path: str) -> None:
        os.close(self.open_files[path].pop())

    def fork(self) -> None:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    program = _Program()
    for line in sys.stdin:
        print(json.dumps(program.answer(*json.loads(line))), flush=True)
