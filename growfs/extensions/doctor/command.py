"""The command `growfs doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from growfs.client import completion
from growfs.client.arguments import FOLDER, MountCommand
from growfs.units import parsed, seconds


@click.command(cls=MountCommand)
@click.argument("url", shell_complete=completion.values, required=False)
@click.argument("mountpoint", type=FOLDER, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--measure", metavar="TIME", default="2s", help="Time spent measuring each rate; 0: measure none. [2s]")
@click.option("--timeout", metavar="TIME", default="10s", help="Maximum time to wait for a server to respond. [10s]")
def doctor(url: str | None, mountpoint: Path | None, as_json: bool, measure: str, timeout: str, **given: Any) -> None:
    """Check whether this machine can mount URL, and how fast.

    Takes the same arguments as growfs mount. Without URL, checks only the machine and the cache. Exits with 1 if
    mounting would fail. Changes nothing.
    """
    from growfs.daemon.options import Options
    from growfs.extensions.doctor.examination import diagnose

    options = Options.parse(given)
    measure_s, answer_s = parsed("doctor: --measure", seconds, measure), parsed("doctor: --timeout", seconds, timeout)
    sys.exit(diagnose(url, mountpoint, options, measure_s, answer_s, as_json))
