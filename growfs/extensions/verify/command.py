"""The command `growfs verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from growfs.client.arguments import MOUNTPOINT
from growfs.daemon.status_text import files, printable
from growfs.units import format_size


@click.command()
@click.argument("place", type=MOUNTPOINT, metavar="MOUNTPOINT|CACHE_DIR")
def verify(place: Path) -> None:
    """Check the cached files against their digests.

    The digest of each file is recorded when the file is fetched. Damaged files are evicted, and fetched again if the
    cache is mounted. Exits with 1 if any file was damaged.
    """
    from growfs.extensions.verify.digests import verify as verify_cache
    from growfs.workers.process import lower_disk_priority

    lower_disk_priority()
    found = verify_cache(place)
    for path in found.damaged:
        click.echo(f"damaged: {printable(path)}")
    done = f" and evicted, {found.fetched:,} fetched again" if found.damaged else ""
    if found.error:
        done += f"; the others not yet: {printable(found.error)}"
    click.echo(f"{files(found.files)} verified, {format_size(found.bytes)}: {len(found.damaged):,} damaged{done}")
    sys.exit(1 if found.damaged else 0)
