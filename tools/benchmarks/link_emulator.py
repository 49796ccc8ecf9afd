"""Emulates a long link in front of a server on loopback, for machines whose kernel has no netem.

`python -m tools.benchmarks.link_emulator ADDRESS RTT_S RATE COUNTS` listens on loopback, prints its URL, and forwards
connections to ADDRESS (host:port) until it is terminated. It keeps the file COUNTS up to date: the bytes received from
the server, and the requests for a listing and for anything else, as three 64-bit numbers. In each direction, all
connections share RATE (bytes/s) in one FIFO queue; a byte arrives half of RTT_S after it left the queue. Connecting
takes one round trip. A sender's window starts at ten segments and grows by the acknowledged bytes, as in TCP's slow
start, up to what Linux lets a sender buffer. No packets are lost, and an idle connection keeps its window.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

WINDOW_FIRST = 10 * 1448  # RFC 6928
WINDOW_MAX = 4 << 20  # the default of net.ipv4.tcp_wmem
PIECE = 128 << 10

COUNTS = struct.Struct("=3Q")
METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ")
LISTS = (b"?list-type=", b"&list-type=", b"?delimiter=", b"&delimiter=", b"?prefix=", b"&prefix=", b"&max-keys=")


class Counter:
    """Counts the traffic on the link. file: where the counts are kept."""

    def __init__(self, file: Path) -> None:
        self._counts = [0, 0, 0]
        file.write_bytes(bytes(COUNTS.size))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), COUNTS.size)

    def arrived(self, piece: bytes) -> None:
        self._add(0, len(piece))

    def sent(self, piece: bytes) -> None:
        """Count a request. A client without pipelining sends it at the start of a piece."""
        if piece.startswith(METHODS):
            line = piece.partition(b"\r")[0]
            self._add(1 if any(part in line for part in LISTS) else 2, 1)

    def _add(self, which: int, count: int) -> None:
        self._counts[which] += count
        COUNTS.pack_into(self._memory, 0, *self._counts)


class Direction:
    def __init__(self, rate: float, delay_s: float, count: Callable[[bytes], None]) -> None:
        self.delay_s, self.count = delay_s, count
        self._rate = rate
        self._free_at = 0.0

    def arrival(self, count: int, not_before: float) -> float:
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + count / self._rate
        return max(self._free_at, not_before) + self.delay_s


class Window:
    def __init__(self) -> None:
        self._size, self._sent = WINDOW_FIRST, 0
        self._changed = asyncio.Event()

    async def available(self) -> int:
        """Wait until the sender may send, and return how many bytes."""
        while self._sent >= self._size:
            self._changed.clear()
            await self._changed.wait()
        return self._size - self._sent

    def send(self, count: int) -> None:
        self._sent += count

    def acknowledge(self, count: int) -> None:
        """Note that the sender has learned that `count` bytes have arrived."""
        self._sent -= count
        self._size = min(WINDOW_MAX, self._size + count)
        self._changed.set()


async def forward(source: socket.socket, target: socket.socket, direction: Direction, not_before: float) -> None:
    """Forward from source to target until the end of source. not_before: when the first byte may be sent."""
    loop = asyncio.get_running_loop()
    window = Window()
    in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            arrival, piece = await in_flight.get()
            await asyncio.sleep(arrival - loop.time())
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(target, piece)
            loop.call_later(direction.delay_s, window.acknowledge, len(piece))

    async def send() -> None:
        piece = b"anything"
        while piece:
            piece = await loop.sock_recv(source, min(PIECE, await window.available()))
            window.send(len(piece))
            direction.count(piece)
            in_flight.put_nowait((direction.arrival(len(piece), not_before), piece))

    await asyncio.gather(deliver(), send())


async def handle(client: socket.socket, address: tuple[str, int], rtt_s: float, up: Direction, down: Direction) -> None:
    """Forward one connection in both directions."""
    loop = asyncio.get_running_loop()
    not_before = loop.time() + rtt_s
    with client, suppress(OSError), socket.socket() as server:
        server.setblocking(False)
        for left in reversed(range(5)):  # Linux 6.18 refuses some on loopback, with ENOENT, after many were closed
            try:
                await loop.sock_connect(server, address)
                break
            except OSError:
                if not left:
                    raise
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tasks = [
            asyncio.create_task(forward(client, server, up, not_before)),
            asyncio.create_task(forward(server, client, down, not_before)),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def serve(address: tuple[str, int], rtt_s: float, rate: float, counter: Counter) -> None:
    loop = asyncio.get_running_loop()
    up, down = Direction(rate, rtt_s / 2, counter.sent), Direction(rate, rtt_s / 2, counter.arrived)
    connections = set()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            task = asyncio.create_task(handle(client, address, rtt_s, up, down))
            connections.add(task)
            task.add_done_callback(connections.discard)


def main() -> None:
    address, rtt_s, rate, counts = sys.argv[1:]
    host, _, port = address.rpartition(":")
    asyncio.run(serve((host, int(port)), float(rtt_s), float(rate), Counter(Path(counts))))


if __name__ == "__main__":
    main()
