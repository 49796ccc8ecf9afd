"""`growfs plan`, by the real command: its figures against what can be computed by hand, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import assert_refused
from tests.harness import Growfs

HUGE = ("--data-size", "10PB", "--files", "100M", "--cache-size", "2TB", "--bandwidth", "1GB/s")
SMALL = ("--data-size", "1TB", "--files", "1000", "--cache-size", "200GB", "--bandwidth", "1GB/s")
READ = ("--read-rate", "500MB/s")
TINY = (*SMALL[:3], "40", *SMALL[4:], *READ, "--epochs", "4")
"""Soon computed."""
DAY_S = 86400


answers: dict[tuple[str, ...], str] = {}
"""What was computed before; the simulation is deterministic."""


def plan(growfs: Growfs, *arguments: str) -> dict[str, dict[str, Any]]:
    """By policy."""
    if arguments not in answers:
        answers[arguments] = growfs.run("plan", *arguments, "--json", timeout_s=30).stdout
    return {row["policy"]: row for row in json.loads(answers[arguments])}


def test_ten_petabytes_take_seconds(growfs: Growfs) -> None:
    output = growfs.run("plan", *HUGE, *READ, timeout_s=30).stdout
    assert "10 PB in 100,000,000 files" in output
    for policy in ("growfs", "LRU", "FIFO", "random", "never evict"):
        assert policy in output
    assert "warning" not in output


def test_turnover_is_what_limits_a_fast_link(growfs: Growfs) -> None:
    """Each epoch reads 0.8 of the cache and replaces 0.2 of it: 4 opens of each file."""
    row = plan(growfs, *HUGE, *READ)["growfs"]
    assert row["repeats"] == pytest.approx(4, rel=0.05)
    assert row["epoch_bytes"] == pytest.approx(0.2 * 2e12, rel=0.05)
    assert row["local"] == 1
    assert row["all_seen_days"] == pytest.approx(0.99 * 10e15 / (0.25 * 500e6) / DAY_S, rel=0.1)


@pytest.mark.parametrize(("turnover", "repeats"), [("10%", 9), ("0.5", 1)])
def test_opens_per_fetch_follow_from_the_turnover(growfs: Growfs, turnover: str, repeats: float) -> None:
    row = plan(growfs, *SMALL, *READ, "--turnover", turnover)["growfs"]
    assert row["repeats"] == pytest.approx(repeats, rel=0.1)


def test_opens_per_fetch_follow_from_a_slow_link(growfs: Growfs) -> None:
    """All that the link brings is shown: as many opens of it as reading is faster."""
    slow = [*SMALL[:-1], "50MB/s", *READ, "--epochs", "150"]
    row = plan(growfs, *slow)["growfs"]
    assert row["repeats"] == pytest.approx(500 / 50, rel=0.1)


@pytest.mark.parametrize("bandwidth", ["50MB/s", "250MB/s", "2GB/s"])
def test_nobody_sees_what_the_link_cannot_bring(growfs: Growfs, bandwidth: str) -> None:
    rates = {"50MB/s": 50e6, "250MB/s": 250e6, "2GB/s": 2e9}
    for row in plan(growfs, *SMALL[:-1], bandwidth, *READ).values():
        for point in row["points"]:
            assert point["seen"] * 1e12 <= point["remote_bytes"] * 1.001
            assert point["remote_bytes"] <= rates[bandwidth] * point["s"] * 1.001
            assert 0 <= point["seen"] <= 1


def test_who_never_evicts_sees_what_fits(growfs: Growfs) -> None:
    row = plan(growfs, *SMALL, *READ)["never"]
    assert row["seen"] == pytest.approx(0.2, abs=0.001)
    assert row["all_seen_days"] is None
    assert row["repeats"] is None
    assert row["local"] == 1


def test_few_large_files_are_waited_for(growfs: Growfs) -> None:
    """At the start none of the first downloads, side by side, is complete."""
    for row in plan(growfs, *TINY).values():
        assert all(point["opens"] > 0 for point in row["points"])
        assert row["seen"] > 0


def test_what_replaces_used_files_makes_readers_wait(growfs: Growfs) -> None:
    rows = plan(growfs, *SMALL, *READ)
    assert rows["growfs"]["local"] == 1
    assert max(rows[policy]["local"] for policy in ("lru", "fifo", "random")) < 0.7
    assert rows["growfs"]["seen"] == 1


def test_all_of_the_data_fits(growfs: Growfs) -> None:
    arguments = ("--data-size", "1TB", "--file-size", "1GB", "--cache-size", "2TB", "--bandwidth", "1GB/s", *READ)
    for row in plan(growfs, *arguments).values():
        assert row["seen"] == 1
        assert row["local"] == 1
        assert row["repeats"] is None
    assert "warning" not in growfs.run("plan", *arguments).stdout


@pytest.mark.parametrize(
    ("changed", "first", "helps_not"),
    [
        (("--turnover", "5%"), "--turnover 10%", "--bandwidth 2 GB/s"),
        (("--bandwidth", "50MB/s"), "--bandwidth 100 MB/s", "--turnover 40%"),
    ],
)
def test_the_knob_that_helps_is_named(growfs: Growfs, changed: tuple[str, str], first: str, helps_not: str) -> None:
    output = growfs.run("plan", *SMALL, *READ, *changed).stdout
    _, *knobs = (line.strip() for line in output.partition("warning: ")[2].splitlines())
    assert knobs[0].startswith(first)
    (line,) = (knob for knob in knobs if knob.startswith(helps_not + ":"))
    assert line.endswith("does not help")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*HUGE[:2], *HUGE[4:], *READ), "--files and --file-size"),
        ((*HUGE, *READ, "--file-size", "1GB"), "--files and --file-size"),
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
def test_what_makes_no_sense_is_refused_in_one_line(growfs: Growfs, arguments: tuple[str, ...], says: str) -> None:
    assert_refused(growfs.run("plan", *arguments, check=False), says, exit_code=2)


def test_a_drawing(growfs: Growfs, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = tmp_path / "plan.png"
    growfs.run("plan", *TINY, "--draw", image)
    assert image.read_bytes().startswith(b"\x89PNG")
    assert_refused(growfs.run("plan", *TINY, "--draw", tmp_path / "plan.xyz", check=False), "plan.xyz", exit_code=2)
    assert_refused(growfs.run("plan", *TINY, "--draw", tmp_path / "no" / "x.png", check=False), "No such file")


def test_without_matplotlib_a_drawing_names_the_extra(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')")
    growfs.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), growfs.env.get("PYTHONPATH", "")])
    refused = growfs.run("plan", *TINY, "--draw", tmp_path / "plan.png", check=False)
    assert_refused(refused, "growfs[report]")
