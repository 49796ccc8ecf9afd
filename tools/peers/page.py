"""The page that `tools/bench peers` writes from its results: Markdown, HTML, a plot, and the README's table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tools.peers.cases import BESIDE, CACHES, CATALOG, COLD, IMAGES, LARGER, WARM
from tools.peers.results import Results, spread

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- tools/bench peers -->\n"
IN_README = ("growfs", "rclone mount", "MosaicML Streaming", "s5cmd, then train")
PLOT = "benchmarks.svg"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .7rem; text-align: left; vertical-align: top; }
code { font-size: 13px; overflow-wrap: anywhere; } img, svg { max-width: 100%; height: auto; background: #fff; }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #ddd; } th, td { border-color: #3a3f44; } a { color: #6cf; }
}
"""
FIRST_LATER = 1
"""The index of the first epoch that counts as a later one."""


def write(results: Results, folder: Path) -> None:
    """Write benchmarks.md, side-by-side.html and the plot into a folder, and where it is docs/, README's table."""
    text = markdown(results)
    (folder / "benchmarks.md").write_text(text)
    plot = ""
    if results.has(LARGER):
        draw(results, folder / PLOT)
        plot = (folder / PLOT).read_text()
    (folder / "side-by-side.html").write_text(html(text, plot))
    if folder.resolve() == README.parent / "docs":
        README.write_text(with_table(README.read_text(), results))


def with_table(readme: str, results: Results) -> str:
    """README with the table of these results."""
    before, rest = readme.split(BEGIN)
    _, _, after = rest.partition("\n\n")
    return f"{before}{BEGIN}{readme_table(results)}\n{after}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# 1. The data set is larger than the cache.


def later(figures: dict[str, Any], name: str) -> float:
    """The mean of a figure over the epochs after the first; over the first where there is no other."""
    epochs = figures["epochs"][FIRST_LATER:] or figures["epochs"]
    return float(sum(epoch[name] for epoch in epochs) / len(epochs))


def per_epoch(figures: dict[str, Any], name: str) -> float:
    """The growth of a counter in each epoch after the first."""
    epochs = figures["epochs"]
    if len(epochs) == 1:
        return float(epochs[0][name] or 0)
    return float(((epochs[-1][name] or 0) - (epochs[0][name] or 0)) / (len(epochs) - 1))


def settings(results: Results, peer: str) -> list[str]:
    """The cache sizes that a peer ran with."""
    return [name for name in (*(f"{share:.0%}" for share in CACHES), "any") if results.of(LARGER, peer, name)]


def larger_rows(
    results: Results, columns: list[Callable[[dict[str, Any]], float]], forms: list[str]
) -> list[list[str]]:
    """Rows of a table of case 1: peer and cache, then a figure for each column."""
    return [
        [peer, name, *(spread([column(one) for one in results.of(LARGER, peer, name)], form)
                       for column, form in zip(columns, forms, strict=True))]
        for peer in results.named(LARGER)
        for name in settings(results, peer)
    ]  # fmt: skip


def larger(results: Results) -> Iterator[str]:
    """The section of case 1."""
    sizes = results.cases[LARGER]
    data = sizes["samples"] * sizes["sample_bytes"]
    yield "## The data set is larger than the cache\n\n"
    yield (
        f"{sizes['samples']:,} samples of {sizes['sample_bytes'] / 1000:.0f} kB, {sizes['per_shard']} in a shard:"
        f" {data / 1e6:.0f} MB, behind a link of {sizes['rate'] / 1e6:.0f} MB/s with a round trip of"
        f" {sizes['rtt_s'] * 1000:.0f} ms. The accelerator takes {sizes['ingest'] / 1e6:.0f} MB/s. Every run begins"
        " with an empty cache. An epoch is as many samples as the data set has. growfs trains"
        ' on the files that are local, several times each. So "different" says how many different samples an epoch had,'
        ' "different/s" how many there were in a second, and coverage how many of all samples were trained on by the'
        " end of the last epoch. Utilisation is the share of the time in which the accelerator works; 1 would be no"
        " waiting at all.\n\n"
    )
    columns: list[Callable[[dict[str, Any]], float]] = [
        lambda one: one["epochs"][0]["utilisation"],
        lambda one: later(one, "utilisation"),
        lambda one: later(one, "samples_per_s"),
        lambda one: later(one, "different"),
        different_per_s,
        lambda one: one["epochs"][-1]["coverage"],
        lambda one: per_epoch(one, "remote_bytes") / data,
    ]
    head = ["", "cache", "utilisation, epoch 1", "later epochs", "samples/s", "different", "different/s", "coverage"]
    rows = larger_rows(results, columns, ["{:.2f}", "{:.2f}", "{:,.0f}", "{:.0%}", "{:,.0f}", "{:.0%}", "{:.2f}"])
    yield table([*head, "fetched per epoch, of the data set"], rows) + "\n"
    yield f"![Utilisation of the accelerator after the first epoch]({PLOT})\n\n"
    yield from (f"- {line}\n" for line in verdicts(results))
    yield "\n### What it takes\n\n"
    yield (
        "CPU time of the daemon and of the training program with its loader processes, for an epoch after the first,"
        " and the daemon's memory (proportional set size) at the end. A library has no daemon; its work is in the"
        " program.\n\n"
    )
    columns = [
        lambda one: per_epoch(one, "daemon_cpu_s"),
        lambda one: per_epoch(one, "program_cpu_s"),
        lambda one: one["daemon_mb"],
    ]
    rows = larger_rows(results, columns, ["{:.2f}", "{:.2f}", "{:.0f}"])
    yield table(["", "cache", "daemon, CPU s", "program, CPU s", "daemon, MB"], rows) + "\n"


def verdicts(results: Results) -> Iterator[str]:
    """What growfs gains and loses in case 1 beside each peer, a line each, with the reason."""
    for peer in results.named(LARGER):
        if peer == "growfs":
            continue
        more, different = [], []
        for name in settings(results, peer):
            theirs = results.of(LARGER, peer, name)
            for mine in settings(results, "growfs"):
                if name in (mine, "any"):
                    own = results.of(LARGER, "growfs", mine)
                    more.append(ratio(own, theirs, lambda one: later(one, "samples_per_s")))
                    different.append(ratio(own, theirs, different_per_s))
        if more:
            yield (
                f"{peer}: growfs trains on {spread(more)} times the samples a second, and {spread(different)} times the"
                f" different samples. {peer} {results.peers[peer]['note']}."
            )
    yield (
        "Where growfs has fewer different samples a second, it trains on what is local again while the link brings a"
        " fifth of what the accelerator takes. The others train on each sample once for each download, and wait."
    )


def different_per_s(figures: dict[str, Any]) -> float:
    """How many different samples an epoch after the first had, for each second that it took."""
    return later(figures, "different") * later(figures, "samples_per_s")


def ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    """Of the medians of a figure."""
    return median(map(figure, ours)) / median(map(figure, theirs))


# 2. to 6.

Column = tuple[str, Callable[[dict[str, Any]], float], str]
"""Of a table: its head, what it shows of a run, and how."""


def plain_table(results: Results, case: str, setting: str, columns: list[Column]) -> str:
    """A table with a row for each peer and setting. setting: what the settings are."""
    rows = [
        [peer, name, *(spread([show(one) for one in found], form) for _, show, form in columns)]
        for name in results.settings(case)
        for peer in results.named(case)
        if (found := results.of(case, peer, name))
    ]
    return table(["", setting, *(head for head, _, _ in columns)], rows) + "\n"


def cold(results: Results) -> Iterator[str]:
    """The section of case 2."""
    sizes = results.cases[COLD]
    yield "## Cold start\n\n"
    yield (
        f"Seconds until the first batch of {sizes['batch']} samples, from an empty cache; the data set has"
        f" {sizes['samples'] * sizes['sample_bytes'] / 1e6:.0f} MB in shards of"
        f" {sizes['per_shard'] * sizes['sample_bytes'] / 1e6:.1f} MB. The imports of the training program are over when"
        " the clock starts. growfs's mount command returns when training can start, which is after a shard of each"
        " directory is whole, and until then fetches nothing else; the others mount first and fetch when the program"
        " asks. On a fast link the start of growfs shows: most of it is Python that imports the libraries for S3.\n\n"
    )
    links = results.settings(COLD)
    rows = [
        [
            peer,
            *(spread([one["first_batch_s"] for one in results.of(COLD, peer, link)] or [math.nan]) for link in links),
        ]
        for peer in results.named(COLD)
    ]
    yield table(["", *links], rows) + "\n"


def small(results: Results) -> Iterator[str]:
    """The section of case 3."""
    sizes = results.cases[IMAGES]
    yield "## Small files\n\n"
    yield (
        f"{sizes['classes'] * sizes['each']:,} JPEGs of 110 kB in {sizes['classes']} directories, as ImageNet has them,"
        f" behind a link of {sizes['rate'] / 1e6:.0f} MB/s with a round trip of {sizes['rtt_s'] * 1000:.0f} ms. The"
        " loader's processes decode them, which takes most of the time once they are local. The cache has room for all."
        " Seconds from the start until every image was trained on once, and images a second after that. The decoders"
        " take all cores. growfs fetches at the lowest priority then, and the program trains on what is local, again"
        " and again, at full rate; the others make it wait.\n\n"
    )
    columns: list[Column] = [
        ("all seen after, s", lambda one: one["all_seen_s"], "{:.1f}"),
        ("then images/s", lambda one: one["passes"][-1]["files_per_s"], "{:,.0f}"),
        ("daemon, MB", lambda one: one["daemon_mb"], "{:.0f}"),
    ]
    yield plain_table(results, IMAGES, "loader", columns)


def warm(results: Results) -> Iterator[str]:
    """The section of case 4."""
    sizes = results.cases[WARM]
    yield "## Warm reads\n\n"
    yield (
        f"Files that are cached, and in memory, read whole by one thread of Python: {sizes['shards']} shards of"
        f" {sizes['shard_bytes'] / 1e6:.0f} MB, and {sizes['images']:,} files of 110 kB. The second row of growfs reads"
        " the files of its cache directly, without the mount, so that what their layout costs is told apart from what"
        " the mount costs.\n\n"
    )

    def best(name: str) -> Callable[[dict[str, Any]], float]:
        return lambda one: max(float(each[name]) for each in one["passes"])

    columns: list[Column] = [
        ("GB/s", lambda one: best("bytes_per_s")(one) / 1e9, "{:.2f}"),
        ("files/s", best("files_per_s"), "{:,.0f}"),
    ]
    text = plain_table(results, WARM, "what", columns)
    yield text.replace(", folder |", " |").replace(", cached |", ", its cache |")


def beside(results: Results) -> Iterator[str]:
    """The section of case 5."""
    sizes = results.cases[BESIDE]
    yield "## What a job loses while a cache fills\n\n"
    yield (
        f"A job of {sizes['processes']} processes that decodes images from memory and needs all cores, alone and while"
        f" the cache fills over a link of {sizes['rate'] / 1e6:.0f} MB/s. The store and the link run on the same cores,"
        " and take a share of what is lost; it is the same for all.\n\n"
    )
    columns: list[Column] = [
        ("alone, images/s", lambda one: one["alone_per_s"], "{:,.0f}"),
        ("beside, of that", lambda one: one["beside_per_s"] / one["alone_per_s"], "{:.0%}"),
        ("filled, MB/s", lambda one: one["bytes_per_s"] / 1e6, "{:.0f}"),
    ]
    yield plain_table(results, BESIDE, "what", columns)


def keys(results: Results) -> Iterator[str]:
    """The section of case 6."""
    yield "## The catalog\n\n"
    yield (
        f"A bucket of so many keys, in directories of {results.cases[CATALOG]['per_directory']:,}: seconds until a name"
        " can be opened after the start, milliseconds until another one is found, and the memory of the daemon. growfs"
        " lists the whole bucket first, as it draws from all of it; the others list a directory when a name in it is"
        " asked for.\n\n"
    )
    columns: list[Column] = [
        ("first name, s", lambda one: one["ready_s"], "{:.2f}"),
        ("another one, ms", lambda one: one["other_ms"], "{:.2f}"),
        ("daemon, MB", lambda one: one["daemon_mb"], "{:.0f}"),
    ]
    yield plain_table(results, CATALOG, "bucket", columns)


SECTIONS: dict[str, Callable[[Results], Iterator[str]]] = {
    COLD: cold, IMAGES: small, WARM: warm, BESIDE: beside, CATALOG: keys,
}  # fmt: skip


# Cost.

LIST_PRICES = {"gets": 0.0004 / 1000, "lists": 0.005 / 1000, "bytes": 0.02 / 1e9}
"""US dollars, S3 Standard, us-east-1: a GET, a LIST, and a byte to another region:
https://aws.amazon.com/s3/pricing/."""
EPOCHS = 10


def dollars(figures: dict[str, Any]) -> dict[str, float]:
    """Requests, bytes and price of ten epochs: the first, and nine like the later ones."""
    first = figures["epochs"][0]
    found = {}
    for name, counter in (("gets", "gets"), ("lists", "lists"), ("bytes", "remote_bytes")):
        found[name] = first[counter] + (EPOCHS - 1) * per_epoch(figures, counter)
    found["requests_usd"] = found["gets"] * LIST_PRICES["gets"] + found["lists"] * LIST_PRICES["lists"]
    found["bytes_usd"] = found["bytes"] * LIST_PRICES["bytes"]
    return found


def cost(results: Results) -> Iterator[str]:
    """The section of the cost, computed from case 1."""
    sizes = results.cases[LARGER]
    scale = 1e12 / (sizes["samples"] * sizes["sample_bytes"])
    yield "## Cost\n\n"
    yield (
        f"What {EPOCHS} epochs of case 1 take from the store, for a data set of 1 TB in shards of this size: the first"
        " epoch and nine like the later ones, times the size. At list prices of S3 Standard in us-east-1: $0.0004 for"
        " 1,000 GET, $0.005 for 1,000 LIST, and $0.02 for a GB that goes to another region; within a region the bytes"
        " are free.\n\n"
    )
    rows = [
        [peer, name, f"{median(one['gets'] for one in found) * scale / 1e6:,.1f}",
         f"{median(one['bytes'] for one in found) * scale / 1e12:,.1f}",
         f"${median(one['requests_usd'] for one in found) * scale:,.2f}",
         f"${median(one['bytes_usd'] for one in found) * scale:,.0f}"]
        for peer in results.named(LARGER)
        for name in settings(results, peer)
        for found in [[dollars(one) for one in results.of(LARGER, peer, name)]]
    ]  # fmt: skip
    yield table(["", "cache", "million requests", "TB", "requests", "bytes, to another region"], rows) + "\n"
    yield (
        "growfs fetches as much as the link brings while the model trains, so a shorter epoch fetches less. It costs as"
        " much for each byte as the others; each fetched byte is trained on several times.\n\n"
    )


# The page.


def markdown(results: Results) -> str:
    """The whole page."""
    machine = results.machine
    parts = [
        "# Side by side\n\n",
        f"`tools/bench peers` wrote this page on {results.date}, on a virtual machine with {machine['cores']} cores"
        f" ({machine['cpu']}, {machine['memory_bytes'] / 1e9:.0f} GB of memory, Linux {machine['kernel']}), from"
        " [benchmarks.json](benchmarks.json). The same work is done by growfs, by the disk itself, and by what people"
        " would use instead, in turns. The store is `rclone serve s3` on the same machine, behind an emulated link. The"
        " data sets are small and the links slow, so that the ratios are those of a real training and a run is short."
        " In a table, a figure with a range is the median of several rounds, and one without is from one round. A ratio"
        " with a range is the median over the sizes of the cache. The same page with the plot in one file:"
        " [side-by-side.html](side-by-side.html).\n\n",
    ]
    if results.note:
        parts.append(f"{results.note}\n\n")
    if results.quick:
        parts.append("**This was `--quick`: it shows only that everything runs.**\n\n")
    if results.has(LARGER):
        parts += larger(results)
    for case, section in SECTIONS.items():
        if results.has(case):
            parts += section(results)
    if results.has(LARGER):
        parts += cost(results)
    parts += about(results)
    return "".join(parts)


def about(results: Results) -> Iterator[str]:
    """Versions, flags, and what was left out."""
    yield "## What ran\n\n"
    rows = [
        [f"[{name}]({peer['documents']})" if peer["documents"].startswith("http") else name, peer["about"],
         peer["version"], f"`{peer['flags']}`" if peer["flags"] else ""]
        for name, peer in results.peers.items()
    ]  # fmt: skip
    yield table(["", "what it is", "version", "flags"], rows)
    if results.delisted:
        yield "\nLeft out:\n\n"
        yield from (f"- {name}: {reason}\n" for name, reason in results.delisted.items())


def readme_table(results: Results) -> str:
    """README's table: case 1 with a cache of a third, for some of the peers."""
    if not results.has(LARGER):
        return ""
    rows = []
    for peer in (peer for peer in results.named(LARGER) if peer in IN_README):
        name = next((name for name in ("35%", "any") if results.of(LARGER, peer, name)), None)
        if name:
            found = results.of(LARGER, peer, name)
            rows.append(
                [peer, spread([later(one, "utilisation") for one in found]),
                 spread([later(one, "samples_per_s") for one in found], "{:,.0f}"),
                 spread([different_per_s(one) for one in found], "{:,.0f}")]
            )  # fmt: skip
    return table(["", "utilisation", "samples/s", "different samples/s"], rows)


def html(text: str, plot: str) -> str:
    """The page as one file, with the plot in it."""
    from markdown import markdown as as_html

    drawn = plot[plot.find("<svg") :]
    body = re.sub(r"<p><img [^>]*></p>", lambda _: drawn, as_html(text, extensions=["tables", "sane_lists"]))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Side by side</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n'


def draw(results: Results, path: Path) -> None:
    """Write the plot of case 1: utilisation after the first epoch, a bar for each peer and cache."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "growfs"
    from matplotlib import pyplot

    names = results.named(LARGER)[::-1]
    drawing, axes = pyplot.subplots(figsize=(8, 0.6 + 0.45 * len(names)), layout="constrained")
    colors = dict(
        zip([*(f"{share:.0%}" for share in CACHES), "any"], ("#99d8c9", "#41ae76", "#00694b", "#a0a0a0"), strict=True)
    )
    used: set[str] = set()
    for place, peer in enumerate(names):
        ran = settings(results, peer)
        height = 0.8 / len(ran)
        for number, name in enumerate(ran):
            value = median(later(one, "utilisation") for one in results.of(LARGER, peer, name))
            label = {"any": "no cache, or all data"}.get(name, f"cache {name}") if name not in used else None
            used.add(name)
            at = place + 0.4 - height * (number + 0.5)
            axes.barh(at, value, height=height * 0.9, color=colors[name], label=label)
            axes.text(value + 0.01, at, f"{value:.2f}", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, 1.08), xlabel="utilisation of the accelerator after the first epoch")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.12 - 0.8 / max(4, len(names))), ncols=4, fontsize=8, frameon=False
    )
    drawing.savefig(path, metadata={"Date": None})
    pyplot.close(drawing)
