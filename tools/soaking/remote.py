"""The remote: a real S3 server over a folder, with a misbehaving proxy between it and growfs."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket

from tests.servers import listens
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, BenchError
from tools.benchmarks.servers import rclone_binary
from tools.soaking import processes
from tools.soaking.content import SHARD, SINGLE, content

BUCKET = "soak"
CLASSES = 4
FAULT_SHARES = {
    "hang_up": 0.3,
    "reset": 0.3,
    "reset_at_once": 0.3,
    "truncate": 0.3,
    "stall": 0.2,
    "slow": 0.5,
    "shorten": 0.3,
    "lengthen": 0.3,
    "internal_error": 0.5,
    "slow_down": 0.9,
    "too_many": 0.9,
    "expired": 1.0,
    "denied": 1.0,
    "shuffle_page": 1.0,
    "refused": 1.0,
}
"""The faults of tests/s3/proxy.py, and the share of the requests that get each while it is on. Without `damage`: rclone
sends no checksum, so it could not be detected."""


class Remote:
    """Owns the server, the proxy and the folder. versions: of each existing file.

    last: the same, including deleted files. deleted: their names. injected: how many requests got which fault. url,
    endpoint: for growfs to mount.
    """

    def __init__(self, folder: Path, files: int, generator: random.Random) -> None:
        self.url = f"s3://{BUCKET}"
        self.versions: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.injected: Counter[str] = Counter()
        self._folder = folder / "remote"
        self._staged = folder / "staged"
        self._random = generator
        self._new = 0
        for _ in range(files):
            self.add()
        self._port = _free_port(generator)
        self._server = self._start_server()
        command = [processes.PYTHON, "-m", "tests.s3.proxy", f"http://127.0.0.1:{self._port}"]
        self._proxy = processes.start(
            [*command, "--seed", generator.randrange(1 << 30)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.endpoint = str(self._answer()["url"])

    def add(self) -> str:
        """Add a new file, and return its name: a fifth are shards, the others are in class folders."""
        self._new += 1
        shard, single = f"records/{self._new:05}{SHARD}", f"classes/{self._new % CLASSES}/{self._new:05}{SINGLE}"
        self._put(name := single if self._new % 5 else shard)
        return name

    def replace(self) -> None:
        """Write a new version of a file."""
        self._put(self._random.choice(sorted(self.versions)))

    def delete(self) -> None:
        """Delete a file."""
        name = self._random.choice(sorted(self.versions))
        del self.versions[name]
        self.deleted.add(name)
        (self._folder / BUCKET / name).unlink()

    def _put(self, name: str) -> None:
        self.last[name] = self.versions[name] = self.last.get(name, 0) + 1
        target = self._folder / BUCKET / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._staged.write_bytes(content(name, self.versions[name]))
        self._staged.rename(target)

    def misbehave(self, names: Sequence[str]) -> None:
        """Make the proxy inject these faults from now on; none if empty."""
        assert self._proxy.stdin
        self._proxy.stdin.write(" ".join(f"{name}={FAULT_SHARES[name]}" for name in names) + "\n")
        self._proxy.stdin.flush()
        self.injected = Counter(self._answer()["injected"])

    def kill_server(self) -> None:
        """Send SIGKILL to the server."""
        processes.kill_session(self._server)

    def restart_server(self) -> None:
        """Start the server again, if it was killed."""
        if self._server.poll() is not None:
            self._server = self._start_server()

    def close(self) -> None:
        """End the server and the proxy."""
        processes.kill_session(self._proxy)
        processes.kill_session(self._server)

    def _start_server(self) -> subprocess.Popen[str]:
        options = ["--config", os.devnull, "--etag-hash", "", "--dir-cache-time", "0s", "--no-checksum"]
        options += ["--addr", f"127.0.0.1:{self._port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        server = processes.start([rclone_binary(), "serve", "s3", *options, self._folder])
        if not processes.wait_for(lambda: listens(self._port)):
            processes.kill_session(server)
            raise BenchError("rclone did not start")
        return server

    def _answer(self) -> dict[str, dict[str, int]]:
        assert self._proxy.stdout
        line = self._proxy.stdout.readline()
        if not line:
            raise BenchError("tests/s3/proxy.py has ended")
        answer: dict[str, dict[str, int]] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"tests/s3/proxy.py: {answer['error']}")
        return answer


def _free_port(generator: random.Random) -> int:
    """A port that the kernel does not give away while the server is down (ip_local_port_range begins at 32768)."""
    while True:
        port = generator.randrange(20_000, 32_000)
        with socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
