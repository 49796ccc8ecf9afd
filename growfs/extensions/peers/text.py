"""The other nodes in the text of the status."""

from __future__ import annotations

from growfs.daemon.status_text import Line
from growfs.status_and_metrics import MountStatus, PeersStatus
from growfs.units import format_size


def line(peers: PeersStatus, status: MountStatus) -> Line:
    """How many nodes answer, and what they have exchanged."""
    received, sent = format_size(status.fetch.peer_bytes_total), format_size(peers.sent_bytes_total)
    return "nodes", f"{peers.answering + 1} of {peers.nodes} answer, {received} received, {sent} sent"
