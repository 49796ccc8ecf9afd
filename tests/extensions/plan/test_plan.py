"""`growfs plan`, run as a command: its figures agree with hand computation, and invalid arguments are refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import assert_refused
from tests.forkserver import SETUP_VARIABLE
from tests.harness import COMMAND_S, FORKS, Growfs
from tests.needs import need

HUGE = ("--data-size", "10PB", "--files", "100M", "--cache-size", "2TB", "--bandwidth", "1GB/s")
SMALL = ("--data-size", "1TB", "--files", "500", "--epochs", "30", "--cache-size", "200GB", "--bandwidth", "1GB/s")
READ = ("--read-rate", "500MB/s")
TINY = (*SMALL[:3], "40", "--epochs", "4", *SMALL[6:], *READ)
"""Fast to compute."""
DAY_S = 86400


def plan(growfs: Growfs, *arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of a plan, by policy."""
    return {row["policy"]: row for row in json.loads(growfs.run("plan", *arguments, "--json").stdout)}


def test_ten_petabytes_take_seconds(growfs: Growfs) -> None:
    growfs.env[SETUP_VARIABLE] = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (30, 30))"
    output = growfs.run("plan", *HUGE, *READ).stdout
    assert "10 PB in 100,000,000 files" in output
    for policy in ("growfs", "LRU", "MRU", "FIFO", "random", "never evict"):
        assert policy in output
    assert "warning" not in output


def test_turnover_limits_a_fast_link(growfs: Growfs) -> None:
    """Each epoch reads 0.8 of the cache and replaces 0.2 of it: 4 opens of each file."""
    row = plan(growfs, *HUGE, *READ, "--epochs", "25")["growfs"]
    assert row["repeats"] == pytest.approx(4, rel=0.05)
    assert row["epoch_bytes"] == pytest.approx(0.2 * 2e12, rel=0.05)
    assert row["local"] == 1
    assert row["all_seen_days"] == pytest.approx(0.99 * 10e15 / (0.25 * 500e6) / DAY_S, rel=0.1)


def test_a_slow_link_limits_what_any_policy_shows(growfs: Growfs) -> None:
    """Every fetched file is listed, so a file is opened as often as reading is faster than the link."""
    rows = plan(growfs, *SMALL[:4], "--epochs", "150", *SMALL[6:-1], "50MB/s", *READ)
    assert rows["growfs"]["repeats"] == pytest.approx(500 / 50, rel=0.1)
    for row in rows.values():
        for point in row["points"]:
            assert 0 <= point["seen"] * 1e12 <= point["remote_bytes"] * 1.001
            assert point["remote_bytes"] <= 50e6 * point["s"] * 1.001


def test_few_large_files_are_opened_once_they_arrive(growfs: Growfs) -> None:
    """The first downloads run in parallel, so at the start none is complete."""
    for row in plan(growfs, *TINY).values():
        assert all(point["opens"] > 0 for point in row["points"])
        assert row["seen"] > 0


def test_the_policies_differ_as_their_rules_say(growfs: Growfs) -> None:
    """Those that evict files in use make readers wait. 800 GB of 1 TB do not fit; LRU saves 0.2 + 0.8 ln 0.8 = 2.1%.

    Rotation reads each file four times before it has shown all of them: --exact, which is sooner, is mentioned.
    """
    rows = plan(growfs, *SMALL, *READ)
    assert rows["growfs"]["local"] == rows["growfs"]["seen"] == 1
    assert max(rows[policy]["local"] for policy in ("lru", "fifo", "random")) < 0.7
    assert rows["mru"]["local"] > 0.9
    assert rows["mru"]["repeats"] < rows["growfs"]["repeats"]
    assert [rows[policy]["whole_epoch_bytes"] for policy in ("mru", "growfs")] == [800 * 10**9, None]
    never = rows["never"]
    assert never["seen"] == pytest.approx(0.2, abs=0.001)
    assert (never["all_seen_days"], never["repeats"], never["local"]) == (None, None, 1)
    output = growfs.run("plan", *SMALL, *READ).stdout
    assert "an epoch over all files fetches at least 800 GB with any policy, 978.51 GB with LRU" in output
    text = (
        "with --exact, a pass over all data takes 33 minutes and 20 seconds, and the reader hardly waits; see --exact"
    )
    assert output.splitlines()[-1] == text


@pytest.mark.parametrize(
    ("nodes", "cache", "first", "later"), [(8, "200GB", 1, 0), (1000, "2GB", 1, 0), (4, "40GB", 1, 1)]
)
def test_nodes_that_feed_one_another_read_the_bucket_about_once(
    growfs: Growfs, nodes: int, cache: str, first: float, later: float
) -> None:
    arguments = (*SMALL[:3], "5000", "--epochs", "2", "--cache-size", cache, *SMALL[8:], *READ, "--nodes", str(nodes))
    answer = json.loads(growfs.run("plan", *arguments, "--json").stdout)
    found = answer["nodes"]
    assert found["first_remote_bytes"] == pytest.approx(first * 1e12, rel=0.3, abs=5e10)
    assert found["later_remote_bytes"] == pytest.approx(later * 1e12, rel=0.3, abs=5e10)
    assert found["first_remote_bytes"] + found["first_peer_bytes"] == found["first_alone_bytes"] == nodes * 10**12
    assert 0 < found["unevenness"] < 0.3
    assert found["all_seen_days"] == answer["policies"][0]["all_seen_days"]


def test_the_plan_of_nodes_is_printed(growfs: Growfs) -> None:
    output = growfs.run("plan", *TINY, "--nodes", "8").stdout
    assert "8 nodes, each with this cache and link" in output
    assert "each has seen 99% after: " in output
    assert re.search(r"over two passes, each file is shown for the same time, ±\d+%", output)
    (line,) = (line for line in output.splitlines() if "first pass, without" in line)
    assert "8 TB" in line
    assert "nodes" not in growfs.run("plan", *TINY).stdout
    assert_refused(growfs.run("plan", *TINY, "--nodes", "0", check=False), "plan: --nodes", exit_code=2)


def test_data_that_fits_the_cache_is_all_seen(growfs: Growfs) -> None:
    sizes = ("--data-size", "1TB", "--file-size", "1GB", "--cache-size", "2TB")
    arguments = (*sizes, "--bandwidth", "1GB/s", *READ, "--epochs", "20")
    for row in plan(growfs, *arguments).values():
        assert row["seen"] == 1
        assert row["local"] == 1
        assert row["repeats"] is None
    output = growfs.run("plan", *arguments).stdout
    assert "warning" not in output
    assert "--exact" not in output
    assert "an epoch over all files" not in output


@pytest.mark.parametrize(
    ("changed", "first", "useless"),
    [
        (("--turnover", "5%"), "--turnover 10%", "--bandwidth 2GB/s"),
        (("--bandwidth", "50MB/s"), "--bandwidth 100MB/s", "--turnover 40%"),
    ],
)
def test_the_option_that_helps_is_named(growfs: Growfs, changed: tuple[str, str], first: str, useless: str) -> None:
    output = growfs.run("plan", *SMALL, *READ, *changed).stdout
    _, *options = (line.strip() for line in output.partition("warning: ")[2].splitlines())
    assert options[0].startswith(first)
    (line,) = (option for option in options if option.startswith(useless + ":"))
    assert line.endswith("does not help")


def test_the_passes_of_exact_are_printed(growfs: Growfs) -> None:
    """A cache of 200 GB keeps 188: a later pass fetches the others at 50 MB/s, and reads 1 TB at 500 MB/s."""
    arguments = ("--exact", *SMALL[:4], *SMALL[6:8], "--bandwidth", "50MB/s", *READ)
    output = growfs.run("plan", *arguments).stdout
    rows = {
        name.strip(): cells for name, *cells in (line.strip("│┃").split("│") for line in output.splitlines()) if cells
    }
    given = {name: cells[0].strip() for name, cells in rows.items()}
    assert given["stays cached"] == "188 GB, 19%"
    assert given["first pass: fetched"] == "1 TB"
    assert given["first pass: utilization"] == "10.0%"
    assert given["later pass: fetched"] == "812 GB"
    assert given["later pass: takes"] == f"{812e9 / 50e6 / 3600:.1f} hours"
    assert given["later pass: utilization"] == f"{50 / (0.812 * 500):.1%}"
    assert rows["later pass: utilization"][-1].strip() == "100.0%"
    size = re.search(r"waits for the link 88% of the time; with --cache-size ([\d.]+)GB it hardly waits", output)
    assert size
    assert float(size[1]) == pytest.approx(0.9 * 1000 / 0.94, rel=0.03)
    passes = json.loads(growfs.run("plan", *arguments, "--json").stdout)
    assert [row["cache_bytes"] for row in passes[:3]] == [200 * 10**9, 300 * 10**9, 400 * 10**9]
    assert str(passes[0]["parts"]) == given["parts of a pass"]
    large = json.loads(growfs.run("plan", *arguments, "--part-size", "20%", "--json").stdout)
    assert large[0]["parts"] < passes[0]["parts"] / 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*SMALL[:4], *SMALL[6:], *READ, "--part-size", "10%"), "plan: --part-size needs --exact"),
        ((*SMALL, *READ, "--exact"), "plan: --epochs cannot be used with --exact"),
        ((*HUGE, *READ, "--exact", "--nodes", "2"), "plan: --nodes cannot be used with --exact"),
        ((*HUGE, *READ, "--exact", "--part-size", "much"), "--part-size: 'much'"),
        ((*HUGE[:2], *HUGE[4:], *READ), "--files or --file-size"),
        ((*HUGE, *READ, "--file-size", "1GB"), "--files or --file-size"),
        ((*HUGE, "--read-rate", "fast"), "--read-rate: 'fast' is not a rate"),
        ((*HUGE, "--read-rate", "0"), "--read-rate"),
        ((*HUGE, "--read-rate", "1Gbps"), "--read-rate: '1Gbps' is not a rate in bytes"),
        ((*HUGE, *READ, "--turnover", "120%"), "--turnover"),
        ((*HUGE, *READ, "--epochs", "0"), "--epochs"),
        ((*HUGE, *READ, "--files", "many"), "--files: 'many'"),
        ((*HUGE, *READ, "--data-size", "huge"), "--data-size: 'huge' is not a size"),
        ((*HUGE, *READ, "--cache-size", "1MB"), "--cache-size"),
        ((*HUGE, *READ, "--data-size", "1MB"), "files"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(growfs: Growfs, arguments: tuple[str, ...], expected: str) -> None:
    assert_refused(growfs.run("plan", *arguments, check=False), expected, exit_code=2)


def test_draw_writes_an_image(growfs: Growfs, tmp_path: Path) -> None:
    need("matplotlib")
    program = """
import sys, growfs
*words, folder = sys.argv[1:]
for name in ("plan.png", "plan.xyz", "no/x.png"):  # in one process, as matplotlib takes long to import
    sys.argv[1:] = [*words, f"{folder}/{name}"]
    try:
        growfs.main()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
"""
    done = FORKS.run(["-c", program, "plan", *TINY, "--draw", str(tmp_path)], growfs.env, COMMAND_S)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert re.fullmatch(r"(0\n)?growfs: .*plan\.xyz.*\n2\ngrowfs: .*No such file.*\n1\n", done.stderr)


def test_draw_without_matplotlib_names_the_extra(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')")
    growfs.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), growfs.env.get("PYTHONPATH", "")])
    refused = growfs.run("plan", *TINY, "--draw", tmp_path / "plan.png", check=False)
    assert_refused(refused, "growfs[report]")
