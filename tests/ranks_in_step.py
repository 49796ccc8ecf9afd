"""The ranks of a job that meet in a collective after each batch: a program without growfs, started once for each rank.

python ranks_in_step.py RANK RANKS WORKERS BATCHES PORT OUT FOLDER NAME...: it reads the folders NAME below FOLDER, one
after the other, and each is divided into BATCHES of all ranks. What was read is in OUT, a line for each file: the name
of the folder and the path. That is also the checkpoint from which a rank goes on that is started again.

The tests import `Collective` and `digest`.
"""

from __future__ import annotations

import hashlib
import os
import socket
import socketserver
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress


def digest(names: Iterable[str]) -> str:
    """Identifies a listing."""
    return hashlib.blake2b("\0".join(sorted(names)).encode(), digest_size=8).hexdigest()


class Collective(socketserver.ThreadingTCPServer):
    """Answers a rank once all ranks have come to the same batch. A rank that was killed may come there again.

    listings: the digests of what ranks have listed, by the name of the folder.
    """

    daemon_threads = True

    def __init__(self, ranks: int) -> None:
        super().__init__(("127.0.0.1", 0), _Arrival)
        self.listings = defaultdict[str, set[str]](set)
        self._ranks = ranks
        self._arrived = defaultdict[str, set[str]](set)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    def end(self) -> None:
        """Answer no more."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def meet(self, rank: str, name: str, step: str, listing: str) -> None:
        """Return once all ranks are there."""
        with self._changed:
            self.listings[name].add(listing)
            here = self._arrived[f"{name} {step}"]
            here.add(rank)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(here) == self._ranks)


class _Arrival(socketserver.StreamRequestHandler):
    server: Collective

    def handle(self) -> None:
        for line in self.rfile:
            self.server.meet(*line.decode().split())
            with suppress(ConnectionError):  # it was killed
                self.wfile.write(b"\n")


class _Worker:
    """A process that reads files, forked by a rank as a data loader does. It ends with the rank."""

    def __init__(self, before: Sequence[_Worker]) -> None:
        self._channel, channel = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            for each in (*before, self):
                each._channel.close()
            for path in channel.makefile():
                with open(path.rstrip("\n"), "rb") as file:
                    file.read()
                with suppress(ConnectionError):  # the rank was killed
                    channel.send(b"x")
            os._exit(0)
        channel.close()

    def read(self, path: str) -> None:
        self._channel.sendall(f"{path}\n".encode())

    def wait(self) -> None:
        """Wait until it has read a file."""
        assert self._channel.recv(1), "it failed"

    def end(self) -> None:
        self._channel.close()
        os.waitpid(self._pid, 0)


def _names_below(folder: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    )


def main(numbers: Sequence[int], out: str, top: str, *names: str) -> None:
    """Read the folders. Some ranks have a batch less than others; as with torch's Join, they come to the last
    collective all the same.
    """
    rank, ranks, workers, batches, port = numbers
    collective = socket.create_connection(("127.0.0.1", port))
    done = Counter[str]()
    with open(out, "ab+") as checkpoint:
        checkpoint.seek(0)
        done.update(line.decode().split()[0] for line in checkpoint)
    for name in names:
        if f"{name}." in done:
            continue
        folder = os.path.join(top, name)
        os.close(os.open(folder, os.O_RDONLY))  # waits for a part of a pass
        files = _names_below(folder)
        forked = list[_Worker]()
        for _ in range(workers):
            forked.append(_Worker(forked))
        own = [files[batch::batches] for batch in range(batches)][rank::ranks]
        for step in range(-(-batches // ranks)):
            batch = own[step] if step < len(own) else []
            if done[name] >= len(batch) > 0:  # before it was killed
                done[name] -= len(batch)
                continue
            for place, file in enumerate(batch):
                forked[place % workers].read(os.path.join(folder, file))
            for place, _ in enumerate(batch):
                forked[place % workers].wait()
            collective.sendall(f"{rank} {name} {step} {digest(files)}\n".encode())
            assert collective.recv(1), "the test has ended"
            lines = "".join(f"{name} {file}\n" for file in batch)
            with open(out, "ab", 0) as checkpoint:
                checkpoint.write(lines.encode())
        for worker in forked:
            worker.end()
        with open(out, "ab", 0) as checkpoint:
            checkpoint.write(f"{name}.\n".encode())


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:6]], *sys.argv[6:])
