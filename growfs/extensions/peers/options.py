"""The options of --peers."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from growfs.daemon.option_parsers import PORT_MAX, PYTHON_SCHEME, address
from growfs.daemon.options import FeatureOptions, Options, option, refuse
from growfs.errors import UsageError
from growfs.paths import absolute_path
from growfs.remote.names import DNS_SCHEME, join_address
from growfs.units import rate

SLURM_NODES = "SLURM_JOB_NODELIST"


def peer_addr(text: str) -> tuple[str, int]:
    """(host, port) from HOST:PORT."""
    host, port = address(text)
    if not text.rpartition(":")[0] or not port:
        raise UsageError(f"{text!r} is not an address that other nodes can reach; use HOST:PORT, such as 10.0.0.7:7070")
    return host, port


def peers(text: str) -> tuple[str, ...]:
    """The nodes, from a list: each is HOST:PORT, or dns://NAME or dns://NAME:PORT for all addresses of a name.

    From `auto`: the names of the job's nodes, without a port.
    """
    if text == "auto":
        return _hosts_of_job()
    return tuple(dict.fromkeys(_peer(word.strip()) for word in text.split(",")))


def _hosts_of_job() -> tuple[str, ...]:
    """The names of the job's nodes. Raises UsageError if no launcher provides them."""
    nodes = os.environ.get(SLURM_NODES)
    if not nodes:
        raise UsageError(
            f"'auto' needs Slurm's {SLURM_NODES} in the environment (torchrun and mpirun do not list the nodes);"
            " otherwise list them: HOST:PORT,..."
        )
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=10.0
        )
    except FileNotFoundError:
        why = "scontrol is not in PATH"
    except OSError as error:
        why = str(error.strerror)
    except subprocess.TimeoutExpired as error:
        why = f"scontrol took more than {error.timeout:.0f} seconds"
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip() or f"scontrol exited with {error.returncode}"
    else:
        if names := done.stdout.split():
            return tuple(names)
        why = "scontrol printed no names"
    raise UsageError(f"'auto' could not expand {SLURM_NODES}={nodes}: {why}; list the nodes: HOST:PORT,...")


def _peer(text: str) -> str:
    if not text.startswith(DNS_SCHEME):
        return join_address(*peer_addr(text))
    match = re.fullmatch(r"[\w.-]+(?::(\d{1,5}))?", text.removeprefix(DNS_SCHEME), re.ASCII)
    if not match or not 0 < int(match[1] or 1) <= PORT_MAX:
        raise UsageError(
            f"{text!r} is not an address; use dns://NAME or dns://NAME:PORT, such as dns://growfs.default.svc:7070"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class PeersOptions(FeatureOptions):
    """See FeatureOptions."""

    peers: tuple[str, ...] | None = option(
        None,
        peers,
        "HOST:PORT,...",
        "Nodes that share their caches: each fetches a file from a peer that has cached it, or else from the remote."
        " dns://NAME:PORT: all addresses of a name; auto: the nodes of the Slurm job.",
        live=True,
        group="Several nodes",
        affects_node=True,
    )
    peer_addr: tuple[str, int] | None = option(
        None, peer_addr, "HOST:PORT", "Address on which this node serves its peers. Not encrypted.", affects_node=True
    )
    peer_token_file: Path | None = option(
        None, absolute_path, "FILE", "File that contains a secret shared by all peers, on one line.", affects_node=True
    )
    peer_bandwidth: int = option("0", rate, "RATE", "Maximum rate at which this node serves its peers; 0: no limit.")

    def check(self, options: Options, url: str) -> None:
        """See FeatureOptions."""
        refuse(
            "; see docs/many-nodes.md",
            (bool(self.peers) != bool(self.peer_addr), "--peers and --peer-addr must be used together"),
            (bool(self.peers) != bool(self.peer_token_file), "--peers and --peer-token-file must be used together"),
            (self.peer_bandwidth and not self.peers, "--peer-bandwidth needs --peers"),
            (self.peers and options.partition, "--partition cannot be used with --peers: every node fetches all files"),
            (
                self.peers and "--producer" in options.changed(),
                "--peers cannot be used with --producer: nodes may create different files",
            ),
        )
        refuse(
            "",
            (
                self.peers and url.startswith(PYTHON_SCHEME),
                "--peers cannot be used with py:, which creates files on each node",
            ),
        )
