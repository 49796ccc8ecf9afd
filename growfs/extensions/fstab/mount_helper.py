"""The helper of mount(8), for `mount -t fuse.growfs URL MOUNTPOINT -o OPTIONS` and lines of fstab(5).

mount(8) runs /sbin/mount.fuse.growfs with its own arguments. If that is missing, it runs mount.fuse3(8), which runs
`growfs URL MOUNTPOINT -o OPTIONS`. Both become a command line of `growfs mount`. mount(8) removes PATH and HOME from
the environment.
"""

from __future__ import annotations

import getopt
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from growfs.cache.cache_folder import daemon_of
from growfs.daemon.option_parsers import absolute
from growfs.daemon.options import all_rows, flag_name
from growfs.daemon.running import is_served
from growfs.errors import UsageError
from growfs.fuse.mounting import IGNORED, mounted_at
from growfs.paths import absolute_path
from growfs.remote.names import redact


def main(arguments: Sequence[str], growfs: Callable[..., object]) -> None:
    """Mount, and end this process with an exit code of mount(8). growfs: the `growfs` command."""
    try:
        words = command_line(arguments)
    except UsageError as error:
        click.echo(f"growfs: {error}", err=True)
        sys.exit(1)  # wrong usage
    if not words or is_mounted(*words[-2:]):
        return
    sys.argv[1:] = words
    try:
        growfs(prog_name="growfs")
    except SystemExit as end:
        sys.exit({0: 0, UsageError.exit_code: 1}.get(int(end.code or 0), 32))


def is_mounted(url: str, mountpoint: str) -> bool:
    """Whether the URL is mounted there. `mount -a` asks again for existing mounts: it does not know the device name.

    Only the mount table is consulted: a daemon may live on after umount(8), and accessing the mountpoint of an
    automount would wait for this very mount.
    """
    row = mounted_at(absolute_path(Path(mountpoint)))
    return row is not None and is_served(row.cache) and daemon_of(row.cache).get("url") == redact(absolute(url))


def command_line(arguments: Sequence[str]) -> list[str]:
    """Convert a helper's arguments to those of growfs.

    They are SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS] [-N NAMESPACE] [-t TYPE]. The result is empty if nothing is to be
    mounted (-f). Raises UsageError.
    """
    try:
        given, places = getopt.gnu_getopt(list(arguments), "fnsvN:o:t:")
    except getopt.GetoptError as error:
        raise UsageError(f"mount: {error}") from None
    switches = dict(given)
    if len(places) != 2:
        raise UsageError("mount: usage: mount -t fuse.growfs URL MOUNTPOINT -o OPTIONS")
    if "-N" in switches:
        raise UsageError("mount: another mount namespace (-N) is not supported; use nsenter --mount")
    options = flags(switches.get("-o", ""), sloppy="-s" in switches)
    return [] if "-f" in switches else ["mount", *options, "--", *places]


def flags(text: str, sloppy: bool = False) -> list[str]:
    """The flags of `growfs mount` for the options of mount(8). sloppy: leave out unknown ones. Raises UsageError.

    As in mount(8), a value with a comma is written in double quotes.
    """
    rows = {flag_name(name): row for name, row in all_rows().items()}
    result = []
    for word in re.findall(r'(?:"[^"]*"|[^,])+', text):
        name, equals, value = word.partition("=")
        flag = flag_name(name)
        if name == "remount":
            raise UsageError("mount: growfs cannot remount; growfs set changes the options of a running mount")
        if flag in rows or flag == "--config":
            metavar = rows[flag].metadata.get("metavar") if flag in rows else "FILE"
            if bool(equals) != bool(metavar):
                raise UsageError(f"mount: {word}: use {f'{name}={metavar}' if metavar else name}")
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            result.append(f"{flag}{equals}{value}")
        elif not (IGNORED.fullmatch(name) or sloppy):
            raise UsageError(
                f"mount: no such option: {name}; growfs mount --help lists them; for several values, write"
                " include=A,include=B; put a value with a comma in double quotes"
            )
    return result
