"""The commands `growfs fill` and `growfs stop`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from growfs.client.arguments import FOLDER, MOUNTPOINT, URL, MountCommand
from growfs.client.mount_command import start_daemon


@click.command(cls=MountCommand)
@URL
@click.argument("folder", type=FOLDER)
@click.option("--foreground", is_flag=True, help="Stay in the foreground until stopped. SIGTERM stops it.")
def fill(url: str, folder: Path, foreground: bool, **given: Any) -> None:
    """Keep FOLDER filled with files from URL, without a mount.

    Returns when training can start. FOLDER/current is a plain folder of complete files. Begin its next generation with
    growfs.epoch() in Python, or growfs next FOLDER. Stop with growfs stop FOLDER. The other commands work as they do on
    a mount.
    """
    given = {"cache_dir": str(folder / ".cache")} | given  # hard links need the same file system
    start_daemon(url, folder, given, foreground, usage="fill URL FOLDER", doing="filling", front_end="fill")


@click.command()
@click.argument("folder", type=MOUNTPOINT)
def stop(folder: Path) -> None:
    """Stop growfs fill; the files stay in the folder.

    On a mount, stop does the same as umount.
    """
    from growfs.daemon import launch

    launch.stop(folder)
