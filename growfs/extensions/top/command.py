"""The command `growfs top`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from growfs.client.arguments import MOUNTPOINT


@click.command()
@click.argument("mountpoint", type=MOUNTPOINT, required=False)
def top(mountpoint: Path | None) -> None:
    """Watch one mount, or all mounts, live."""
    from growfs.extensions.top import app

    sys.exit(app.run(mountpoint))
