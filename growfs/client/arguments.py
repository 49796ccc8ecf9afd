"""The arguments that several commands take: paths, a mount, and all options of a mount."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from growfs.client import completion
from growfs.errors import UsageError

FOLDER, MOUNTPOINT = completion.Folder(), completion.Mountpoint()


def _or_the_only_mount(ctx: click.Context, param: click.Parameter, given: Path | None) -> Path:
    """The mountpoint that is given, or else that of the only mount of this user."""
    from growfs.daemon.running import only_mount

    return given or only_mount().mountpoint


URL = click.argument("url", shell_complete=completion.values, metavar="URL")
A_MOUNT = click.argument("mountpoint", type=MOUNTPOINT, required=False, callback=_or_the_only_mount)


class MountCommand(click.Command):
    """A command that takes all mount options: from flags, the environment and --config.

    Its function gets those that are given, by field name, not parsed yet.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(context_settings={"auto_envvar_prefix": "GROWFS"}, **more)
        self.params.append(
            click.Option(
                ["--config"],
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Read options from a TOML file.",
            )
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """All parameters: the command's own, and the mount options, which are created on demand."""
        return [*super().get_params(ctx), *_mount_options()]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, without secrets in the command line of this process."""
        from growfs.daemon import launch
        from growfs.daemon.options import read_file

        launch.hide_secrets()
        _note_unread_variables({f"GROWFS_{parameter.name}".upper() for parameter in self.get_params(ctx)})
        config = ctx.params.pop("config") or _default_config()
        own = {parameter.name for parameter in self.params}
        given = {name: value for name, value in ctx.params.items() if name in own or value not in (None, ())}
        in_file = read_file(config) if config else {}
        ctx.params = in_file | given
        try:
            return super().invoke(ctx)
        except UsageError as error:
            flag, _, reason = str(error).partition(": ")
            key = flag.removeprefix("--")
            name = key.replace("-", "_")
            if ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
                source = f"GROWFS_{name.upper()}"
            elif name in in_file and name not in given:
                source = f"--config {config}: {key}"
            else:
                raise
            raise UsageError(f"{source}: {reason}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        from growfs.daemon.options import all_rows

        title = "Options"
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if row := all_rows().get(parameter.name or ""):
                title = row.metadata["group"] or title
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _default_config() -> Path | None:
    path = Path(click.get_app_dir("growfs"), "config.toml")
    return path if os.path.exists(path) else None  # in another user's home, Path.exists raises PermissionError


def _note_unread_variables(options: set[str]) -> None:
    """Name the variables that look like options and are not, but for those that Kubernetes sets for its services."""
    from difflib import get_close_matches

    from growfs.vfs.attributes import GENERATION_VARIABLE

    for name in sorted(os.environ.keys() - options - {GENERATION_VARIABLE, "GROWFS_FAULT"}):
        if name.startswith("GROWFS_") and not re.search(r"_SERVICE_(HOST|PORT)|_PORT($|_\d)", name):
            (similar,) = get_close_matches(name, options, 1) or [""]
            hint = similar and f"; did you mean {similar}?"
            click.echo(f"note: the environment variable {name} is not a growfs option{hint}", err=True)


@cache
def _mount_options() -> list[click.Option]:
    from growfs.daemon.options import all_rows, flag_name

    return [
        click.Option(
            [flag_name(name), name],
            metavar=row.metadata.get("metavar"),
            is_flag=row.default is False,
            multiple=bool(row.metadata.get("repeatable")),
            default=None,
            help=row.metadata["help"] + (f" [{row.metadata['default']}]" if row.metadata.get("default") else ""),
            shell_complete=completion.values,
        )
        for name, row in all_rows().items()
    ]
