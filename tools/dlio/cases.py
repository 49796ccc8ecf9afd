"""The cases of `tools/bench dlio`: DLIO over each way to read its files, with all of them cached, and with a third."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from growfs.vfs.file_events import OPEN, Inotify
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import ENGINES, BenchError, run, size_of
from tools.benchmarks.mounts import GROWFS, fully_cached
from tools.benchmarks.servers import behind_link
from tools.dlio.profiles import Profile
from tools.dlio.runner import Runner
from tools.peers.cases import INGEST_FACTOR, Setting
from tools.peers.peer import EXACT, PEERS, Peer, Room, with_flags
from tools.peers.runs import Link, Stage

CACHED, THIRD = "cached", "a third cached"
GROWFS_ROTATING, GROWFS_EXACT, DISK = "growfs", "growfs --exact", "local disk"
"""Names of peers."""
SHARE = 1 / 3
"""Of the dataset, in the cache."""
RUNS = 5
"""A rotating mount lists a fifth of the files. So there is room for the next ones, and five runs of DLIO train on as
many samples as the dataset has."""
PASSES = 2
"""The first one begins with an empty cache."""
RTT_S = 0.02
SETTLE = "1s"
"""Shorter than a run."""
PART_SIZE = "50%"
"""Of the cache. Each part is a run of DLIO, which takes time to start."""


# 1. Everything is cached.


@contextmanager
def by_engine(engine: str, room: Room) -> Iterator[dict[str, Any]]:
    """A mount with one engine."""
    with fully_cached(engine, room.plain / room.prefix, room.folder) as mount:
        yield {"folder": mount.mountpoint}


@contextmanager
def filled(room: Room) -> Iterator[dict[str, Any]]:
    """A generation of `growfs fill`."""
    target = room.folder / "filled"
    run([*GROWFS, "fill", room.plain / room.prefix, target, "--refresh", 0])
    try:
        run([*GROWFS, "wait", target, "--all"])
        yield {"folder": run([*GROWFS, "next", target]).strip()}
    finally:
        run([*GROWFS, "stop", target])


@contextmanager
def read_once(peer: Peer, room: Room) -> Iterator[dict[str, Any]]:
    """A peer of which each file was read once."""
    with peer.running(room) as more:
        for path in Path(more["folder"]).iterdir():
            path.read_bytes()
        yield more


def ways(peers: Sequence[Peer]) -> Iterator[Peer]:
    """The peers as they show files that are all cached: growfs in each of its ways, after the disk, then the others."""
    growfs, disk = (peer for peer in PEERS if peer.name in (GROWFS_ROTATING, DISK))
    if growfs in peers:
        yield disk
        for engine in ENGINES:
            yield replace(growfs, name=f"growfs, {engine}", running=partial(by_engine, engine))
        yield replace(growfs, name="growfs fill", running=filled)
    for peer in peers:
        if is_other(peer):
            yield replace(peer, running=partial(read_once, peer))


def cached(setting: Setting, runner: Runner, profile: Profile, endpoint: str, bucket: Path) -> None:
    """A run of DLIO with several epochs over each way."""
    for _ in range(setting.rounds):
        for peer in ways(setting.peers):
            measured = partial(read_cached, runner, profile, peer, endpoint, bucket)
            setting.attempt(CACHED, peer, profile.name, measured)


def read_cached(
    runner: Runner, profile: Profile, peer: Peer, endpoint: str, bucket: Path, folder: Path
) -> dict[str, Any]:
    """The epochs of a run, the CPU time of DLIO, and how many cores were busy."""
    prefix = f"{profile.name}/train"
    with Cgroup("-daemons") as daemons:
        room = Room(endpoint, bucket, folder / "peer", 2 * size_of(bucket / prefix), daemons, prefix=prefix)
        room.folder.mkdir()
        with peer.running(room) as more:
            before, began = runner.group.cpu_s() or 0.0, machine_cpu_s()
            data = data_folder(folder, Path(more["folder"]))
            epochs = runner.run(profile, data, files=profile.files, epochs=profile.epochs)
            cpu_s = (runner.group.cpu_s() or 0.0) - before
            return {"epochs": epochs, "cpu_s": cpu_s, "cores": (machine_cpu_s() - began) / epochs[-1]["ended_s"]}


# 2. A third is cached, behind a link.


def third_cached(setting: Setting, runner: Runner, profile: Profile, endpoint: str, bucket: Path) -> None:
    """Passes over the data from an empty cache. Each run of DLIO is an epoch, of which it lists the files once."""
    profile = profile.slowed()
    link, prefix = Link(RTT_S, int(profile.rate / INGEST_FACTOR)), f"{profile.name}/train"
    cache_bytes = int(size_of(bucket / prefix) * SHARE)
    for _ in range(setting.rounds):
        for peer in setting.peers:
            stage = Stage(for_dlio(peer, profile), endpoint, bucket, link, cache_bytes, prefix)
            passes = 1 if setting.quick else PASSES
            setting.attempt(THIRD, peer, profile.name, partial(train, runner, profile, stage, passes))


def for_dlio(peer: Peer, profile: Profile) -> Peer:
    """The peer with the flags that DLIO needs."""
    flags = {
        GROWFS_ROTATING: ("--show-files", str(profile.files // RUNS), "--settle", SETTLE),
        GROWFS_EXACT: (*EXACT, "--part-size", PART_SIZE),
    }.get(peer.name)
    return with_flags(peer, flags) if flags else peer


def train(runner: Runner, profile: Profile, stage: Stage, passes: int, folder: Path) -> dict[str, Any]:
    """Passes over as many samples as the dataset has. Raises BenchError."""
    is_exact, is_rotating = stage.peer.source == "parts", stage.peer.name == GROWFS_ROTATING
    names = set(os.listdir(stage.plain / stage.prefix))
    with behind_link(stage.server, stage.link.rtt_s, stage.link.rate) as near, Cgroup("-daemons") as daemons:
        began = time.monotonic()
        with stage.peer.running(stage.room(folder, near.endpoint, daemons)) as more, closing(Inotify()) as opens:
            found: dict[str, Any] = {"ready_s": time.monotonic() - began, "epochs": [], "passes": []}
            data = data_folder(folder, Path(more["folder"]))
            opens.watch(Path(more["folder"]), OPEN)
            for _ in range(passes):
                drop_page_cache()
                began, before = time.monotonic(), near.traffic().bytes
                files, waited_s, opened, is_over = 0, 0.0, set[str](), False
                while not is_over:
                    expected = profile.files // RUNS if is_rotating else profile.files
                    *parts, epoch = runner.run(profile, data, files=expected, part=is_exact)
                    opened.update(event.name for event in opens.read())
                    expected = parts[0]["files"] if parts else expected
                    files += expected
                    found["epochs"].append(epoch)
                    waited_s += epoch["started_s"]
                    is_over = parts[0]["part"] == parts[0]["parts"] if parts else files >= profile.files
                found["passes"].append(
                    {
                        "wall_s": time.monotonic() - began,
                        "started_s": waited_s,
                        "files": files,
                        "different": len(opened & names),
                        "remote_bytes": near.traffic().bytes - before,
                    }
                )
            return found


# Common parts.


def is_other(peer: Peer) -> bool:
    """Whether it is a mount with a cache that is not growfs."""
    return peer.source == "files" and peer.has_cache and peer.name != GROWFS_ROTATING


PEERS_OF_DLIO = tuple(peer for peer in PEERS if peer.name in (GROWFS_ROTATING, GROWFS_EXACT) or is_other(peer))


def make_data(runner: Runner, profile: Profile, bucket: Path) -> None:
    """Let DLIO write its files."""
    runner.run(profile, bucket / profile.name, files=profile.files, generate=True)
    made = len(os.listdir(bucket / profile.name / "train"))
    if made != profile.files:
        raise BenchError(f"DLIO wrote {made} of {profile.files} files of {profile.name}")


def data_folder(at: Path, train: Path) -> Path:
    """A folder as DLIO wants it, with a link to the files, and an empty validation set."""
    (at / "data" / "valid").mkdir(parents=True)
    (at / "data" / "train").symlink_to(train)
    return at / "data"


def drop_page_cache() -> None:
    """Make the kernel forget what was read: a dataset that is larger than the cache is larger than the memory, too."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def machine_cpu_s() -> float:
    """The time for which cores have worked, all together, since the start of the machine."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


CASES: dict[str, Callable[[Setting, Runner, Profile, str, Path], None]] = {CACHED: cached, THIRD: third_cached}
