"""The command `tools/bench peers`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.benchmarks.measure import temporary_folder
from tools.peers import environment, page
from tools.peers.cases import CASES, Setting
from tools.peers.peer import PEERS, QUICK, Peer
from tools.peers.results import FILE, Results

LEFT_OUT = {
    "goofys, GeeseFS, Mountpoint for S3": "no package of Debian or PyPI",
    "JuiceFS (a large bucket)": "it shows only files in its own format",
    "LitData": "its downloader refuses a store without TLS, and this one has none",
}


def main(given: Sequence[str], machine: dict[str, object]) -> int:
    """Measure, and write the page. machine: properties that the figures depend on."""
    parser = argparse.ArgumentParser(
        prog="tools/bench peers",
        description="Measure growfs alongside other tools, and write the end of docs/performance.md from that.",
    )
    parser.add_argument("--quick", action="store_true", help="two peers, small sizes: only shows that it runs")
    parser.add_argument("--case", action="append", choices=CASES, help="measure only this case; may be repeated")
    parser.add_argument(
        "--peer", action="append", choices=[peer.name for peer in PEERS], help="only this peer; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often to measure each figure (default: 1)")
    parser.add_argument("--add", action="store_true", help="keep the results that are there, and add to them")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the results")
    parser.add_argument("--note", metavar="TEXT", help="a sentence for the page, on the state of the machine")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", default=FILE.parent, help="where the results go (default: docs)"
    )
    arguments = parser.parse_args(given)
    file = arguments.out / FILE.name
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    if (arguments.add or arguments.page) and not file.exists():
        parser.error(f"there are no results in {file}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results.load(file) if arguments.add or arguments.page else Results()
    results.left_out |= LEFT_OUT
    results.note = arguments.note or results.note
    try:
        if not arguments.page:
            measure(arguments, machine, results)
    finally:
        results.save(file)
    page.write(results, arguments.out)
    return 0 if results.runs else 1


def measure(arguments: argparse.Namespace, machine: dict[str, object], results: Results) -> None:
    """Run the selected cases with the peers that work here."""
    results.machine, results.quick = machine, arguments.quick
    environment.create()
    for line in () if arguments.quick else environment.install():
        print(f"not installed: {line}", file=sys.stderr)
    wanted = arguments.peer or [peer.name for peer in (QUICK if arguments.quick else PEERS)]
    found = []
    for peer in PEERS:
        if peer.name not in wanted:
            continue
        if reason := peer.unavailable():
            results.left_out[peer.name] = reason
        else:
            results.left_out.pop(peer.name, None)
            found.append(peer)
    known = results.peers | {peer.name: described(peer) for peer in found}
    results.peers = {peer.name: known[peer.name] for peer in PEERS if peer.name in known}
    for name in arguments.case or CASES:
        with temporary_folder() as folder:
            CASES[name](Setting(folder, arguments.quick, arguments.rounds, found, results))
        results.save(arguments.out / FILE.name)


def described(peer: Peer) -> dict[str, str]:
    """The description of a peer on the page."""
    return {
        "about": peer.about,
        "version": peer.version(),
        "flags": peer.flags,
        "documents": peer.documents,
        "note": peer.note,
    }
