"""The command `tools/bench dlio`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from tools.benchmarks.measure import BenchError, temporary_folder
from tools.dlio import page
from tools.dlio.cases import CASES, PEERS_OF_DLIO, SHARE, is_other, make_data, ways
from tools.dlio.profiles import PROFILES
from tools.dlio.runner import Runner, install
from tools.peers import command
from tools.peers.cases import INGEST_FACTOR, Setting
from tools.peers.peer import BUCKET
from tools.peers.results import Results

FILE = page.FILE
QUICK_PROFILE, QUICK_PEERS = "resnet50", ("growfs", "growfs --exact", "rclone mount")


def main(given: Sequence[str], machine: dict[str, object]) -> int:
    """Measure, and write the page. machine: properties that the figures depend on."""
    options = command.parser(
        "tools/bench dlio",
        "Run the benchmark DLIO over growfs and other mounts, and write docs/dlio.md.",
        "a profile with few files",
        CASES,
        PEERS_OF_DLIO,
    )
    names = [profile.name for profile in PROFILES]
    options.add_argument("--profile", action="append", choices=names, help="run only this one; may be repeated")
    return command.run(options, given, FILE, partial(measure, machine), page.write)


def measure(machine: dict[str, object], arguments: argparse.Namespace, results: Results) -> None:
    results.machine, results.quick, version = machine, arguments.quick, install()
    peers = command.prepare(arguments, results, PEERS_OF_DLIO, QUICK_PEERS)
    ordered = sorted((*ways(peers), *peers), key=is_other)  # growfs first
    results.peers |= {peer.name: command.described(peer) for peer in ordered}
    wanted = arguments.profile or ([QUICK_PROFILE] if arguments.quick else [profile.name for profile in PROFILES])
    profiles = [profile for profile in PROFILES if profile.name in wanted]
    if arguments.quick:
        profiles = [profile.fewer() for profile in profiles]
    results.cases |= {"dlio": {"version": version, "share": SHARE, "ingest": INGEST_FACTOR}}
    results.cases |= {profile.name: {**asdict(profile), "slowed_s": profile.slowed().step_s} for profile in profiles}
    with temporary_folder() as place, Runner(place) as runner:
        for profile in profiles:
            print(f"DLIO writes {profile.name}", file=sys.stderr, flush=True)
            with temporary_folder() as folder:
                setting = Setting(folder, arguments.quick, arguments.rounds, peers, results)
                try:
                    make_data(runner, profile, folder / "remote" / BUCKET)
                    with setting.bucket() as (endpoint, bucket):
                        for name in arguments.case or CASES:
                            CASES[name](setting, runner, profile, endpoint, bucket)
                            results.save(arguments.out / FILE.name)
                    results.left_out.pop(profile.name, None)
                except (BenchError, OSError) as error:
                    results.left_out[profile.name] = str(error).splitlines()[0]
                    print(f"  failed: {error}", file=sys.stderr, flush=True)
