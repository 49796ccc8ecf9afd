"""Processes that read the generations of a folder: forks of one that has imported growfs.

Run as a program, this module is that one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growfs.errors import GrowfsError


class Reader:
    """A process that reads. Paths are relative to the generation that it has, unless they are absolute."""

    def __init__(self, readers: Readers, number: int) -> None:
        self._readers = readers
        self._number = number

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
        """End the process, by SIGKILL if that is asked for, and reap it."""
        self._request("kill" if kill else "end")

    def _request(self, verb: str, *arguments: str | int | None) -> Any:
        return self._readers.request(self._number, verb, *arguments)


class Readers:
    """Owns the process from which readers are forked."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.generation_readers"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def new(self) -> Reader:
        """A new process."""
        return Reader(self, next(self._numbers))

    def request(self, number: int, verb: str, *arguments: str | int | None) -> Any:
        """Have a reader do something. Raises OSError."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([number, verb, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise OSError(*answer["error"])
        return answer["result"]


# In the processes.


class _Program:
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
        import growfs

        self.tree = str(growfs.next_generation(folder, number))
        return self.tree

    def begin_part(self, folder: str, number: int, part: int) -> None:
        import growfs

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


def _serve(channel: socket.socket) -> None:
    import warnings

    warnings.simplefilter("error", UserWarning)
    program = _Program()
    for line in channel.makefile():
        channel.sendall((json.dumps(program.answer(*json.loads(line))) + "\n").encode())
    os._exit(0)


def main() -> None:
    """Fork a reader for each number, and pass requests on to it."""
    import growfs.client.generation
    import growfs.daemon.control_client  # noqa: F401 - what each reader needs

    readers: dict[int, tuple[int, socket.socket, Any]] = {}
    for line in sys.stdin:
        number, verb, *arguments = json.loads(line)
        if number not in readers:
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                for _, other, file in readers.values():
                    file.close()
                    other.close()
                _serve(theirs)
            theirs.close()
            readers[number] = pid, ours, ours.makefile()
        pid, channel, answers = readers[number]
        if verb in ("end", "kill"):
            if verb == "kill":
                os.kill(pid, signal.SIGKILL)
            answers.close()
            channel.close()
            os.waitpid(pid, 0)
            del readers[number]
            answer = '{"result": null}\n'
        else:
            channel.sendall((json.dumps([verb, *arguments]) + "\n").encode())
            answer = answers.readline()
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(answer)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
