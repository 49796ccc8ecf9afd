"""Processes that list and read a mount as they are called to, over a socket. They are forked from this one."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 17


class ReaderProcess:
    """This end of a process."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    @classmethod
    def start(cls, mountpoint: Path) -> ReaderProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = os.fork()
            if pid == 0:
                _become(theirs.fileno(), mountpoint)
        return cls(ours, pid)

    def fork(self) -> ReaderProcess:
        """A child of the process, which has nothing open."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return ReaderProcess(ours, int(self.call("fork", None, theirs.fileno())))

    def call(self, name: str, argument: object, *fds: int) -> Any:
        """Have it do something; returns the result. Raises OSError as the process got it."""
        socket.send_fds(self._channel, [pickle.dumps((name, argument))], fds)
        answer = pickle.loads(self._channel.recv(MESSAGE_BYTES))
        if isinstance(answer, OSError):
            raise answer
        return answer

    def end(self) -> None:
        """End it, unless it has ended."""
        if self._channel.fileno() < 0:
            return
        self._channel.close()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        with contextlib.suppress(ChildProcessError):  # that of another process, which ignores its end
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)


# The process.


def _become(channel: int, mountpoint: Path) -> None:
    """Do as the channel says, until it is closed. Never returns."""
    try:
        os.dup2(channel, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a child that ends leaves no zombie
        _serve(socket.socket(fileno=3), mountpoint)
    finally:
        os._exit(0)


def _serve(channel: socket.socket, mountpoint: Path) -> None:
    mappings: dict[int, mmap.mmap] = {}
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 1)
        if not message:
            return
        name, argument = pickle.loads(message)
        try:
            answer = _do(name, argument, mountpoint, mappings, fds)
        except OSError as error:
            answer = error
        channel.send(pickle.dumps(answer))


def _do(name: str, argument: Any, mountpoint: Path, mappings: dict[int, mmap.mmap], fds: list[int]) -> object:
    match name:
        case "list":
            with os.scandir(mountpoint / argument) as entries:
                files = [entry for entry in entries if not entry.is_dir()]
            return {os.path.join(argument, entry.name): entry.stat().st_size for entry in files}
        case "open":
            return os.open(mountpoint / argument, os.O_RDONLY)
        case "read":
            return os.pread(argument, MESSAGE_BYTES, 0)
        case "close":
            os.close(argument)
            return None
        case "map":
            number = len(mappings)
            mappings[number] = mmap.mmap(argument, 0, prot=mmap.PROT_READ)
            return number
        case "unmap":
            mappings[argument].close()
            return None
        case _:
            assert name == "fork"
            pid = os.fork()
            if pid == 0:
                for mapping in mappings.values():
                    mapping.close()
                _become(fds[0], mountpoint)
            os.close(fds[0])
            return pid
