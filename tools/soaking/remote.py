"""The remote: a real S3 server over a folder, with a misbehaving proxy between it and growfs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.s3.proxy import REFUSED, Mix, Proxy
from tests.servers import free_port
from tools.benchmarks.servers import rclone_server
from tools.soaking import processes
from tools.soaking.content import SHARD, SINGLE, content

BUCKET = "soak"
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
    "log_in": 1.0,
    "shuffle_page": 1.0,
    REFUSED: 1.0,
}
"""The faults of tests/s3/proxy.py, and the share of the requests that get each while it is on. Without `damage`: rclone
sends no checksum, so it could not be detected."""


class Remote:
    """Owns the server, the proxy and the folder. versions: of each existing file.

    last: the same, including deleted files. deleted: their names. url, endpoint: for growfs to mount.
    """

    def __init__(self, folder: Path, files: int, generator: random.Random) -> None:
        self.url = f"s3://{BUCKET}"
        self.versions: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.deleted: set[str] = set()
        self._folder = folder / "remote"
        self._staged = folder / "staged"
        self._random = generator
        self._new = 0
        for _ in range(files):
            self.add()
        self._port = free_port()
        self._running = ExitStack()
        self._start_server()
        self._mix = Mix(generator.randrange(1 << 30))
        self._proxy = Proxy(self._server.endpoint, keeps_requests=False)
        self._proxy.is_away = False
        self.endpoint = self._proxy.url

    def add(self) -> str:
        """Add a new file, and return its name: a fifth are shards, the others are in class folders."""
        self._new += 1
        shard, single = f"records/{self._new:05}{SHARD}", f"classes/{self._new % 4}/{self._new:05}{SINGLE}"
        self._put(name := single if self._new % 5 else shard)
        return name

    def replace(self) -> None:
        self._put(self._random.choice(sorted(self.versions)))

    def delete(self) -> None:
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

    @contextmanager
    def misbehaving(self) -> Iterator[None]:
        """The proxy injects one or two kinds of faults during the block."""
        names = self._random.sample(list(FAULT_SHARES), self._random.choice((1, 1, 2)))
        self._inject(names if sum(FAULT_SHARES[name] for name in names) <= 1 else names[:1])
        yield
        self._inject([])

    def _inject(self, names: Sequence[str]) -> None:
        self._mix.shares = {name: FAULT_SHARES[name] for name in names if name != REFUSED}
        self._proxy.fault = self._mix  # also wakes what is stalled
        self._proxy.is_away = REFUSED in names

    @property
    def injected(self) -> Counter[str]:
        return self._mix.injected

    @contextmanager
    def without_server(self) -> Iterator[None]:
        """The server is killed, and started again at the block's end."""
        processes.kill(self._server.pid)
        yield
        self._running.close()
        self._start_server()

    def close(self) -> None:
        self._proxy.close()
        self._running.close()

    def _start_server(self) -> None:
        server = rclone_server(self._folder, hashes=False, port=self._port, more=("--dir-cache-time", "0s"))
        self._server = self._running.enter_context(server)
