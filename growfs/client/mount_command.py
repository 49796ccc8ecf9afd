"""What a command that mounts does; and for programs that run it: its words, a file with its options, and its errors."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from growfs.client.progress import Bar
from growfs.daemon.status_text import brief, engine, printable, state_text
from growfs.errors import GrowfsError, UsageError
from growfs.proc import not_ignored
from growfs.status_and_metrics import MountState, MountStatus

if TYPE_CHECKING:
    from growfs.daemon.options import Options


def start_daemon(
    url: str,
    mountpoint: Path,
    given: dict[str, Any],
    foreground: bool,
    usage: str = "mount URL MOUNTPOINT",
    doing: str = "mounting",
    front_end: str | None = None,
) -> None:
    """Start a daemon, and report what it does. given: the options, not parsed yet. front_end: see MountRequest.

    usage, doing: of the command, for display. Raises GrowfsError.
    """
    from growfs.daemon import launch
    from growfs.daemon.options import Options

    options = Options.parse(given)
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(mountpoint)):
        raise UsageError(f"{mountpoint}: is a URL, not a folder; the URL comes first: growfs {usage}")
    # As Ctrl-C. Without a handler, the kernel gives no signal to pid 1 of a container (pid_namespaces(7)).
    for number in not_ignored(signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    on_daemon = launch.end_with_this_process if foreground else None
    with Bar(doing) as bar:
        daemon, status = launch.start(url, mountpoint, options, bar.show_start, front_end, on_daemon)
    try:
        for line in _lines_of_start(status, options):
            click.echo(line)
    except OSError:  # nobody reads them
        if foreground:
            daemon.terminate()
            daemon.wait()
        raise
    if foreground:
        sys.exit(launch.run_in_foreground(daemon, status))


def _lines_of_start(status: MountStatus, options: Options) -> Iterator[str]:
    """What a new mount reports."""
    from growfs.daemon.option_parsers import nodes_of_job

    yield f"{status.mountpoint}: {brief(status)}"
    yield f"{status.mountpoint}: {engine(status)}"
    if status.state is not MountState.COMPLETE:
        yield f"{status.mountpoint}: waited for {status.waited_for}; now {state_text(status)}"
    if options.engine == "auto":
        if status.engine == "links":
            yield "note: programs see symbolic links; if a program needs plain files, pass --engine libfuse"
        elif status.engine == "libfuse" and not options.allow_other:
            yield "note: --engine links reads at disk speed, but programs see symbolic links"
    if status.metrics_url:
        yield f"{status.mountpoint}: metrics at {status.metrics_url}"
    if status.unpromised:
        yield f"note: not every directory has a file yet: {printable(status.unpromised)}"
    if (nodes := nodes_of_job()) > 1 and not (status.partition or status.peers):
        yield (
            f"note: each of the {nodes} nodes fetches all files; --partition auto gives each its own"
            " share, and --peers lets them share their caches"
        )
    for warning in status.warnings:
        yield f"warning: {printable(warning)}"


def config_text(options: Mapping[str, Any]) -> str:
    """Options by field name, in the form of a file for --config."""
    # JSON's text, numbers, booleans and lists of them are also valid TOML, except for its escapes of surrogates.
    values = {name: json.dumps(value, default=str, ensure_ascii=False) for name, value in options.items()}
    return "".join(f"{name.replace('_', '-')} = {value}\n" for name, value in values.items())


def mount_command(url: str, mountpoint: Path, *flags: str) -> list[str]:
    """The words of a command that mounts."""
    return [sys.executable, "-m", "growfs.cli", "mount", *flags, "--", url, str(mountpoint)]


def mount_error(exit_code: int, errors: str) -> GrowfsError:
    """The error of such a command. errors: what it printed to standard error."""
    message = errors.strip().rpartition("\n")[2].removeprefix("growfs: ")
    if exit_code < 0:
        message = f"the mount command was killed by signal {-exit_code}; check dmesg: memory may have run out"
    return (UsageError if exit_code == UsageError.exit_code else GrowfsError)(message)
