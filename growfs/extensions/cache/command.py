"""The command `growfs cache`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from growfs.client.arguments import FOLDER
from growfs.daemon.status_text import printable, table
from growfs.extensions.cache.caches import CacheInfo, caches, unused
from growfs.extensions.cache.caches import remove as remove_cache
from growfs.units import format_size, parsed, seconds


def _default_cache_dir() -> Path:
    from growfs.daemon.options import DEFAULT_CACHE_DIR

    return Path(DEFAULT_CACHE_DIR).expanduser()


CACHE_DIR = click.argument("cache_dir", envvar="GROWFS_CACHE_DIR", type=FOLDER, default=_default_cache_dir)


@click.group()
def cache() -> None:
    """List and remove caches, which outlive their mounts."""


@cache.command("list")
@CACHE_DIR
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(cache_dir: Path, as_json: bool) -> None:
    """List the caches in CACHE_DIR.

    By default, the directory that `growfs mount` uses. The most recently used cache comes first.
    """
    found = caches(cache_dir)
    if as_json:
        click.echo(json.dumps([asdict(row) | {"path": str(row.path)} for row in found], indent=1))
    else:
        click.echo(table([_row(row) for row in found]), nl=False)


def _row(cache: CacheInfo) -> dict[str, str]:
    return {
        "cache": str(cache.path),
        "url": cache.url or "unknown",
        "size": "unknown" if cache.bytes is None else format_size(cache.bytes),
        "last_used": time.strftime("%Y-%m-%d", time.localtime(cache.used_at)),
        "in_use": "no" if cache.mountpoint is None else cache.mountpoint or "yes",
    }


@cache.command()
@click.argument("paths", metavar="CACHE...", nargs=-1, required=True, type=FOLDER)
def remove(paths: tuple[Path, ...]) -> None:
    """Remove the caches at these paths."""
    for path in paths:
        remove_cache(path)
        click.echo(f"removed {printable(path)}")


@cache.command()
@CACHE_DIR
@click.option(
    "--unused-for", metavar="TIME", default="30d", show_default=True, help="Remove only those unused for this long."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(cache_dir: Path, unused_for: str, yes: bool) -> None:
    """Remove caches that have gone unused for a long time.

    Also removes logs of failed mounts that are just as old.
    """
    old, logs = unused(cache_dir, parsed("cache prune: --unused-for", seconds, unused_for))
    if not old and not logs:
        click.echo(f"nothing in {printable(cache_dir)} has been unused for {unused_for}")
        return
    click.echo(table([_row(row) for row in old]), nl=False)
    for log in logs:
        click.echo(printable(log))
    if yes or click.confirm("Remove these?"):
        for path in (*(row.path for row in old), *logs):
            remove_cache(path)
