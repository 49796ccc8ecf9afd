"""A catalog of a million keys: the time to list it, its memory, and the time of the next mount."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from growfs.remote.stores.s3.parallel_lister import REQUESTS_MAX
from tools.benchmarks.formula_s3 import PER_DIRECTORY
from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure, memory_mb, run, wait_until
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import formula_server

PER_KEY_BYTES = 20
FEW, FEW_QUICK = 10_000, 1000
"""Keys of a small catalog, whose daemon's memory is the baseline."""
READY_S = 3.0
SIZE = 1000
DELAY_S = 0.05  # per page, as from a distant store
CACHE_SIZE, CACHE_SIZE_QUICK = "16MiB", "512KiB"
"""At least four files per directory; this benchmark is not about many cached files."""


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """One listing into an empty cache, whatever the number of rounds; then two mounts per round."""
    keys, few_number = (10_000, FEW_QUICK) if setting.quick else (1_000_000, FEW)
    cache_size = CACHE_SIZE_QUICK if setting.quick else CACHE_SIZE
    few = few_keys(setting.folder / "few", few_number, cache_size)
    ready: list[float] = []
    ready_one: list[float] = []
    with formula_server(keys, SIZE, setting.folder / "server.log") as endpoint:
        flags = ["--endpoint-url", endpoint, "--cache-size", cache_size]
        began = time.monotonic()
        with mounted("s3://formula", setting.folder, "--wait-files", 1, *flags) as mount:
            first_s = mount.returned_s
            latency = probe_latency(mount)
            listed_s = time.monotonic() - began
            after_listing = memory(mount)
            wait_until(lambda: mount.status()["state"] == "held", "filling the cache", every_s=0.5)
            filled_s = time.monotonic() - began
            filled = memory(mount)
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
            wait_until(lambda: not mount.status()["remote"]["listing"], "listing again", every_s=0.5)
            relisted_s = time.monotonic() - again + mount.returned_s
            again_listed = memory(mount)

    found = [
        figure("first mount returns, --wait-files 1", [first_s], "s"),
        figure("listing complete after", [listed_s], "s"),
        figure("keys listed per second", [keys / listed_s], "keys/s"),
        figure("order computed and cache filled after", [filled_s], "s"),
        figure(f"daemon's memory with {few_number:,} keys", [few["VmRSS"]], "MB"),
        figure("its peak with these", [few["VmHWM"]], "MB"),
        *per_key("listed", after_listing, few, keys - few_number),
        *per_key("order computed and cache filled", filled, few, keys - few_number),
        *per_key("listed again", again_listed, few, keys - few_number),
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
    """The listing alone, from a slow server: with sequential requests, and with parallel ones."""
    rates: dict[str, list[float]] = {"one by one": [], "side by side": []}
    cpu_us: list[float] = []
    with formula_server(keys, SIZE, setting.folder / "slow.log", DELAY_S) as endpoint:
        for _ in range(setting.rounds):
            for name, requests, part in (("one by one", 1, keys // 20), ("side by side", REQUESTS_MAX, keys - 1000)):
                command = [sys.executable, "-m", "tools.benchmarks.listing", endpoint, part, requests]
                done = json.loads(run(command))
                rates[name].append(done["keys_per_s"])
            cpu_us.append(done["cpu_us"])
    ratios = [many / one for one, many in zip(rates["one by one"], rates["side by side"], strict=True)]
    each = f"pages take {DELAY_S * 1000:g} ms"
    return [
        *(figure(f"listing alone, {each}, {name}", values, "keys/s") for name, values in rates.items()),
        figure(f"listing alone, {each}, times as fast", ratios, "x"),
        figure("listing alone, CPU for each key", cpu_us, "us"),
    ]


def memory(mount: Mount) -> dict[str, float]:
    """The daemon's memory in 10^6 bytes: resident, anonymous, and peak resident."""
    return {which: memory_mb(mount.pid, which) for which in ("VmRSS", "RssAnon", "VmHWM")}


def few_keys(folder: Path, keys: int, cache_size: str) -> dict[str, float]:
    """The memory of a daemon that did the same with few keys."""
    folder.mkdir()
    with formula_server(keys, SIZE, folder / "server.log") as endpoint:
        flags = ["--endpoint-url", endpoint, "--cache-size", cache_size]
        with mounted("s3://formula", folder, "--wait-files", 1, *flags) as mount:
            wait_until(lambda: mount.status()["state"] == "held", "filling the cache", every_s=0.5)
            return memory(mount)


def per_key(when: str, found: dict[str, float], few: dict[str, float], more_keys: int) -> list[Figure]:
    """Bytes of the daemon's memory that each key takes. more_keys: how many more keys it has than with few."""
    names = {"VmRSS": "memory", "RssAnon": "memory without mapped files", "VmHWM": "peak of its memory"}
    return [
        at_most(
            f"daemon's {names[which]} per key, {when}",
            [(found[which] - few[which]) * 1e6 / more_keys],
            "bytes",
            PER_KEY_BYTES if which == "VmHWM" else None,
        )
        for which in names
    ]


def probe_latency(mount: Mount) -> dict[str, Any]:
    """Wait for the end of the listing, and measure a reader's latencies until then."""
    known = max(PER_DIRECTORY, mount.status()["remote"]["files"])
    with ReaderProcess() as reader:
        reader.send("probe", mount.mountpoint, known, PER_DIRECTORY)
        wait_until(lambda: mount.status()["remote"]["listed"], "listing", every_s=0.5)
        return dict(reader.call("stop"))
