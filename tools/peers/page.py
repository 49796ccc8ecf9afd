"""What `tools/bench peers` writes from its results: docs/side-by-side.md, a plot, and the tables of other documents.

page.template has the text. The part of a case that did not run is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tools.pages import QUICK, rendered, replaced, table
from tools.peers.cases import BESIDE, CACHES, CATALOG, COLD, IMAGES, LARGER, WARM
from tools.peers.results import FILE, Results, spread

TEMPLATE = Path(__file__).with_name("page.template")
README = Path(__file__).parents[2] / "README.md"
COMPARISON = FILE.with_name("comparison.md")
BEGIN = "<!-- tools/bench peers -->\n"
IN_README = (
    "growfs", "growfs --exact", "rclone mount", "JuiceFS", "MosaicML Streaming", "never evict", "s5cmd, then train"
)  # fmt: skip
PAGE, PLOT = "side-by-side.md", "benchmarks.svg"
CACHE_NAMES = (*(f"{share:.0%}" for share in CACHES), "any")

Run = dict[str, Any]
"""The figures of a run."""
Column = tuple[str, Callable[[Run], float], str]
"""A column of a table: its head, its value for a run, and the format."""


def write(results: Results, folder: Path) -> None:
    """Write the page and the plot into a folder. If that is docs/, write the tables of other documents, too."""
    if results.has(LARGER):
        draw(results, folder / PLOT)
    (folder / PAGE).write_text(markdown(results))
    if folder.resolve() == FILE.parent:
        for page, table_of in PAGES_WITH_TABLE.items():
            page.write_text(with_table(page.read_text(), table_of(results)))


# The contents of columns.


def later(figure: str) -> Callable[[Run], float]:
    """The mean of a figure over the epochs after the first; over the first if there is no other."""

    def show(run: Run) -> float:
        epochs = run["epochs"][1:] or run["epochs"]
        return float(sum(epoch[figure] for epoch in epochs) / len(epochs))

    return show


def per_epoch(figure: str, of: float = 1.0) -> Callable[[Run], float]:
    """The growth of a counter in each epoch after the first."""

    def show(run: Run) -> float:
        first, last = (run["epochs"][at][figure] or 0 for at in (0, -1))
        return float((last - first) / (len(run["epochs"]) - 1) if len(run["epochs"]) > 1 else first) / of

    return show


def best_pass(figure: str, of: float = 1.0) -> Callable[[Run], float]:
    """The largest value of all passes."""
    return lambda run: max(float(each[figure]) for each in run["passes"]) / of


def different_per_s(run: Run) -> float:
    """How many distinct samples per second an epoch after the first had."""
    return later("different")(run) * later("samples_per_s")(run)


UTILIZATION: Column = ("later epochs", later("utilisation"), "{:.0%}")
SAMPLES: Column = ("samples/s", later("samples_per_s"), "{:,.0f}")
MEMORY: Column = ("daemon, MB", lambda run: run["daemon_mb"], "{:.0f}")
TABLES: dict[str, list[Column]] = {
    IMAGES: [
        ("all seen after, s", lambda run: run["all_seen_s"], "{:.1f}"),
        ("images/s until then", lambda run: run["images"] / run["all_seen_s"], "{:,.0f}"),
        ("then images/s", lambda run: run["passes"][-1]["files_per_s"], "{:,.0f}"),
        MEMORY,
    ],
    WARM: [("GB/s", best_pass("bytes_per_s", 1e9), "{:.2f}"), ("files/s", best_pass("files_per_s"), "{:,.0f}")],
    BESIDE: [
        ("alone, images/s", lambda run: run["alone_per_s"], "{:,.0f}"),
        ("while filling, of that", lambda run: run["beside_per_s"] / run["alone_per_s"], "{:.0%}"),
        ("filled, MB/s", lambda run: run["bytes_per_s"] / 1e6, "{:.0f}"),
    ],
    CATALOG: [
        ("first file, s", lambda run: run["first_file_s"], "{:.2f}"),
        ("first name, s", lambda run: run["ready_s"], "{:.2f}"),
        ("each other name, ms", lambda run: run["other_ms"], "{:.2f}"),
        MEMORY,
    ],
}
SETTING = {IMAGES: "loader", WARM: "files", BESIDE: "files", CATALOG: "bucket"}
"""What the settings of a case are."""


def larger_columns(data_bytes: int) -> list[Column]:
    """The columns of the table of case 1."""
    return [
        ("utilization, epoch 1", lambda run: run["epochs"][0]["utilisation"], "{:.0%}"),
        UTILIZATION,
        SAMPLES,
        ("different", later("different"), "{:.0%}"),
        ("different/s", different_per_s, "{:,.0f}"),
        ("coverage", lambda run: run["epochs"][-1]["coverage"], "{:.0%}"),
        ("fetched per epoch, of the dataset", per_epoch("remote_bytes", data_bytes), "{:.2f}"),
    ]


TAKES: list[Column] = [
    ("daemon, CPU s", per_epoch("daemon_cpu_s"), "{:.2f}"),
    ("program, CPU s", per_epoch("program_cpu_s"), "{:.2f}"),
    MEMORY,
]
COST_EPOCHS = 10
LIST_PRICES = {"gets": 0.0004 / 1000, "lists": 0.005 / 1000, "remote_bytes": 0.02 / 1e9}
"""US dollars, S3 Standard, us-east-1: a GET, a LIST, and a byte to another region:
https://aws.amazon.com/s3/pricing/."""


def cost_columns(data_bytes: int) -> list[Column]:
    """The columns of the cost table: ten epochs, the first and nine like the later ones, with a terabyte of data."""

    def total(counter: str, of: float = 1.0) -> Callable[[Run], float]:
        later_ones = per_epoch(counter)
        return lambda run: (run["epochs"][0][counter] + (COST_EPOCHS - 1) * later_ones(run)) * 1e12 / data_bytes / of

    def dollars(*counters: str) -> Callable[[Run], float]:
        return lambda run: sum(total(counter)(run) * LIST_PRICES[counter] for counter in counters)

    return [
        ("million requests", total("gets", 1e6), "{:,.1f}"),
        ("TB", total("remote_bytes", 1e12), "{:,.1f}"),
        ("requests", dollars("gets", "lists"), "${:,.2f}"),
        ("bytes, to another region", dollars("remote_bytes"), "${:,.0f}"),
    ]


# Tables.


def caches(results: Results, peer: str) -> list[str]:
    """The cache sizes that a peer ran case 1 with."""
    return [name for name in CACHE_NAMES if results.of(LARGER, peer, name)]


def larger_table(results: Results, columns: list[Column], shown: Callable[[list[float], str], str] = spread) -> str:
    """A table of case 1, with a row for each cache of each peer."""
    rows = (
        [peer, name, *(shown(list(map(show, results.of(LARGER, peer, name))), form) for _, show, form in columns)]
        for peer in results.named(LARGER)
        for name in caches(results, peer)
    )
    return table(["", "cache", *(head for head, _, _ in columns)], rows)


def plain_table(results: Results, case: str) -> str:
    columns = TABLES[case]
    rows = (
        [peer, name.removesuffix(", folder").replace(", cached", ", its cache"),
         *(spread(list(map(show, found)), form) for _, show, form in columns)]
        for name in results.settings(case)
        for peer in results.named(case)
        if (found := results.of(case, peer, name))
    )  # fmt: skip
    return table(["", SETTING[case], *(head for head, _, _ in columns)], rows)


def cold_table(results: Results) -> str:
    """The seconds of case 2: a row for each peer, a column for each link."""
    links = results.settings(COLD)
    rows = (
        [
            peer,
            *(spread([run["first_batch_s"] for run in results.of(COLD, peer, link)] or [math.nan]) for link in links),
        ]
        for peer in results.named(COLD)
    )
    return table(["", *links], rows)


def verdicts(results: Results) -> str:
    """A table of case 1: the rates of growfs as multiples of those of each peer, with the reason."""
    rows = []
    for peer in results.named(LARGER):
        pairs = [
            (results.of(LARGER, "growfs", mine), results.of(LARGER, peer, name))
            for name in caches(results, peer)
            for mine in caches(results, "growfs")
            if name in (mine, "any")
        ]
        if peer == "growfs" or not pairs:
            continue
        ratios = (
            spread([median(map(figure, own)) / median(map(figure, theirs)) for own, theirs in pairs])
            for figure in (SAMPLES[1], different_per_s)
        )
        rows.append([peer, *ratios, results.peers[peer]["note"]])
    return table(["growfs, relative to", "samples/s", "distinct samples/s", "the other one"], rows)


def readme_table(results: Results) -> str:
    """README's table: case 1 with a cache of a third, for some of the peers."""
    columns: list[Column] = [
        ("accelerator busy", *UTILIZATION[1:]),
        ("distinct samples/s", different_per_s, "{:,.0f}"),
        ("time to first batch, s", lambda run: run["first_batch_s"], "{:.1f}"),
    ]
    rows = (
        [peer, disk, *(spread(list(map(show, found)), form) for _, show, form in columns)]
        for peer in results.named(LARGER)
        for setting, disk in (("35%", "35%"), ("any", "100%"))
        if peer in IN_README and (found := results.of(LARGER, peer, setting))
    )
    return table(["", "disk, % of dataset", *(head for head, _, _ in columns)], rows) if results.has(LARGER) else ""


def never_evict_table(results: Results) -> str:
    """The table of docs/comparison.md: growfs in both ways, and the reader that never evicts, for each cache."""
    peers = ("growfs", "growfs --exact", "never evict")
    busy, per_s = UTILIZATION[1], different_per_s
    rows = []
    for share in (name for name in CACHE_NAMES if results.of(LARGER, "growfs", name)):
        found = [results.of(LARGER, peer, share) for peer in peers]
        cells = [f"{median(map(busy, runs)):.0%}, {median(map(per_s, runs)):,.0f}" if runs else "" for runs in found]
        rows.append([share, *cells])
    return table(["cached", f"{peers[0]}: accelerator busy, distinct samples/s", *peers[1:]], rows)


PAGES_WITH_TABLE: dict[Path, Callable[[Results], str]] = {README: readme_table, COMPARISON: never_evict_table}
"""Other documents with figures from the results."""


def with_table(page: str, rows: str) -> str:
    return replaced(page, BEGIN, rows.rstrip("\n"), "\n\n")


# The text.


def values(results: Results, case: str) -> dict[str, Any]:
    """The values that the text of a case refers to: its sizes, also in other units, and its tables."""
    found = dict(results.cases[case])
    for name, factor in (
        ("sample_bytes", 1e-3),
        ("rate", 1e-6),
        ("rtt_s", 1e3),
        ("ingest", 1e-6),
        ("shard_bytes", 1e-6),
    ):
        unit = {1e-3: "kb", 1e-6: "mb", 1e3: "ms"}[factor]
        found[f"{name.removesuffix('_bytes').removesuffix('_s')}_{unit}"] = found.get(name, 0) * factor
    data_bytes = found.get("samples", 0) * found.get("sample_bytes", 0)
    found |= {"data_mb": data_bytes / 1e6, "images_count": found.get("classes", 0) * found.get("each", 0)}
    found["per_shard_mb"] = found.get("per_shard", 0) * found.get("sample_bytes", 0) / 1e6
    if case == LARGER:
        cost = larger_table(results, cost_columns(data_bytes), lambda them, form: form.format(median(them)))
        found |= {"table": larger_table(results, larger_columns(data_bytes)), "takes": larger_table(results, TAKES)}
        return found | {"plot": PLOT, "verdicts": verdicts(results), "cost": cost}
    return found | {"table": cold_table(results) if case == COLD else plain_table(results, case)}


def markdown(results: Results) -> str:
    ran = (
        [f"[{name}]({peer['documents']})" if peer["documents"].startswith("http") else name, peer["about"],
         peer["version"], f"`{peer['flags']}`" if peer["flags"] else ""]
        for name, peer in results.peers.items()
    )  # fmt: skip
    found = common_values(results) | {"peers": table(["", "what it is", "version", "flags"], ran)}
    found["measured"] = "".join(f"- {name}: {case['measured']}\n" for name, case in results.cases.items())
    return rendered(TEMPLATE, found, lambda case: values(results, case) if results.has(case) else None)


def common_values(results: Results) -> dict[str, Any]:
    """The values of any page of results."""
    return {
        **results.machine,
        "date": results.date,
        "memory_gb": results.machine["memory_bytes"] / 1e9,
        "remarks": QUICK if results.quick else "",
        "left_out": f"\nNot measured:\n\n{missing}" if (missing := left_out(results)) else "",
    }


def left_out(results: Results) -> str:
    """A list of what did not run: each peer and reason once, with all its cases and settings."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, reason in results.left_out.items():
        peer, _, setting = name.partition(" (")
        found.setdefault((peer, reason), []).append(setting.removesuffix(")"))
    lines = []
    for (peer, reason), settings in found.items():
        where = f" ({'; '.join(settings)})" if any(settings) else ""
        lines.append(f"- {peer}{where}: {reason}\n")
    return "".join(lines)


def draw(results: Results, path: Path) -> None:
    """Write the plot of case 1: utilization after the first epoch, a bar for each peer and cache."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "growfs"
    from matplotlib import pyplot

    ran = {peer: caches(results, peer) for peer in results.named(LARGER)}
    bars, gap = sum(map(len, ran.values())), 0.7
    drawing, axes = pyplot.subplots(figsize=(8, 1 + 0.14 * (bars + gap * len(ran))), layout="constrained")
    colors = dict(zip(CACHE_NAMES, ("#99d8c9", "#41ae76", "#00694b", "#a0a0a0"), strict=True))
    place, middles, used = 0.0, [], set[str]()
    for peer, names in ran.items():
        middles.append(place + (len(names) - 1) / 2)
        for name in names:
            value = median(map(UTILIZATION[1], results.of(LARGER, peer, name)))
            label = {"any": "no cache, or all data"}.get(name, f"cache {name}") if name not in used else None
            used.add(name)
            axes.barh(place, value, height=0.9, color=colors[name], label=label)
            axes.text(value + 0.01, place, f"{value:.2f}", va="center", fontsize=7)
            place += 1
        place += gap
    axes.set_yticks(middles, ran)
    axes.set(xlim=(0, 1.08), ylim=(place - gap, -1), xlabel="utilization of the accelerator after the first epoch")
    axes.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    drawing.savefig(path, metadata={"Date": None})
    pyplot.close(drawing)
