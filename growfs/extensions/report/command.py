"""The command `growfs report`."""

from __future__ import annotations

from pathlib import Path

import click

from growfs.client.arguments import A_MOUNT
from growfs.units import parsed, seconds


@click.command()
@A_MOUNT
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="HTML file to write."
)
@click.option("--last", metavar="TIME", help="Show only this much of the history, such as the last 2h or 7d.")
def report(mountpoint: Path, output: Path, last: str | None) -> None:
    """Write an HTML page with charts of a mount's history.

    The page needs neither a network nor a server. MOUNTPOINT may also be the folder of a cache that is not mounted.
    """
    from growfs.extensions.report.page import Report

    Report.of(mountpoint, parsed("report: --last", seconds, last) if last else None).save(output)
    click.echo(f"{output}: written; open it in a browser")
