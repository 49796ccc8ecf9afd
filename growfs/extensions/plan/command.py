"""The command `growfs plan`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from growfs.errors import UsageError


@click.command()
@click.option("--data-size", metavar="SIZE", required=True, help="Total size of the dataset.")
@click.option("--files", metavar="N", help="Number of files: 50000, 100k, 1.5M.")
@click.option("--file-size", metavar="SIZE", help="Size of one file, instead of --files.")
@click.option("--cache-size", metavar="SIZE", required=True, help="Size of the cache.")
@click.option("--bandwidth", metavar="RATE", required=True, help="Download rate of the link: 1GB/s.")
@click.option("--read-rate", metavar="RATE", required=True, help="Rate at which the training loop reads: 500MB/s.")
@click.option("--turnover", metavar="F", default="20%", help="As for growfs mount. [20%]")
@click.option("--epochs", metavar="N", default="50", help="Number of epochs; each reads all listed files once. [50]")
@click.option("--nodes", metavar="N", default="1", help="Number of nodes that share their caches (--peers). [1]")
@click.option(
    "--exact", is_flag=True, help="Predict the passes of growfs mount --exact, with this cache size and larger ones."
)
@click.option("--part-size", metavar="SIZE", default="5%", help="With --exact: as for growfs mount.")
@click.option("--draw", metavar="FILE", type=click.Path(path_type=Path), help="Plot the result to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(exact: bool, part_size: str, draw: Path | None, as_json: bool, **given: str | None) -> None:
    """Predict coverage and traffic for a cache size."""
    from rich.console import Console

    from growfs.daemon.option_parsers import size_or_percentage
    from growfs.extensions.plan import texts
    from growfs.simulation import exact as whole_epochs
    from growfs.simulation.nodes import simulate_nodes
    from growfs.simulation.training import simulate_policies
    from growfs.units import parsed

    workload = texts.parse({"--" + name.replace("_", "-"): text for name, text in given.items()})
    room = parsed("--part-size", size_or_percentage, part_size)
    console = Console(width=None if sys.stdout.isatty() else 120)
    if exact:
        _refuse_given("turnover", "epochs", "nodes", "draw", reason="cannot be used with --exact")
        passes = whole_epochs.simulate_larger(workload, room)
        if as_json:
            click.echo(json.dumps([asdict(row) for row in passes], indent=1))
            return
        console.print(whole_epochs.exact_table(workload, passes))
        click.echo(whole_epochs.exact_advice(passes))
        if warning := whole_epochs.exact_warning(workload, passes):
            click.echo(f"warning: {warning}")
        return
    _refuse_given("part_size", reason="needs --exact")
    found = simulate_policies(workload)
    if draw:
        texts.draw(found, draw)
    nodes = None
    if workload.nodes > 1:  # what one node shows does not depend on where its files come from
        nodes = simulate_nodes(workload.nodes, workload.data_bytes, workload.cache_bytes, found[0].all_seen_days)
    if as_json:
        rows = [asdict(row) for row in found]
        click.echo(json.dumps({"policies": rows, "nodes": asdict(nodes)} if nodes else rows, indent=1))
        return
    console.print(texts.table(workload, found))
    if nodes:
        console.print(texts.nodes_table(nodes))
    for line in texts.whole_epochs(found) + texts.advice(workload, found[0]):
        click.echo(line)
    if not nodes and (hint := whole_epochs.exact_hint(workload, room, found[0])):
        click.echo(hint)


def _refuse_given(*names: str, reason: str) -> None:
    """Raise UsageError if one of these arguments of `plan` is given."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"plan: --{name.replace('_', '-')} {reason}")
