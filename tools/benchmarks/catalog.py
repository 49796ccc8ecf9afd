"""A catalog of a million keys: how long it takes to list, what it costs in memory, and how soon it is there again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from growfs.remote.stores.s3.lister import REQUESTS_MAX
from tools.benchmarks.formula_s3 import PER_DIRECTORY
from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure, memory_mb, run, until
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.readers import Reader
from tools.benchmarks.servers import formula_server

PER_KEY_BYTES = 20
FEW = 10_000
"""Keys of the catalog whose memory is that of a daemon as such."""
READY_S = 3.0
SIZE = 1000
DELAY_S = 0.05  # of each page, as from a store that is not next door
CACHE_SIZE = "16MiB"  # holds four times as many files as there are directories; a million would be about something else


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """One listing into an empty cache, whatever the number of rounds; then as many mounts as there are rounds."""
    few = few_keys(setting.folder / "few")
    keys = 20_000 if setting.quick else 1_000_000
    ready: list[float] = []
    ready_one: list[float] = []
    with formula_server(keys, SIZE, setting.folder / "server.log") as endpoint:
        flags = ["--endpoint-url", endpoint, "--cache-size", CACHE_SIZE]
        began = time.monotonic()
        with mounted("s3://formula", setting.folder, "--wait-files", 1, *flags) as mount:
            first_s = mount.returned_s
            latency = probed(mount)
            listed_s = time.monotonic() - began
            after_listing = memory(mount)
            until(lambda: mount.status()["state"] == "held", "filling the cache", every_s=0.5)
            settled_s = time.monotonic() - began
            settled = memory(mount)
            status = mount.status()
            if status["remote"]["files"] != keys:
                raise BenchError(f"{status['remote']['files']} of {keys} keys were listed")
        for _ in range(setting.rounds):
            with mounted("s3://formula", setting.folder, *flags) as mount:
                ready.append(mount.returned_s)
            with mounted("s3://formula", setting.folder, "--wait-files", 1, *flags) as mount:
                ready_one.append(mount.returned_s)
        with mounted("s3://formula", setting.folder, *flags) as mount:
            again = time.monotonic()
            until(lambda: not mount.status()["remote"]["listing"], "listing again", every_s=0.5)
            relisted_s = time.monotonic() - again + mount.returned_s
            again_listed = memory(mount)

    found = [
        figure("first mount returns, --wait-files 1", [first_s], "s"),
        figure("listing complete after", [listed_s], "s"),
        figure("keys listed per second", [keys / listed_s], "keys/s"),
        figure("order computed and cache filled after", [settled_s], "s"),
        figure(f"daemon's memory with {FEW:,} keys", [few["VmRSS"]], "MB"),
        figure("its peak with these", [few["VmHWM"]], "MB"),
        *per_key("listed", after_listing, few, keys),
        *per_key("order computed and cache filled", settled, few, keys),
        *per_key("listed again", again_listed, few, keys),
        figure("second mount returns", ready, "s", f"{READY_S:g} s", lambda seconds: seconds <= READY_S),
        figure("second mount returns, --wait-files 1", ready_one, "s"),
        figure("listing again, behind it, complete after", [relisted_s], "s"),
    ]
    for what, times in latency.items():
        found += [
            figure(f"{what} during the listing, {which}", [times[f"{which}_ms"]], "ms")
            for which in ("p50", "p99", "max")
        ]
    return f"{keys:,} keys in directories of {PER_DIRECTORY:,}", found + side_by_side(setting, keys)


def side_by_side(setting: Setting, keys: int) -> list[Figure]:
    """The listing alone, from a server that takes its time: one request after the other, and several at once."""
    told: dict[str, list[float]] = {"one by one": [], "side by side": []}
    cpu_us: list[float] = []
    with formula_server(keys, SIZE, setting.folder / "slow.log", DELAY_S) as endpoint:
        for _ in range(setting.rounds):
            for name, requests, part in (("one by one", 1, keys // 20), ("side by side", REQUESTS_MAX, keys - 1000)):
                command = [sys.executable, "-m", "tools.benchmarks.listing", endpoint, part, requests]
                done = json.loads(run(command))
                told[name].append(done["keys_per_s"])
            cpu_us.append(done["cpu_us"])
    ratios = [many / one for one, many in zip(told["one by one"], told["side by side"], strict=True)]
    each = f"pages take {DELAY_S * 1000:g} ms"
    return [
        *(figure(f"listing alone, {each}, {name}", rates, "keys/s") for name, rates in told.items()),
        figure(f"listing alone, {each}, times as fast", ratios, "x"),
        figure("listing alone, CPU for each key", cpu_us, "us"),
    ]


def memory(mount: Mount) -> dict[str, float]:
    """Of the daemon, in 10^6 bytes: all, what is its own and no file's (anonymous), and the peak of all."""
    return {which: memory_mb(mount.pid, which) for which in ("VmRSS", "RssAnon", "VmHWM")}


def few_keys(folder: Path) -> dict[str, float]:
    """What a daemon takes that did all the same with few keys."""
    folder.mkdir()
    with formula_server(FEW, SIZE, folder / "server.log") as endpoint:
        flags = ["--endpoint-url", endpoint, "--cache-size", CACHE_SIZE]
        with mounted("s3://formula", folder, "--wait-files", 1, *flags) as mount:
            until(lambda: mount.status()["state"] == "held", "filling the cache", every_s=0.5)
            return memory(mount)


def per_key(when: str, found: dict[str, float], few: dict[str, float], keys: int) -> list[Figure]:
    """Bytes of the daemon's memory that each key takes."""
    names = {"VmRSS": "memory", "RssAnon": "memory without mapped files", "VmHWM": "peak of its memory"}
    return [
        at_most(
            f"daemon's {names[which]} per key, {when}",
            [(found[which] - few[which]) * 1e6 / (keys - FEW)],
            "bytes",
            PER_KEY_BYTES if which == "VmHWM" else None,
        )
        for which in names
    ]


def probed(mount: Mount) -> dict[str, Any]:
    """Wait for the end of the listing; what a reader has to wait for names meanwhile."""
    known = max(PER_DIRECTORY, mount.status()["remote"]["files"])
    with Reader() as reader:
        reader.ask("probe", mount.mountpoint, known, PER_DIRECTORY)
        until(lambda: mount.status()["remote"]["listed"], "listing", every_s=0.5)
        return dict(reader.do("enough"))
