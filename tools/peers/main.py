"""The command `tools/bench peers`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tools.benchmarks.measure import temporary_folder
from tools.peers import command, page
from tools.peers.cases import CASES, Setting
from tools.peers.peer import PEERS, QUICK
from tools.peers.results import FILE, Results

LEFT_OUT = {
    "goofys, GeeseFS, Mountpoint for S3": "no package of Debian or PyPI",
    "JuiceFS (a large bucket)": "it shows only files in its own format",
    "LitData": "its downloader refuses a store without TLS, and this one has none",
}


def main(given: Sequence[str], machine: dict[str, object]) -> int:
    """Measure, and write the page. machine: properties that the figures depend on."""
    options = command.parser(
        "tools/bench peers",
        "Measure growfs alongside other tools, and write docs/side-by-side.md from that.",
        "two peers, small sizes",
        CASES,
        PEERS,
    )
    return command.run(options, given, FILE, partial(measure, machine), page.write)


def measure(machine: dict[str, object], arguments: argparse.Namespace, results: Results) -> None:
    results.machine, results.quick = machine, arguments.quick
    results.left_out |= LEFT_OUT
    found = command.prepare(arguments, results, PEERS, [peer.name for peer in QUICK])
    known = results.peers | {peer.name: command.described(peer) for peer in found}
    results.peers = {peer.name: known[peer.name] for peer in PEERS if peer.name in known}
    for name in arguments.case or CASES:
        with temporary_folder() as folder:
            CASES[name](Setting(folder, arguments.quick, arguments.rounds, found, results))
        results.cases[name]["measured"] = f"{results.date}, {machine['cpu']}"
        results.save(arguments.out / FILE.name)
