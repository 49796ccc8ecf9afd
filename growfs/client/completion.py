"""The completions that a shell offers for the command line. click writes the scripts for the shells, and asks here.

Nothing here lists or opens files in a mount: that would count as a reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from growfs.errors import GrowfsError

METAVARS = {"FILE": "file", "FUNCTION": "file", "URL": "file", "DIR": "dir"}
"""Those for which the shell itself completes a path, and click's types for that."""

Items = list[CompletionItem]


class Folder(click.Path):
    """A path. Unlike click's, it is not accessed: it may be of a mount whose daemon hangs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path as it is given."""
        return Path(value)


class Mountpoint(Folder):
    """The path of a mount of this machine."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        """The mountpoints, as listed by the kernel."""
        from growfs.fuse.mounting import mounts

        paths = [str(mount.mountpoint) for mount in mounts()]
        here = "" if not incomplete or incomplete.startswith("/") else f"{Path.cwd()}/"
        found = _starting(incomplete, [path.removeprefix(here) for path in paths if path.startswith(here)])
        return found or [CompletionItem(incomplete, type="dir")]


def paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The paths in the mount, from its daemon."""
    from growfs.daemon.control_client import call
    from growfs.daemon.running import find_living

    with suppress(GrowfsError):
        cache = find_living(ctx.params["mountpoint"]).cache
        answer = call(cache, "complete", answer_s=2.0, prefix=incomplete)  # a user waits at a prompt
        return [CompletionItem(path) for path in answer["paths"]]
    return []


def settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The names of the options that `growfs set` changes. bash separates NAME, = and VALUE."""
    from growfs.daemon.options import all_rows, flag_name

    given = " ".join(ctx.params.get("options") or ()).replace(" = ", "=").split()
    if "=" in incomplete or (given and ("=" not in given[-1] or given[-1].endswith("="))):
        return []  # a value
    return _starting(
        incomplete, [f"{flag_name(name)[2:]}=" for name, row in all_rows().items() if row.metadata["live"]]
    )


def values(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The words that an option accepts, or its files."""
    metavar = param.metavar or ""
    if "|" in metavar:
        return _starting(incomplete, metavar.split("|"))
    return [CompletionItem(incomplete, type=METAVARS[metavar])] if metavar in METAVARS else []


def _starting(incomplete: str, words: Sequence[str]) -> Items:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


# The scripts of click, but without a space after words that end in / or =, which are incomplete, and without error
# messages at the prompt.


@add_completion_class
class Bash(BashComplete):
    """Completion for bash."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value != *[/=] ]] || compopt -o nospace"
    ).replace("bash_complete $1", "bash_complete $1 2>/dev/null")


@add_completion_class
class Zsh(ZshComplete):
    """Completion for zsh."""

    source_template = ZshComplete.source_template.replace(
        'completions+=("$key")', '[[ "$key" == *[/=] ]] && compadd -U -S "" -- "$key" || completions+=("$key")'
    ).replace("zsh_complete %(prog_name)s", "zsh_complete %(prog_name)s 2>/dev/null")


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": FishComplete}
"""By the name of the command."""
