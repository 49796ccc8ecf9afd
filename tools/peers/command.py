"""The common part of the commands `tools/bench peers` and `tools/bench dlio`: their options, and what they write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

from tools.benchmarks.measure import BenchError
from tools.pages import add_options, results_file
from tools.peers import environment
from tools.peers.peer import Peer
from tools.peers.results import Results


def parser(
    prog: str, description: str, quick: str, cases: Iterable[str], peers: Iterable[Peer]
) -> argparse.ArgumentParser:
    """The options of a command. quick: what --quick measures."""
    options = argparse.ArgumentParser(prog=prog, description=description)
    add_options(options, quick)
    options.add_argument("--case", action="append", choices=[*cases], help="measure only this case; may be repeated")
    names = [peer.name for peer in peers]
    options.add_argument("--peer", action="append", choices=names, help="only this peer; may be repeated")
    options.add_argument("--rounds", type=int, default=1, help="how often to measure each figure (default: 1)")
    options.add_argument("--add", action="store_true", help="keep the results that are there, and add to them")
    return options


def run(
    options: argparse.ArgumentParser,
    given: Sequence[str],
    file: Path,
    measure: Callable[[argparse.Namespace, Results], None],
    write: Callable[[Results, Path], None],
) -> int:
    """Measure unless told not to, and write what there is, whatever has failed. Returns the exit status.

    file: where results are by default. write: writes the page into a folder.
    """
    arguments, results = begin(options, given, file)
    status = 0
    try:
        if not arguments.page:
            measure(arguments, results)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        status = 1
    finally:
        results.save(arguments.out / file.name)
        if results.runs:
            write(results, arguments.out)
    return status if results.runs else 1


def begin(options: argparse.ArgumentParser, given: Sequence[str], file: Path) -> tuple[argparse.Namespace, Results]:
    """The arguments, with `out` set, and the results to add to. file: where results are by default."""
    arguments = options.parse_args(given)
    if arguments.rounds < 1:
        options.error("--rounds is at least 1")
    is_read = arguments.add or arguments.page
    kept = results_file(options, arguments, file, is_read)
    arguments.out = kept.parent
    return arguments, Results.load(kept) if is_read else Results()


def prepare(
    arguments: argparse.Namespace, results: Results, candidates: Iterable[Peer], quick: Container[str]
) -> list[Peer]:
    """Install the peers, and return the wanted ones that work here. quick: the names of those that --quick measures.

    The reason why another does not work goes to the results.
    """
    environment.create()
    for line in () if arguments.quick else environment.install():
        print(f"not installed: {line}", file=sys.stderr)
    found = []
    for peer in candidates:
        if peer.name not in (arguments.peer or (quick if arguments.quick else [peer.name])):
            continue
        if reason := peer.unavailable():
            results.left_out[peer.name] = reason
        else:
            results.left_out.pop(peer.name, None)
            found.append(peer)
    return found


def described(peer: Peer) -> dict[str, str]:
    """The description of a peer on the page."""
    return {
        "about": peer.about,
        "version": peer.version(),
        "flags": peer.flags,
        "documents": peer.documents,
        "note": peer.note,
    }
