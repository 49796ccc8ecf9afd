"""Draws the pictures of docs/how-it-decides.md, whole-epochs.md and many-nodes.md: python -m tools.diagrams.

They use the rules of a mount, in simulated time. They need no mount and no network, and are the same in every run.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from growfs.extensions.plan.texts import TITLES
from growfs.rotation.circle import first_place
from growfs.rotation.parts import CatalogFile, ExactPass, divide
from growfs.simulation import nodes
from growfs.simulation.cache import File, MountSettings, Rotating
from growfs.simulation.simulator import SimReader, Simulation
from growfs.simulation.training import Point, Workload, simulate_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent.parent / "docs"

FILES, CACHED, EPOCHS = 36, 12, 16
WORKLOAD = Workload(
    data_bytes=3 * 10**12,
    files=30_000,
    cache_bytes=500 * 10**9,
    bandwidth=125e6,
    read_rate=100e6,
    epochs=50,
    turnover=0.2,
)
"""The first example of docs/sizing.md."""
NODES_DATA, NODES_CACHES = 10**16, 0.2
"""The data that many nodes read, in bytes, and the share of it that all caches together hold."""
PASSES = 4
"""Passes of the nodes in the curves."""
NODE_LINK, BUCKET_LINK = 1.25e9, 50e9
"""Bytes per second that a node can receive, and that the bucket can send to all of them."""
EXACT_CACHED, STREAMED = 18, 6
"""Files in the cache with --exact, and how many of them are streamed."""
OPEN_S = 1.0
LINK = 0.6
"""Files that the link delivers while the program reads one."""
SECOND_LISTS, SECOND_ENDS = 5, 10

REMOTE, ARRIVED, NEW, LISTED, DELISTED = range(5)
LABELS = (
    "only in the remote",
    "cached, not listed yet",
    "listed for the first time",
    "listed again",
    "delisted, still cached",
)
EXACT_LABELS = {
    NEW: "streamed, in this part",
    ARRIVED: "streamed, fetched for the next part",
    LISTED: "kept, in this part",
    DELISTED: "kept, in another part",
}
COLORS = ("#f2f2f2", "#ffd9a0", "#f28e2b", "#4e79a7", "#b7c9dd")


def rotation(second: bool) -> list[list[int]]:
    """The state of each file, in the order of arrival, in each epoch of a program that lists and reads all it sees.

    second: another program lists in one of the epochs, reads slowly, and ends in a later one.
    """
    files = [File(1, f"{number}.tar", 1_000) for number in range(FILES)]
    simulation = Simulation(files, CACHED * 1_000, LINK * 1_000 / OPEN_S, MountSettings(turnover=0.25, parallel=1))
    cache = simulation.cache
    assert isinstance(cache, Rotating)
    simulation.sleep(4 * OPEN_S / LINK)
    reader = simulation.reader()
    other: SimReader | None = None
    shuffle = random.Random(0)
    shown: set[int] = set()
    rows = []
    for epoch in range(1, EPOCHS + 1):
        ids = reader.list()
        if second and epoch == SECOND_LISTS:
            other = simulation.reader()
            other.list()
        if other and epoch == SECOND_ENDS:
            other.exit()
            other = None
        states = [REMOTE] * FILES
        for id, file in cache.cached.items():
            states[id] = DELISTED if file.delisted is not None else ARRIVED
        for id in ids:
            states[id] = LISTED if id in shown else NEW
        shown.update(ids)
        rows.append(states)
        shuffle.shuffle(ids)
        for id in ids:
            wait_s = reader.open(id)
            if other:
                other.open(ids[0])
            simulation.sleep(OPEN_S + wait_s)
    order = sorted(range(FILES), key=lambda id: simulation.first[id] or FILES + 1)
    return [[states[id] for states in rows] for id in order]


def draw_rotation(axes: Axes, rows: Sequence[Sequence[int]], title: str) -> None:
    """Draw a square for each file in each epoch, except for files that are only on the remote."""
    squares = [
        (epoch, place, COLORS[state])
        for place, states in enumerate(rows, 1)
        for epoch, state in enumerate(states, 1)
        if state
    ]
    x, y, colors = zip(*squares, strict=True)
    axes.scatter(x, y, s=118, c=colors, marker="s", linewidths=0)
    axes.set(title=title, xlim=(0.4, EPOCHS + 0.6), ylim=(FILES + 0.6, 0.4), xlabel="epoch", aspect="equal")
    axes.set(xticks=[1, 4, 8, 12, 16], yticks=[1, 12, 24, 36], facecolor=COLORS[REMOTE])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def whole_epochs() -> list[list[int]]:
    """The state of each file, kept ones first, in each of EPOCHS listings of a program with --exact."""
    size = 1_000
    files = [CatalogFile(id, f"{id}.tar", size, size, is_always_listed=False) for id in range(1, FILES + 1)]
    kept, parts = set[int](), list[tuple[set[int], set[int]]]()
    for number in range(1, EPOCHS + 2):
        division, ids = divide(files, ExactPass(0, 1 + number, EXACT_CACHED * size, STREAMED * size))
        kept |= {id for part in division.parts for id in ids[part.kept : part.end]}
        parts += [({*ids[part.start : part.end]}, {*ids[part.start : part.kept]}) for part in division.parts]
    shown: set[int] = set()
    rows = []
    for (listed, _), (_, ahead) in itertools.pairwise(parts[: EPOCHS + 1]):
        states = {id: DELISTED if id in kept & shown else REMOTE for id in range(1, FILES + 1)}
        states |= dict.fromkeys(ahead, ARRIVED)
        states |= {id: LISTED if id in kept else NEW for id in listed}
        shown |= listed
        rows.append(states)
    first = {id: place for place, (listed, _) in reversed([*enumerate(parts)]) for id in listed}
    order = sorted(range(1, FILES + 1), key=lambda id: (id not in kept, first[id]))
    return [[states[id] for states in rows] for id in order]


def draw_coverage(seen: Axes, waiting: Axes) -> None:
    """Draw the share of the data seen, and the share of opens that wait, over time."""
    for policy in ("growfs", "lru", "never"):
        points = simulate_policy(WORKLOAD, policy).points
        hours = [point.s / 3600 for point in points]
        waited = [
            100 * (now.waited - before.waited) / (now.opens - before.opens)
            for before, now in itertools.pairwise([Point(0, 0, 0, 0, 0, 0), *points])
        ]
        seen.plot(hours, [100 * point.seen for point in points], label=TITLES[policy])
        waiting.plot(hours, waited, label=TITLES[policy])
    seen.set(ylabel="seen of the dataset, %", ylim=(0, 104))
    waiting.set(ylabel="opens that wait, % of each epoch", ylim=(-4, 100))
    for axes in (seen, waiting):
        axes.set(xlabel="hours", xlim=(0, 48))
        axes.grid(alpha=0.3)


def replaced_node(node: nodes.SimulatedNode, start: float) -> nodes.SimulatedNode:
    """A node with an empty cache, on which the program continues that has trained on this one."""
    shown = {file: node.shown(file) for file in range(node.files)}
    return nodes.SimulatedNode(start, node.room, node.files, steps=node.steps, shown_steps=shown)


@functools.cache
def passes_of_nodes(count: int, share: float, replaced: int = 0) -> tuple[float, float]:
    """(reads of the remote by all nodes in the last of some passes, in multiples of the dataset; the largest
    unevenness of how long a node shows its files).

    share: of the data, for all caches together. replaced: how often in a pass each of the nodes leaves, one after the
    other, and an empty one joins for it.
    """
    cluster = nodes.cluster(count, share / count)
    read = nodes.walk(cluster, 1)
    for _ in range(PASSES - 1):
        if not replaced:
            read = nodes.walk(cluster, 1)
            continue
        read = 0.0
        for number in list(range(count)) * replaced:
            others = [node.position for node in cluster if node is not cluster[number]]
            cluster[number] = replaced_node(cluster[number], first_place(number, count, share / count, others))
            read += nodes.walk(cluster, 1 / count / replaced)
    return read, max(node.unevenness for node in cluster)


def days_of_nodes(count: int, with_peers: bool) -> float:
    """Days until each of the nodes has seen all of NODES_DATA: limited by its own link, or that of the bucket."""
    found = nodes.simulate_nodes(count, NODES_DATA, round(NODES_CACHES * NODES_DATA / count), None)
    remote = found.first_remote_bytes if with_peers else found.first_alone_bytes
    return max(NODES_DATA / NODE_LINK, remote / BUCKET_LINK) / 86_400


def draw_nodes(reads: Axes, evenness: Axes, times: Axes) -> None:
    """Draw the reads of the remote in a pass, and how unevenly files are shown, over the size of the caches; and the
    days until each node has seen all, over the number of nodes.
    """
    shares = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    for count, replaced, of_all, label in (
        (8, 0, shares, "8 nodes"),
        (8, 1, shares, "8, each replaced\nonce in a pass"),
        (8, 3, shares, "8, each replaced\nthree times"),
        (64, 0, [0.2, 0.5, 0.9, 1.2], "64 nodes"),
    ):
        style = "o" if count > nodes.MODEL_NODES else "-"
        found = [passes_of_nodes(count, share, replaced) for share in of_all]
        for axes, values in zip((reads, evenness), zip(*found, strict=True), strict=True):
            axes.plot([100 * share for share in of_all], values, style, label=label)
    reads.plot([1, 99.9, 100], [1, 1, 0], ":", label="1 node")
    reads.set(ylabel=f"pass {PASSES} reads the bucket, times", ylim=(-0.1, 4))
    evenness.set(ylabel=f"time each file is shown in {PASSES} passes,\nstandard deviation, of the mean", ylim=(0, 0.85))
    evenness.axhline(1 / math.sqrt(PASSES), color="grey", linestyle=":", label="drawn at random")
    for axes in (reads, evenness):
        axes.set(xlabel="all caches together hold, % of the data", xscale="log", xticks=[1, 3, 10, 30, 100])
        axes.set(xticklabels=["1", "3", "10", "30", "100"], xlim=(1, 130))
    counts = [1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000]
    for with_peers, label in ((True, "with --peers"), (False, "without")):
        times.plot(counts, [days_of_nodes(count, with_peers) for count in counts], ".-", label=label)
    times.set(ylabel="days until each node has seen all", xlabel="nodes", xscale="log", yscale="log")
    for axes in (reads, evenness, times):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


def main() -> None:
    """Write the pictures."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "growfs", "font.size": 9, "axes.titlesize": 9})
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, (alone, two) = pyplot.subplots(1, 2, figsize=(8, 7.6), layout="constrained")
    draw_rotation(alone, rotation(second=False), "one program, which lists in each epoch")
    draw_rotation(two, rotation(second=True), "and a second one, which lists once in epoch 5\nand ends in epoch 10")
    alone.set_ylabel("files, in the order of arrival")
    legend = [Patch(color=color, label=label) for color, label in zip(COLORS, LABELS, strict=True)]
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(DOCS / "rotation.svg", metadata={"Date": None})

    figure, (rotating, exact) = pyplot.subplots(1, 2, figsize=(8, 7.6), layout="constrained")
    draw_rotation(rotating, rotation(second=False), "rotation: what is cached")
    draw_rotation(exact, whole_epochs(), "--exact: parts of passes")
    exact.set_xlabel("listing")
    rotating.set(xlabel="listing", ylabel="files")
    for axes, labels in ((rotating, dict(enumerate(LABELS))), (exact, EXACT_LABELS)):
        legend = [Patch(color=COLORS[state], label=label) for state, label in labels.items() if state]
        axes.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, -0.09), frameon=False)
    figure.savefig(DOCS / "whole-epochs.svg", metadata={"Date": None})

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    draw_coverage(*axes)
    axes[0].legend()
    figure.savefig(DOCS / "coverage.svg", metadata={"Date": None})

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    draw_nodes(*axes)
    figure.savefig(DOCS / "many-nodes.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
