"""The `growfs` command: a function for each subcommand, which sends a request to the daemon and prints the result."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import growfs
from growfs.client import completion
from growfs.client.arguments import A_MOUNT, FOLDER, MOUNTPOINT, URL, MountCommand
from growfs.client.mount_command import start_daemon
from growfs.client.progress import Bar
from growfs.daemon.status_text import brief, files, printable, render, state_text, table
from growfs.errors import GrowfsError, UsageError
from growfs.extensions import ALL
from growfs.proc import become
from growfs.status_and_metrics import MountStatus
from growfs.units import format_size

SECTIONS = {
    "Mount": ["mount", "wait", "next", "status", "log", "list", "umount"],
    "Plan and check": [],
    "Change a mount": ["set", "pause", "resume", "release"],
    "Choose files": ["fetch", "pin", "unpin", "evict"],
    "Without a mount": [],
    "Shell": ["completion"],
}
"""The subcommands, as `growfs --help` lists them. Extensions add theirs."""
for _command, (_section, _) in ALL.items():
    SECTIONS.setdefault(_section, []).append(_command)


class CommandGroup(click.Group):
    """Prints errors, and lists the subcommands in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the sections."""
        return [name for names in SECTIONS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections. Summaries are not cut."""
        for name in ALL:
            self.get_command(ctx, name)
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(formatter.width)) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The subcommand. That of an extension is imported now."""
        if name not in self.commands:
            for command in [name] if name in ALL else ALL:  # an unknown name may resemble any
                _, extension = ALL[command]
                self.commands[command] = getattr(import_module(f"growfs.extensions.{extension}.command"), command)
        return self.commands.get(name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except GrowfsError as error:
            if ctx.params["debug"]:
                raise
            _show_error(str(error))
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else ctx.command_path
            _show_error(f"{error.format_message().rstrip('.')}; see {command} --help")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("growfs: interrupted", err=True)
            ctx.exit(128 + signal.SIGINT)  # as a shell reports it


def _show_error(text: str) -> None:
    """Print an error as one line, and on a terminal what happened, what to do and the log on a line each."""
    shown = printable(text)
    click.echo(f"growfs: {shown.replace('; ', chr(10) + ' ' * 8) if os.isatty(2) else shown}", err=True)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(growfs.__version__, prog_name="growfs")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Mount remote storage as a folder that lists only files that are complete on the local disk."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # paths need not be UTF-8


@main.command(cls=MountCommand)
@URL
@click.argument("mountpoint", type=FOLDER)
@click.option("--foreground", is_flag=True, help="Stay in the foreground until unmounted. SIGTERM unmounts.")
def mount(url: str, mountpoint: Path, foreground: bool, **given: Any) -> None:
    """Mount URL on MOUNTPOINT, and return when training can start.

    URL is any fsspec URL, such as s3://bucket/prefix, gs://, az://, https://, hf:// or file://, or a local path.
    With py:FUNCTION, your own function creates the files. MOUNTPOINT is created if it does not exist.
    """
    start_daemon(url, mountpoint, given, foreground)


def _call(mountpoint: Path, command: str, on_progress: Callable[[Any], None] | None = None, **arguments: Any) -> Any:
    from growfs.daemon.control_client import call
    from growfs.daemon.running import find_living

    return call(find_living(mountpoint).cache, command, on_progress, **arguments)


@main.command()
@A_MOUNT
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(mountpoint: Path, as_json: bool) -> None:
    """Show what a mount is doing."""
    from growfs.daemon.control_client import status_of
    from growfs.daemon.running import find_living

    if as_json:
        click.echo(json.dumps(_call(mountpoint, "status"), indent=1))
    else:
        click.echo(render(status_of(find_living(mountpoint).cache)), nl=False)


@main.command()
@A_MOUNT
@click.option("--files", metavar="N", help="Wait until N files are cached.")
@click.option("--bytes", "bytes_", metavar="SIZE", help="Wait until SIZE bytes are cached.")
@click.option("--fraction", metavar="F", help="Wait until this fraction of all files is cached: 0.5 or 50%.")
@click.option("--all", "everything", is_flag=True, help="Wait until every file is cached.")
@click.option("--timeout", metavar="TIME", help="Fail after this time.")
def wait(
    mountpoint: Path, files: str | None, bytes_: str | None, fraction: str | None, everything: bool, timeout: str | None
) -> None:
    """Wait until training can start, or until enough files are cached.

    Waits as growfs mount does, unless one of the first four options says how much is enough. Fails if no more files
    will be fetched, or after --timeout.
    """
    from growfs.client.wait import Enough
    from growfs.client.wait import wait as wait_for

    now = wait_for(mountpoint, Enough.parse(files, bytes_, fraction, everything), timeout)
    click.echo(f"{mountpoint}: {brief(now)}")


@main.command()
@click.argument("mountpoint", type=MOUNTPOINT)
@click.option("--lazy", is_flag=True, help="Unmount even while files are open; they stay readable.")
def umount(mountpoint: Path, lazy: bool) -> None:
    """Unmount; the cached files stay for the next mount."""
    from growfs.daemon import launch

    if launch.stop(mountpoint, lazy):
        click.echo(f"{mountpoint}: its daemon was gone; removed the dead mount")


@main.command("next")
@click.argument("path", type=MOUNTPOINT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def next_(path: Path, command: tuple[str, ...]) -> None:
    """Begin the next generation of a mount or a filled folder, and print its path.

    If there is nothing new, prints the path of the current generation. With a COMMAND (after --), runs it in the
    generation's folder instead, and keeps the generation until the command ends. The command also finds the path in the
    variable GROWFS_GENERATION.
    """
    from growfs.client.generation import begin_generation, run_in

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
        if command:
            run_in(path, command)
        click.echo(begin_generation(path))


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the growfs mounts on this machine."""
    from growfs.daemon.place import Running
    from growfs.daemon.running import running, state_of

    states: dict[Running, str] = {}

    def ask(mount: Running) -> None:
        states[mount] = state_of(mount)

    # A daemon, or the disk of its cache, may hang: then its thread ends with this process.
    asked = {mount: threading.Thread(target=ask, args=[mount], daemon=True) for mount in running()}
    deadline = time.monotonic() + 5.0
    for thread in asked.values():
        thread.start()
    rows = []
    for mount, thread in asked.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        state = states.get(mount, f"its daemon has not answered for 5 s; see {mount.cache}/log")
        rows.append({"mountpoint": str(mount.mountpoint), "cache": str(mount.cache), "state": state})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        click.echo(table(rows), nl=False)


@main.command()
@A_MOUNT
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
def log(mountpoint: Path, follow: bool) -> None:
    """Print the log of a mount."""
    from growfs.daemon.running import find

    become("tail", "-n", "+1", *(["-F"] if follow else []), "--", find(mountpoint).cache / "log")


@main.command("completion")
@click.argument("shell", type=click.Choice(list(completion.SHELLS)))
def completion_(shell: str) -> None:
    """Print the code that lets a shell complete growfs commands."""
    click.echo(completion.SHELLS[shell](main, {}, "growfs", "_GROWFS_COMPLETE").source())


def _pattern(mountpoint: Path, glob: str) -> str:
    """The pattern for a path below the mountpoint, as a shell completes it; any other pattern as it is.

    data/** is a pattern even if data is the mountpoint, and so is everything within the mount (mountpoint .), unless it
    begins as only a path does.
    """
    is_path = glob.startswith(("/", "./", "../")) or (mountpoint != Path() and not re.search(r"[*?[]", glob))
    if not is_path or mountpoint not in Path(glob).parents:
        return glob
    return f"/{Path(glob).relative_to(mountpoint)}{'/' * glob.endswith('/')}"


def _with_globs(run: Callable[[Path, tuple[str, ...]], None]) -> click.Command:
    """A subcommand with a mountpoint and patterns; its help text is the docstring."""

    @wraps(run)
    def with_patterns(mountpoint: Path, globs: tuple[str, ...]) -> None:
        run(mountpoint, tuple(_pattern(mountpoint, glob) for glob in globs))

    globs = click.argument("globs", nargs=-1, required=True, metavar="GLOB...", shell_complete=completion.paths)
    return main.command()(click.argument("mountpoint", type=MOUNTPOINT)(globs(with_patterns)))


def _fetch(mountpoint: Path, command: str, globs: tuple[str, ...]) -> None:
    with Bar(command) as bar:

        def show(progress: dict[str, Any]) -> None:
            done, wanted = progress["fetched"] + progress["failed"], progress["wanted"]
            bar.show(f"{done:,} of {files(wanted)}", done, wanted)

        result = _call(mountpoint, command, show, globs=globs)
    click.echo(f"{files(result['files'])} matched, {result['fetched']:,} fetched")
    if result["failed"]:
        raise GrowfsError(f"{files(result['failed'])} could not be fetched: {result['error']}")


@_with_globs
def pin(mountpoint: Path, globs: tuple[str, ...]) -> None:
    """Fetch matching files, and never evict them.

    Patterns use .gitignore syntax.
    """
    _fetch(mountpoint, "pin", globs)


@_with_globs
def unpin(mountpoint: Path, globs: tuple[str, ...]) -> None:
    """Allow matching files to be evicted again."""
    click.echo(f"{files(_call(mountpoint, 'unpin', globs=globs)['files'])} unpinned")


@_with_globs
def fetch(mountpoint: Path, globs: tuple[str, ...]) -> None:
    """Fetch matching files now."""
    _fetch(mountpoint, "fetch", globs)


@_with_globs
def evict(mountpoint: Path, globs: tuple[str, ...]) -> None:
    """Delete the cached copies of matching files.

    Opening such a file fetches it again.
    """
    result = _call(mountpoint, "evict", globs=globs)
    kept = f"; {result['kept']:,} kept (open, pinned, or the last in their directory)" if result["kept"] else ""
    click.echo(f"{files(result['files'])} evicted, {format_size(result['bytes'])}{kept}")


@main.command("set")
@click.argument("mountpoint", type=MOUNTPOINT)
@click.argument("options", nargs=-1, required=True, metavar="NAME=VALUE...", shell_complete=completion.settings)
def set_(mountpoint: Path, options: tuple[str, ...]) -> None:
    """Change options of a mount, such as cache-size=1TB."""
    given = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"set: {text!r}: use NAME=VALUE, such as cache-size=1TB")
        given[name.replace("-", "_")] = value
    _call(mountpoint, "set", options=given)
    click.echo(f"{mountpoint}: set {', '.join(options)}")


@main.command()
@A_MOUNT
def pause(mountpoint: Path) -> None:
    """Stop prefetching; files are still fetched when opened."""
    _call(mountpoint, "pause")
    click.echo(f"{mountpoint}: paused; to continue: growfs resume {mountpoint}")


@main.command()
@A_MOUNT
def resume(mountpoint: Path) -> None:
    """Resume prefetching."""
    now = MountStatus.parse(_call(mountpoint, "resume"))
    click.echo(f"{mountpoint}: resumed; {state_text(now)}")


@main.command()
@A_MOUNT
def release(mountpoint: Path) -> None:
    """End all holds, so that files no longer listed can be evicted."""
    readers = MountStatus.parse(_call(mountpoint, "release")).readers
    click.echo(f"{mountpoint}: ended the holds of {len(readers):,} process{'es' * (len(readers) != 1)}")


if __name__ == "__main__":
    main()
