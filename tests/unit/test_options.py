"""The table of options: every option parses its default and valid text, and refuses invalid text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from growfs import cli
from growfs.daemon import launch
from growfs.daemon.option_parsers import (
    OPEN_MPI,
    SLURM,
    TORCHRUN,
    absolute,
    address,
    group,
    partition,
    remote_url,
    size_or_percentage,
    storage_option,
)
from growfs.daemon.options import Options, all_rows, flag_name, nested, parse_value, read_file
from growfs.errors import GrowfsError, UsageError
from growfs.extensions.peers.options import SLURM_NODES, peers
from growfs.extensions.producers.produced import Producer
from growfs.remote.user_functions import Function
from growfs.units import CacheSize

ROWS = all_rows()
VALID: dict[str, tuple[Any, Any]] = {
    "cache_dir": ("/x", Path("/x")),
    "cache_size": ("20GiB", CacheSize(bytes=20 << 30)),
    "min_free": ("0", 0),
    "seed": ("7", 7),
    "partition": ("3/8", (3, 8)),
    "peers": ("node1:7070, [::1]:7071,dns://x.y", ("node1:7070", "[::1]:7071", "dns://x.y")),
    "peer_addr": ("0.0.0.0:7070", ("0.0.0.0", 7070)),
    "peer_token_file": ("/x", Path("/x")),
    "peer_bandwidth": ("1GB/s", 10**9),
    "freeze": (["val/", "*.csv"], ("val/", "*.csv")),
    "group": ("{stem}", "{stem}"),
    "rotation": ("never", "never"),
    "turnover": ("35%", 0.35),
    "hold_idle": ("2h", 7200.0),
    "show_files": ("5000", 5000),
    "remote_budget": ("500GB", 500 * 10**9),
    "workers": ("16", 16),
    "bandwidth": ("200MB/s", 200 * 10**6),
    "include": (["*.jpg", "a/"], ("*.jpg", "a/")),
    "exclude": (["*.txt"], ("*.txt",)),
    "producer": ("mypkg.shards:make", Function("mypkg.shards", "make", os.getcwd())),
    "rename": ("{stem}.tfrecord", "{stem}.tfrecord"),
    "count": ("100000", 100_000),
    "producer_timeout": ("5m", 300.0),
    "producer_memory": ("2GiB", 2 << 30),
    "producer_retries": ("0", 0),
    "manifest": ("/lists/list.csv", "/lists/list.csv"),
    "members": ("tar", Function("growfs.producers", "tar", os.getcwd())),
    "refresh": ("0", 0.0),
    "list_timeout": ("5m", 300.0),
    "wait_files": ("3", 3),
    "wait_bytes": ("1GB", 10**9),
    "no_wait": (True, True),
    "engine": ("libfuse", "libfuse"),
    "client": ("library", "library"),
    "on_miss": ("error", "error"),
    "miss_timeout": ("90", 90.0),
    "settle": ("500ms", 0.5),
    "keep_generations": ("3", 3),
    "storage_option": (["key=A", "retries=3"], (("key", "A"), ("retries", 3))),
    "endpoint_url": ("http://x:1", "http://x:1"),
    "anon": (True, True),
    "exact": (True, True),
    "part_size": ("1GB", CacheSize(bytes=10**9)),
    "start": ("3/4", (3, 4)),
    "allow_other": (True, True),
    "metrics_addr": ("0.0.0.0:9401", ("0.0.0.0", 9401)),
}
INVALID: dict[str, list[Any]] = {
    "part_size": ["much", "0", "101%"],
    "start": ["3", "0/1", "1/0", "a/b", "", "1000000000/1", "1/18446744073709551616", f"1/{'9' * 5000}"],
    "cache_size": ["much", "0", "-5GB", "101%", "0%", ""],
    "min_free": ["-1", "5XB"],
    "seed": ["-1", "1.5", "x", ""],
    "partition": ["8/8", "-1/8", "3", "3/", "/8", "0/0", "a/b", "1/2/3", "²/8", f"0/{'9' * 5000}", ""],
    "peers": ["", "node1", "node1:7070,", "node1:0", "7070", "dns://", "dns://x:0", "dns://x/y", "dns://x:99999"],
    "peer_addr": ["7070", ":7070", "node1:0", "node1"],
    "peer_bandwidth": ["fast"],
    "group": [
        *("stem", "{}", "{0}", "{stem", "{suffix}", "{stem.upper}", "{stem[0]}", "{stem:d}", "{stem!x}", ""),
        *("{dir}", "{dir:0}", "{dir:-1}", "{dir:x}", "{dir:{top}}", "{dir:1!s}", "{dir:1000}", "Cityscapes"),
        *("(x", "(?:x)", "x(*)", "(x)+", "(x)*", "(x){2,}", r"(\()\\(a)+", "[(x]"),
    ],
    "rotation": ["lru", "Auto", ""],
    "turnover": ["0", "2", "all"],
    "hold_idle": ["-1", "long"],
    "show_files": ["0", "-5", "x"],
    "remote_budget": ["-1", "lots"],
    "workers": ["0", "many"],
    "bandwidth": ["fast", "-1", "200Mbit", "/s"],
    "producer": ["mypkg.shards", "mypkg:", ":make", "my pkg:make", "shards.py", "mypkg:2"],
    "rename": ["all.bin", "{nothing}", "{stem", "{}", "{index:x.y}", "{stem.x}"],
    "count": ["0", "x"],
    "producer_timeout": ["long"],
    "producer_memory": ["much"],
    "producer_retries": ["-1"],
    "refresh": ["-5", "5 parsecs", "nan", "inf"],
    "wait_files": ["-1", "²"],
    "engine": ["fast"],
    "client": ["s3fs"],
    "on_miss": ["maybe"],
    "storage_option": [["key"], ["=value"]],
    "metrics_addr": ["", "x", "x:", "::1:9401", "[::1]", "65536", "127.0.0.1:65536", "http://x:1", ":²", "-1"],
}


def test_every_option_is_tested() -> None:
    assert set(VALID) == set(ROWS)


def test_the_options_that_pods_may_not_choose_are_marked() -> None:
    assert {name for name, row in ROWS.items() if row.metadata["affects_node"]} == {
        *("cache_dir", "manifest", "members", "metrics_addr", "min_free"),
        *("peer_addr", "peer_token_file", "peers", "producer", "storage_option"),
    }


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in INVALID.items() for text in texts])
def test_invalid_text_is_refused_with_the_name_of_its_flag(name: str, text: object) -> None:
    with pytest.raises(UsageError, match=f"^{flag_name(name)}: ") as raised:
        parse_value(ROWS[name], text)
    assert "\n" not in str(raised.value)


LAUNCHED = [*TORCHRUN, *SLURM, *OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", SLURM_NODES]
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "6"}


@pytest.mark.promise(26)
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "1"}, (0, 1)),
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4", "SLURM_NODEID": "5", "SLURM_NNODES": "8"}, (2, 4)),
        ({"GROUP_RANK": "2", "SLURM_NODEID": "5", "SLURM_NNODES": "8"}, (5, 8)),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_NODEID": "5", "SLURM_NNODES": "8"}, (1, 6)),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_NODEID": "5", "SLURM_NNODES": "8"}, (5, 8)),
        ({}, "needs GROUP_RANK and GROUP_WORLD_SIZE.*0/8"),
        ({"SLURM_NODEID": "5"}, "needs GROUP_RANK and GROUP_WORLD_SIZE.*0/8"),
        ({"GROUP_RANK": "8", "GROUP_WORLD_SIZE": "8"}, "'8/8' is not a partition.*0/8"),
    ],
)
def test_partition_auto_reads_the_environment_of_the_job(
    environment: dict[str, str], expected: tuple[int, int] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, tuple):
        assert partition("auto") == expected
    else:
        with pytest.raises(UsageError, match=expected):
            partition("auto")


SCONTROL = """#!/bin/sh
[ "$1 $2 $3" = "show hostnames node[1-2,7]" ] && printf 'node1\\nnode2\\nnode7\\n' && exit
echo "Invalid hostlist: $3" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("nodes", "script", "expected"),
    [
        ("node[1-2,7]", SCONTROL, ("node1", "node2", "node7")),
        ("node[", SCONTROL, "SLURM_JOB_NODELIST=node[: Invalid hostlist: node[; list the nodes"),
        ("node[1-2,7]", "#!/bin/sh\n", "scontrol printed no names"),
        ("node[1-2,7]", "#!/bin/sh\nexit 3\n", "scontrol exited with 3"),
        ("node[1-2,7]", "", "scontrol is not in PATH"),
        ("", SCONTROL, "needs Slurm's SLURM_JOB_NODELIST"),
    ],
)
def test_peers_auto_are_the_nodes_of_the_slurm_job(
    nodes: str, script: str, expected: tuple[str, ...] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "scontrol").write_text(script)
        (tmp_path / "scontrol").chmod(0o755)
    if isinstance(expected, tuple):
        assert peers("auto") == expected
    else:
        with pytest.raises(UsageError, match=re.escape(expected)):
            peers("auto")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (size_or_percentage, " 12.5 % ", CacheSize(share=0.125)),
        (size_or_percentage, "100%", CacheSize(share=1.0)),
        (group, "{parent}/{name}", "{parent}/{name}"),
        (group, "x-{name}", "x-{name}"),
        (storage_option, "yes=true", ("yes", True)),
        (storage_option, "a.b={}", ("a.b", {})),
        (storage_option, "secret=a=b", ("secret", "a=b")),
        (storage_option, "empty=", ("empty", "")),
        (address, "9401", ("127.0.0.1", 9401)),
        (address, ":9401", ("127.0.0.1", 9401)),
        (address, "localhost:0", ("localhost", 0)),
        (address, "[::1]:9401", ("::1", 9401)),
    ],
)
def test_every_way_to_write_a_value_is_parsed(parse: Callable[[str], object], text: str, value: object) -> None:
    """Besides those of VALID."""
    assert parse(text) == value


def test_dots_in_storage_options_nest() -> None:
    assert nested((("a.b.c", 1), ("a.d", 2), ("e", 3))) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    with pytest.raises(UsageError):
        nested((("a", 1), ("a.b", 2)))


def test_a_local_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("data") == str(Path.cwd() / "data")
    assert remote_url("./missing") == str(Path.cwd() / "missing")
    with pytest.raises(UsageError, match="missing: no such folder; if this is not a local path, use s3://missing"):
        remote_url("missing")
    assert absolute("~/data") == str(Path.home() / "data")
    assert absolute("s3://bucket/x") == "s3://bucket/x"
    assert absolute("zip::s3://bucket/x") == "zip::s3://bucket/x"
    assert Options.parse({"manifest": "list.txt"}).by_name()["manifest"] == str(Path.cwd() / "list.txt")


def test_a_producer_is_looked_for_in_the_working_directory() -> None:
    options = Options.parse({"producer": "shards.py:make", "rename": "{stem}.x"})
    producer = options.remote("s3://bucket", Path("/home/me")).maker
    assert isinstance(producer, Producer)
    assert (str(producer.function), producer.seed) == (f"{Path.cwd()}/shards.py:make", None)
    producer = Options.parse({"seed": "7"}).remote("py:shards:sample", Path("/home/me")).maker
    assert isinstance(producer, Producer)
    assert (producer.function, producer.seed, producer.count) == (Function("shards", "sample", "/home/me"), 7, None)
    assert Options.parse({}).remote("s3://bucket", Path("/home/me")).maker is None


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("py:shards:sample", {"producer": "shards:make"}),
        ("py:shards:sample", {"include": "*.x"}),
        ("py:shards:sample", {"anon": True}),
        ("py:shards:sample", {"rename": "{stem}-{index}"}),
        ("py:shards:sample", {"members": "tar"}),
        ("s3://bucket", {"producer": "shards:make", "members": "tar"}),
        ("py:shards:sample", {"manifest": "/list.csv"}),
        ("py:shards:sample", {"group": "{stem}"}),
        ("py:shards:sample", {"rename": "{stem}.x"}),
        ("py:shards.py", {}),
        ("s3://bucket", {"count": "5"}),
        ("s3://bucket", {"rename": "{stem}.x"}),
        ("s3://bucket", {"producer": "shards:make", "rename": "{index}.x"}),
    ],
)
def test_contradictory_options_of_producers_are_refused(url: str, options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Options.parse(options).remote(url, Path("/home/me"))


def test_options_that_decide_what_others_decide_are_refused() -> None:
    for option in ({"rotation": "never"}, {"turnover": "40%"}, {"keep_generations": "3"}):
        with pytest.raises(UsageError, match=r"see docs/whole-epochs\.md"):
            Options.parse({"exact": True, **option}).remote("s3://bucket")
        Options.parse(option).remote("s3://bucket")
    with pytest.raises(UsageError, match="cannot be used with"):
        Options.parse({"no_wait": True, "wait_files": "1"})


# Options in a file.


def options_in_file(folder: Path, text: str) -> Options:
    path = folder / "growfs.toml"
    path.write_text(text)
    return Options.parse(read_file(path))


def test_options_are_read_from_a_file(tmp_path: Path) -> None:
    options = options_in_file(
        tmp_path,
        'cache-size = "20GiB"\nworkers = 8\nrefresh = 0\nno-wait = true\ninclude = ["*.jpg", "*.png"]\n'
        "[storage-option]\nkey = 'A'\nretries = 3\nclient_kwargs = {region_name = 'eu-west-1'}\n",
    )
    assert options.cache_size == CacheSize(bytes=20 << 30)
    assert (options.workers, options.refresh, options.no_wait) == (8, 0.0, True)
    assert options.include == ("*.jpg", "*.png")
    assert options.remote("s3://b").storage_options == {
        "key": "A",
        "retries": 3,
        "client_kwargs": {"region_name": "eu-west-1"},
    }


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    wrong = ["cache-sise = '1GB'", "cache-size = 'much'", "cache-size", "storage-option = 5", "no-wait = 'false'"]
    wrong += ["workers = true", "workers = 0", "cache-size = []", "[workers]\nfew = 1"]
    for text in wrong:
        with pytest.raises(UsageError) as raised:
            options_in_file(tmp_path, text)
        assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=r"^--storage-option since: is a date; must be text"):
        options_in_file(tmp_path, "[storage-option]\nsince = 2026-01-02\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, tmp_path / "binary"):
        with pytest.raises(UsageError, match=f"--config {path}: "):
            read_file(path)


# Flags, environment and file.


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Collects the options that `growfs mount` passes to launch.start; nothing is mounted."""
    started: list[Options] = []

    def start(url: str, mountpoint: Path, options: Options, *_: object) -> None:
        started.append(options)
        raise GrowfsError("not mounted")

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "hide_secrets", lambda: None)
    return started


def test_a_flag_overrides_the_environment_which_overrides_the_file(tmp_path: Path, mount: list[Options]) -> None:
    path = tmp_path / "growfs.toml"
    path.write_text("seed = 1\nworkers = 1\ncache-size = '1GB'\nanon = true\nexclude = ['file']\ninclude = 'a/'\n")
    env = {"GROWFS_SEED": "2", "GROWFS_WORKERS": "2", "GROWFS_ANON": "0", "GROWFS_EXCLUDE": "from env"}
    env["GROWFS_CONFIG"] = str(path)
    result = CliRunner().invoke(cli.main, ["mount", "/data", "/mnt", "--seed", "3"], env=env)
    assert "not mounted" in result.output
    (options,) = mount
    assert (options.seed, options.workers, options.cache_size) == (3, 2, CacheSize(bytes=10**9))
    assert (options.include, options.exclude) == (("a/",), ("from", "env"))
    assert not options.anon


@pytest.mark.parametrize("name", ROWS)
def test_every_option_is_a_flag_and_an_environment_variable(name: str, mount: list[Options]) -> None:
    text, expected = VALID[name]
    texts = text if isinstance(text, list) else [str(text)]
    flags = [flag_name(name)] if text is True else [part for one in texts for part in (flag_name(name), one)]
    CliRunner().invoke(cli.main, ["mount", "/data", "/mnt", *flags])
    CliRunner().invoke(cli.main, ["mount", "/data", "/mnt"], env={f"GROWFS_{name.upper()}": " ".join(texts)})
    assert [options.by_name()[name] for options in mount] == [expected, expected]


def test_the_options_that_differ_are_shown_without_secrets() -> None:
    given = {
        "cache_size": "500GB",
        "turnover": "20%",
        "hold_idle": "30m",
        "bandwidth": "200MB/s",
        "partition": "0/8",
        "include": ["a/", "b/"],
        "anon": True,
        "endpoint_url": "https://user:s3kr1t@host",
        "storage_option": ["secret=s3kr1t"],
    }
    assert Options.parse(given).changed() == {
        "--cache-size": "500 GB",
        "--hold-idle": "30 minutes",
        "--bandwidth": "200 MB/s",
        "--partition": "0/8",
        "--include": "a/, b/",
        "--anon": "yes",
        "--endpoint-url": "https://host",
        "--storage-option": "secret",
    }
