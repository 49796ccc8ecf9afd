"""What `tools/bench dlio` writes from its results: a section of docs/performance.md."""

from __future__ import annotations

from pathlib import Path

from tools.peers.results import Results

FILE = Path(__file__).parents[2] / "docs" / "dlio.json"


def write(results: Results, folder: Path) -> None:
    """Write the text."""
