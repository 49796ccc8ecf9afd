"""A long link in front of a server on loopback, for machines whose kernel has no netem.

`python -m tools.benchmarks.link ADDRESS RTT_S RATE` listens on loopback, prints its URL, and carries what comes to
ADDRESS (host:port) and back until it is ended. All connections share RATE (bytes/s) each way and wait in one line for
it; a byte arrives half of RTT_S after its turn. A connection costs a round trip before its first byte. What a sender
may have under way begins at ten segments and grows by what is acknowledged, as TCP's slow start does, up to what
Linux lets a sender buffer. Nothing is ever lost, and an idle connection keeps its window.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

WINDOW_FIRST = 10 * 1448  # RFC 6928
WINDOW_MAX = 4 << 20  # the default of net.ipv4.tcp_wmem
PIECE = 128 << 10


class Way:
    """One direction of the link."""

    def __init__(self, rate: float, delay_s: float) -> None:
        self.delay_s = delay_s
        self._rate = rate
        self._free_at = 0.0

    def arrival(self, count: int, not_before: float) -> float:
        """When so many bytes arrive that are given to the link now, of the loop's clock."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + count / self._rate
        return max(self._free_at, not_before) + self.delay_s


class Window:
    """What a sender may still send."""

    def __init__(self) -> None:
        self._size, self._sent = WINDOW_FIRST, 0
        self._changed = asyncio.Event()

    async def room(self) -> int:
        """Wait until it is more than nothing."""
        while self._sent >= self._size:
            self._changed.clear()
            await self._changed.wait()
        return self._size - self._sent

    def send(self, count: int) -> None:
        """So much is under way."""
        self._sent += count

    def acknowledge(self, count: int) -> None:
        """The sender hears that so much has arrived."""
        self._sent -= count
        self._size = min(WINDOW_MAX, self._size + count)
        self._changed.set()


async def carry(source: socket.socket, target: socket.socket, way: Way, begins: float) -> None:
    """What source sends to target, until it ends. begins: when the connection's first byte may be sent."""
    loop = asyncio.get_running_loop()
    window = Window()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            arrival, piece = await under_way.get()
            await asyncio.sleep(arrival - loop.time())
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(target, piece)
            loop.call_later(way.delay_s, window.acknowledge, len(piece))

    async def send() -> None:
        piece = b"a first one"
        while piece:
            piece = await loop.sock_recv(source, min(PIECE, await window.room()))
            window.send(len(piece))
            under_way.put_nowait((way.arrival(len(piece), begins), piece))

    await asyncio.gather(deliver(), send())


async def connected(client: socket.socket, address: tuple[str, int], rtt_s: float, up: Way, down: Way) -> None:
    """One connection, both ways."""
    loop = asyncio.get_running_loop()
    begins = loop.time() + rtt_s
    with client, socket.socket() as server, suppress(OSError):
        server.setblocking(False)
        await loop.sock_connect(server, address)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = [
            asyncio.create_task(carry(client, server, up, begins)),
            asyncio.create_task(carry(server, client, down, begins)),
        ]
        try:
            await asyncio.gather(*ways)
        finally:
            for task in ways:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def serve(address: tuple[str, int], rtt_s: float, rate: float) -> None:
    """Carry connections until ended."""
    loop = asyncio.get_running_loop()
    up, down = Way(rate, rtt_s / 2), Way(rate, rtt_s / 2)
    carried = set()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            task = asyncio.create_task(connected(client, address, rtt_s, up, down))
            carried.add(task)
            task.add_done_callback(carried.discard)


def main() -> None:
    """Serve until ended."""
    host, _, port = sys.argv[1].rpartition(":")
    asyncio.run(serve((host, int(port)), float(sys.argv[2]), float(sys.argv[3])))


if __name__ == "__main__":
    main()
