"""Downloads from a store and over links that misbehave, compared with other programs on the same server."""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.request import urlopen

from growfs.errors import GrowfsError
from tests.servers import make_certificate
from tools.benchmarks.child import Child
from tools.benchmarks.measure import BenchError, Figures, Setting, run
from tools.benchmarks.mounts import GROWFS, mounted
from tools.benchmarks.noisy_s3 import Noise, key
from tools.benchmarks.servers import noisy_server, rclone_binary, rclone_source, s5cmd_binary

PEER_S_MAX = 120.0
"""A program that takes longer is ended. That, an error, or missing files count as this many seconds, growfs's too."""
PAUSE_S = 20.0
"""How long nothing is read before a read that finds its connection forgotten."""
BOTO3 = """
import sys, boto3
from boto3.s3.transfer import TransferConfig
from concurrent.futures import ThreadPoolExecutor
client = boto3.client("s3", endpoint_url=sys.argv[1])
keys = [item["Key"] for page in client.get_paginator("list_objects_v2").paginate(Bucket="noise")
        for item in page["Contents"]]
with ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda key: client.download_file("noise", key, f"{sys.argv[2]}/{key.replace('/', '-')}"), keys))
"""
S3FS = """
import sys, s3fs
fs = s3fs.S3FileSystem(endpoint_url=sys.argv[1])
fs.get("noise/", sys.argv[2], recursive=True)
"""
S3FS_AFTER_PAUSE = """
import sys, time, s3fs
fs = s3fs.S3FileSystem(endpoint_url=sys.argv[1])
fs.cat_file(f"noise/{sys.argv[3]}")
time.sleep(float(sys.argv[2]))
began = time.monotonic()
fs.cat_file(f"noise/{sys.argv[4]}")
print(time.monotonic() - began)
"""


Program: TypeAlias = Callable[[str, Path, Noise, dict[str, object]], float]
"""Fetches everything from an endpoint to a folder, with additional environment variables; returns the seconds.

If the store has a slow object, everything else.
"""


@dataclass(frozen=True)
class Case:
    """One kind of noise. with_python: also compare with boto3 and s3fs, which need minutes for many small files."""

    name: str
    noise: Noise
    with_python: bool = False
    with_tls: bool = False


SMALL = Noise(keys=20_000, size=10_000, latency_s=0.05)
LARGE = Noise(keys=3, size=100_000_000, connection_bytes_per_s=1e6)
CASES = [
    *(Case(f"small files over {ms} ms", replace(SMALL, latency_s=ms / 1000)) for ms in (1, 50, 200)),
    *(Case(f"small files, {share:.1%} refused", replace(SMALL, refused=share)) for share in (0.002, 0.005, 0.01, 0.05)),
    *(Case(f"large files, {share:.1%} refused", replace(LARGE, refused=share), True) for share in (0, 0.02)),
    Case("large files, 1% of responses stall", replace(LARGE, stalled=0.01), True),
    Case("large files, away for 4 s of every 10", replace(LARGE, away_s=4, present_s=6), True),
    Case("large files, late for 4 s of every 10", replace(LARGE, away_s=4, present_s=6, away_as=["late"]), True),
    Case("large files, 2% refused, TLS", replace(LARGE, refused=0.02), True, with_tls=True),
    Case("small files over 50 ms, TLS", SMALL, with_tls=True),
    Case("3,000 files of 1 kB, one of them comes a byte in 5 s", Noise(keys=3000, size=1000, slow_key=1500), True),
]

QUICK_CASES = [
    Case("small files, 1% refused", replace(SMALL, keys=200, refused=0.01)),
    Case("large files, 2% refused", replace(LARGE, size=2_000_000, refused=0.02)),
]


def noise(setting: Setting, found: Figures) -> str:
    """Run each case once in a round, with all programs in turn, each on its own server."""
    cases = QUICK_CASES if setting.quick else CASES
    for number in range(setting.rounds):
        for place, case in enumerate(cases):
            folder = setting.folder / f"{number}-{place}"
            names = ["growfs", "s5cmd"] if setting.quick else list(PROGRAMS)
            if not case.with_python:
                names = [name for name in names if name not in ("boto3", "s3fs")]
            times = {name: _measure(case, folder / name, name) for name in names}
            for name, (seconds, _) in times.items():
                found.add(f"{case.name}: {name}", seconds, unit="s")
            own, sent = times.pop("growfs")
            found.add(f"{case.name}: growfs of the best", own / min(time for time, _ in times.values()), at_most=1.1)
            found.add(f"{case.name}: sent to growfs, of the data", sent / (case.noise.keys * case.noise.size))
        if not setting.quick:
            _read_after_pause(setting.folder / f"{number}-pause", found)
    return "; ".join(dict.fromkeys(f"{case.noise.keys:,} files of {case.noise.size:,} bytes" for case in cases))


def _measure(case: Case, folder: Path, name: str) -> tuple[float, int]:
    """(seconds until all files were there, bytes that the server has sent)."""
    folder.mkdir(parents=True)
    what, trusted = case.noise, dict[str, object]()
    if case.with_tls:
        certificate = make_certificate(folder / "certificate.pem")
        what = replace(what, certificate=str(certificate))
        trusted = {"SSL_CERT_FILE": certificate, "AWS_CA_BUNDLE": certificate}
    with noisy_server(what) as url:
        return fetched(name, url, folder, what, trusted), _bytes_sent(url)


def fetched(name: str, url: str, folder: Path, noise: Noise, variables: dict[str, object]) -> float:
    """Run a program; returns its seconds, or PEER_S_MAX if it fails."""
    try:
        return PROGRAMS[name](url, folder, noise, variables)
    except (BenchError, GrowfsError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return PEER_S_MAX


def _read_after_pause(folder: Path, found: Figures) -> None:
    """Measure a read from a store after a NAT has forgotten the connections to it, which were idle."""
    store = Noise(keys=20_000, size=1000, idle_s=15)
    with noisy_server(store) as url:
        with mounted("s3://noise", folder, "--endpoint-url", url, "--cache-size", "2GB", "--no-wait") as mount:
            run([*GROWFS, "wait", mount.mountpoint, "--files", "40"])
            run([*GROWFS, "pause", mount.mountpoint])
            time.sleep(1)  # files in flight still arrive
            listed = set(os.listdir(mount.mountpoint))
            first, second, third, *_ = (name for name in map(key, range(store.keys)) if name not in listed)
            for name in (first, second):  # the second starts the process that fetches for readers
                (mount.mountpoint / name).read_bytes()
            time.sleep(PAUSE_S)
            began = time.monotonic()
            (mount.mountpoint / third).read_bytes()
            found.add("a read after a pause: growfs", time.monotonic() - began, unit="s")
        seconds = float(run([sys.executable, "-c", S3FS_AFTER_PAUSE, url, PAUSE_S, first, third]))
        found.add("a read after a pause: s3fs", seconds, unit="s")


def _bytes_sent(url: str) -> int:
    """Bytes sent by a server that may be away. It is on this machine, so its certificate need not be checked."""
    unchecked = ssl._create_unverified_context()
    while True:
        with suppress(OSError), urlopen(f"{url}/counters", timeout=2, context=unchecked) as answer:
            return int(json.load(answer)["bytes"])
        time.sleep(0.5)


def _growfs(url: str, folder: Path, noise: Noise, variables: dict[str, object]) -> float:
    began = time.monotonic()
    flags, start = ("--endpoint-url", url, "--cache-size", "2GB", "--no-wait"), lambda words: run(words, **variables)
    with mounted("s3://noise", folder, *flags, start=start) as mount:
        run([*GROWFS, "wait", mount.mountpoint, "--files", _arriving(noise), "--timeout", f"{PEER_S_MAX:g}s"])
        took_s = time.monotonic() - began
        if not _has_arrived(mount.files, noise):
            raise BenchError("files are missing, or are not whole")
        return took_s


def _has_arrived(folder: Path, noise: Noise) -> bool:
    """Whether all files that arrive within the time of the benchmark are there, and have their size."""
    return _arriving(noise) == sum(path.stat().st_size == noise.size for path in folder.rglob("*") if path.is_file())


def _arriving(noise: Noise) -> int:
    """The number of files that arrive within the time of the benchmark."""
    return noise.keys - (noise.slow_key is not None)


def _command(words: Callable[[str, Path], list[object]]) -> Program:
    def program(url: str, folder: Path, noise: Noise, variables: dict[str, object]) -> float:
        target = folder / "target"
        target.mkdir()
        began = time.monotonic()
        with Child(words(url, target), {name: str(value) for name, value in variables.items()}) as child:
            if noise.slow_key is None:
                child.wait(PEER_S_MAX)  # counting 20,000 files meanwhile takes CPU time
            else:
                child.wait_until(lambda: _has_arrived(target, noise), PEER_S_MAX, 0.2)
            took_s = time.monotonic() - began
        if not _has_arrived(target, noise):
            raise BenchError("files are missing, or are not whole")
        return took_s

    return program


PROGRAMS: dict[str, Program] = {
    "growfs": _growfs,
    "s5cmd": _command(lambda url, target: [s5cmd_binary(), "--endpoint-url", url, "cp", "s3://noise/*", f"{target}/"]),
    "rclone": _command(
        lambda url, target: [
            *(rclone_binary(), "copy", rclone_source(url, "noise"), target),
            *("--transfers=32", "--multi-thread-streams=16", "--config=/dev/null"),
        ]
    ),
    "boto3": _command(lambda url, target: [sys.executable, "-c", BOTO3, url, target]),
    "s3fs": _command(lambda url, target: [sys.executable, "-c", S3FS, url, target]),
}
