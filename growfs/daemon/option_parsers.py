"""Parsers of option values, except the numbers in growfs.units. Invalid text raises UsageError."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from typing import Any

from growfs.errors import GrowfsError, UsageError
from growfs.paths import absolute_path, working_folder
from growfs.remote.groups import grouping
from growfs.remote.names import redact
from growfs.remote.user_functions import Function
from growfs.units import CacheSize, size

PYTHON_SCHEME = "py:"
"""The prefix of a URL that is a Python function, which creates the files."""
PORT_MAX = 65535

TORCHRUN = ("GROUP_RANK", "GROUP_WORLD_SIZE")
SLURM = ("SLURM_NODEID", "SLURM_NNODES")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
"""Variables with the number of this node, from 0, and the number of nodes. Open MPI's variables count processes, which
is the same if it starts one on each node."""


def size_or_percentage(text: str) -> CacheSize:
    """A size, or a percentage of the free disk space or of the cache."""
    percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if percent:
        if not 0 < float(percent[1]) <= 100:
            raise UsageError(f"{text!r} is not a valid percentage; use 1% to 100%")
        return CacheSize(share=float(percent[1]) / 100)
    if not (bytes := size(text)):
        raise UsageError("the cache size must be more than 0; examples: 500GB, 80%")
    return CacheSize(bytes=bytes)


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that accepts only these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r}: must be one of {', '.join(words)}")
        return text

    return parse


def partition(text: str) -> tuple[int, int]:
    """(number of this node, from 0; number of nodes), from I/N or the environment of the job."""
    if text == "auto":
        text = _partition_of_job()
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not match or int(match[1]) >= int(match[2]):
        raise UsageError(f"{text!r} is not a partition; use 0/8 to 7/8 for eight nodes, or 'auto'")
    return int(match[1]), int(match[2])


def nodes_of_job() -> int:
    """The number of nodes of the job that this process belongs to; 1 if no launcher says it."""
    try:
        return partition("auto")[1]
    except UsageError:
        return 1


def _partition_of_job() -> str:
    """I/N: the number of this node, and the number of nodes. Raises UsageError if no launcher provides them."""
    counts_nodes = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"  # processes on this node
    for number, count in (TORCHRUN, *([OPEN_MPI] if counts_nodes else []), SLURM):
        if number in os.environ and count in os.environ:
            return f"{os.environ[number]}/{os.environ[count]}"
    names = ", or ".join(" and ".join(pair) for pair in (TORCHRUN, SLURM, OPEN_MPI))
    raise UsageError(
        f"'auto' needs {names} in the environment, the last with one process per node (RANK counts GPUs, not nodes);"
        " otherwise pass I/N, such as 0/8"
    )


def group(text: str) -> str:
    """What decides which files belong together."""
    grouping(text)
    return text


def function(text: str) -> Function:
    """A function, looked for in the caller's working directory, because the daemon's is /."""
    return Function.parse(text, str(working_folder()))


def absolute(url: str) -> str:
    """A URL, or a local path made absolute."""
    if not url:
        raise UsageError("the URL is empty; use s3://bucket/prefix, or the path of a folder")
    return url if "://" in url or "::" in url or url.startswith(PYTHON_SCHEME) else str(absolute_path(url))


def remote_url(url: str) -> str:
    """As `absolute`, for what is to be mounted. A relative path that does not exist may lack the scheme of a URL."""
    found = absolute(url)
    if found != url and not url.startswith((".", "~")) and not os.path.exists(found):
        scheme, _, rest = url.partition(":") if ":" in url else ("s3", "", url)
        raise UsageError(f"{found}: no such folder; if this is not a local path, use {scheme}://{rest.lstrip('/')}")
    return found


def web_url(text: str) -> str:
    """The URL of a server."""
    if not re.match("https?://[^/]", text):
        raise UsageError(f"{redact(text)!r} is not the URL of a server; it must begin with http:// or https://")
    return text


def address(text: str) -> tuple[str, int]:
    """(host, port) from HOST:PORT; without a host, the loopback address."""
    match = re.fullmatch(r"(?:(\[[\w.:%]+\]|[\w.-]*):)?(\d{1,5})", text, re.ASCII)
    if not match or int(match[2]) > PORT_MAX:
        raise UsageError(f"{text!r} is not an address; use HOST:PORT, such as 127.0.0.1:9401 or [::1]:9401")
    return (match[1] or "127.0.0.1").strip("[]"), int(match[2])


def listening(flag: str, host: str, port: int) -> socket.socket:
    """A socket that listens at the address of an option. Raises GrowfsError if listening fails."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise GrowfsError(
            f"{flag}: cannot listen on {host} port {port}: {reason}; choose another address or port"
        ) from None


def storage_option(text: str) -> tuple[str, Any]:
    """(dotted name, value) from NAME=VALUE. The value is JSON if it can be parsed as JSON, else text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError("a storage option is NAME=VALUE, such as key=AKIA... or client_kwargs.region_name=eu-west-1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
