"""Producers: files that the user's function computes, through real mounts."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.cache.cache_folder import folder_name
from growfs.daemon.options import Options
from growfs.disk import BLOCK
from growfs.extensions.producers import sandbox
from growfs.extensions.producers.process import sample_rng
from tests.extensions.producers import producer_functions
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import epoch
from tests.harness import Growfs, make_tree, until
from tests.servers import S3Server

FUNCTIONS = producer_functions.__file__
QUICK = ("--producer-timeout", "10s", "--producer-memory", "300MiB")


@pytest.fixture
def outside(growfs: Growfs, tmp_path: Path) -> Path:
    """A folder that a producer must not write to."""
    folder = tmp_path / "outside"
    folder.mkdir()
    growfs.env[producer_functions.OUTSIDE] = str(folder)
    return folder


def content(growfs: Growfs) -> dict[str, bytes]:
    return {path: (growfs.mountpoint / path).read_bytes() for path in growfs.names()}


def complete(growfs: Growfs) -> dict[str, bytes]:
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
    growfs.run("release", growfs.mountpoint)
    return content(growfs)


@pytest.mark.promise(39)
def test_a_producer_transforms_the_files_of_a_bucket(growfs: Growfs, rclone_s3: S3Server, tmp_path: Path) -> None:
    sample_rng = random.Random(1)
    prefix = uuid4().hex
    tree = {"a/one.bin": sample_rng.randbytes(5000), "a/two.x.bin": b"", "large": sample_rng.randbytes(700_000)}
    for path, data in tree.items():
        rclone_s3.put(f"{prefix}/{path}", data)
    growfs.env.update(rclone_s3.env)
    function = ("--producer", f"{FUNCTIONS}:backwards", "--rename", "{stem}.made")
    arguments = (f"s3://{rclone_s3.bucket}/{prefix}", *function, "--workers", 1)
    growfs.mount(*arguments)
    made = {"a/one.made": "a/one.bin", "a/two.x.made": "a/two.x.bin", "large.made": "large"}
    assert complete(growfs) == {name: tree[source][::-1] for name, source in made.items()}
    status = growfs.status()
    assert (status["state"], status["remote"]["files"], status["cache"]["files"]) == ("complete", 3, 3)
    growfs.umount()
    growfs.mount(*arguments)
    assert growfs.status()["fetch"]["files_total"] == 0
    assert content(growfs)["large.made"] == tree["large"][::-1]
    rclone_s3.put(f"{prefix}/large", b"".join(bytes([65 + n]) * 1000 for n in range(2)))
    growfs.run("set", growfs.mountpoint, "refresh=1s")
    until(lambda: (growfs.mountpoint / "large.made").read_bytes() == b"B" * 1000 + b"A" * 1000)


@pytest.mark.promise(39)
@only("passthrough")
def test_a_file_much_larger_than_the_others_is_produced_at_most_twice(growfs: Growfs, tmp_path: Path) -> None:
    sizes = {"a": 1000, "b": 1000, "c": 5_000_000, "d": 1000}
    (tmp_path / "remote").mkdir()
    for name, size in sizes.items():
        (tmp_path / "remote" / name).write_bytes(b"x" * size)
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:copied")
    assert {name: len(made) for name, made in complete(growfs).items()} == sizes
    assert growfs.log().count("copying c") <= 2


@pytest.mark.promise(7)
def test_a_producer_fills_every_directory_of_a_cache_for_which_its_files_might_be_too_large(
    growfs: Growfs, tmp_path: Path
) -> None:
    """Nobody knows the sizes of what it makes; a guess at them is no reason to return without a file of each."""
    tree = make_tree(tmp_path / "remote", directories=4, files=2)
    output = growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:copied", "--cache-size", "50MB").stdout
    assert "not every directory" not in output
    assert {Path(path).parent for path in growfs.names()} == {Path(path).parent for path in tree}
    assert growfs.status()["unpromised"] is None


@pytest.mark.promise(40, 42)
@only("libfuse")
def test_producer_failures_are_logged_and_skipped(growfs: Growfs, tmp_path: Path, outside: Path) -> None:
    growfs.tolerate_log = True
    remote = tmp_path / "remote"
    remote.mkdir()
    good = {"good", "input", "scratch"} | (set() if sandbox.version() else {"elsewhere"})
    reasons = {
        "raises": "ValueError: no sense in this one",
        "hangs": "did not finish within 10 seconds",
        "exits": "exit code 3",
        "killed": "killed by SIGKILL",
        "leaks": "took more memory than 300 MiB",
        "links": "replaced its file with something else",
        "elsewhere": "PermissionError",
    }
    for name in sorted(good | set(reasons)):
        (remote / f"{name}.bin").write_bytes(b"x")
    more = ("--producer-retries", 0, "--workers", 2)
    growfs.mount(remote, "--producer", f"{FUNCTIONS}:troubled", *QUICK, *more)
    bad = set(reasons) - good
    status = until(lambda: (status := growfs.status())["state"] in ("held", "complete") and status, 90)
    (skipped,) = (entry for entry in status["skipped"] if "producer" in entry["reason"])
    assert skipped["files"] == len(bad)
    whole = {f"{name}.bin": b"what is left of it" for name in good} | {"scratch.bin": b"by another name"}
    assert content(growfs) == whole
    log = growfs.log()
    for name in bad:
        (line,) = (line for line in log.splitlines() if f"not fetched: {name}.bin: " in line)
        assert reasons[name] in line
        assert "skipped after 1 tries" in line
    assert status["last_error"].split(":")[0].removesuffix(".bin") in bad
    assert "in troubled" in log  # the stack where it hung, and where it raised
    for text in ("printed over good", "written to 1", "and to stderr", "echoed over good"):
        assert text in log
    assert not list(outside.iterdir()) or not sandbox.version()
    with pytest.raises(OSError, match="Input/output"):
        (growfs.mountpoint / "raises.bin").read_bytes()  # the open retries
    until(lambda: "sleep 4711" not in subprocess.check_output(["ps", "-eo", "args"], text=True).splitlines())
    growfs.umount()
    assert not list((growfs.cache / "partial").iterdir())


@pytest.mark.promise(41)
@only("passthrough")
def test_samples_depend_only_on_seed_and_number(growfs: Growfs, tmp_path: Path) -> None:
    """Neither on the samples before it, nor on the number of workers. Another seed has another cache."""
    for seed, workers in ((0, 1), (1, 2)):
        flags = "--count", 7, "--rename", "s/{index:03d}.bin", "--seed", seed, "--workers", workers
        growfs.mount(f"py:{FUNCTIONS}:sample", *flags)
        expected = {f"s/{n:03d}.bin": f"{n}:".encode() + sample_rng(seed, n).randbytes(1000) for n in range(7)}
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
        assert content(growfs) == expected
        growfs.umount()


@pytest.mark.promise(41)
def test_an_endless_sequence_of_samples_rotates(growfs: Growfs, reader: Reader) -> None:
    growfs.env[SETUP_VARIABLE] = "from growfs.scheduler import refresh; refresh.EXTENT = 20"
    mount = (f"py:{FUNCTIONS}:sample", "--cache-size", 24 * BLOCK, "--settle", "0s", "--turnover", "50%")
    growfs.mount(*mount)
    until(lambda: growfs.status()["state"] == "held")
    status = growfs.status()
    assert status["cache"]["files"] > 20
    assert status["remote"]["files"] >= 40
    seen: set[str] = set()
    while len(seen) <= 40:
        seen |= epoch(reader)
        until(lambda: growfs.status()["state"] == "held")
    assert growfs.status()["coverage"]["pass"] == 1
    ledger = (growfs.mountpoint / ".growfs/ledger.csv").read_text().splitlines()
    fetches = [int(row.split(",")[2]) for row in ledger[1:]]
    assert len(fetches) > 40
    misses = growfs.status()["miss"]
    assert sum(fetches) - len(fetches) <= misses["files_total"], "a sample is computed again only for a miss"
    (gone, *_) = sorted(seen - growfs.names())
    number = int(gone)
    assert (growfs.mountpoint / gone).read_bytes() == f"{number}:".encode() + sample_rng(0, number).randbytes(1000)
    with pytest.raises(FileNotFoundError):
        (growfs.mountpoint / "99999999").read_bytes()
    known = growfs.status()["remote"]["files"]
    growfs.umount()
    growfs.mount(*mount)
    assert growfs.status()["remote"]["files"] >= known
    assert growfs.status()["cache"]["files"] > 10


@pytest.mark.promise(40)
def test_a_later_try_of_a_failing_producer_succeeds(growfs: Growfs, tmp_path: Path, outside: Path) -> None:
    growfs.tolerate_log = True
    tree = make_tree(tmp_path / "remote", 1, 3, 100)
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:sometimes", "--producer-retries", 10_000, "--no-wait")
    until(lambda: "RuntimeError: not yet, 0000.bin (try 1 of 10001)" in growfs.log())
    for path in tree:
        (outside / Path(path).name).touch()
    assert complete(growfs) == tree


def test_another_producer_has_another_cache() -> None:
    backwards = {"producer": f"{FUNCTIONS}:backwards"}
    options: list[dict[str, str]] = [{}, {"producer": "growfs.producers:copy"}, backwards]
    options.append(backwards | {"rename": "{stem}"})
    specs = [Options.parse(given).remote("s3://bucket") for given in options]
    assert len({folder_name(spec, spec.url) for spec in specs}) == 4


@pytest.mark.promise(40)
def test_files_with_equal_output_names_are_skipped_and_reported(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", 2, 2, 1000)
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:backwards", "--rename", "{name}")
    status = growfs.status()
    assert sorted(complete(growfs)) == ["0000", "0001"]
    (skipped,) = status["skipped"]
    assert (skipped["files"], skipped["example"].split("/")[-1]) == (2, "0000.bin")
    assert "--rename" in skipped["reason"]


def test_a_producer_is_imported_from_the_working_directory(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "remote", 1, 1, 10)
    package = tmp_path / "project" / "mine"
    package.mkdir(parents=True)
    (package / "helpers.py").write_text("word = b'helped'\n")
    (package / "shards.py").write_text(
        "from mine.helpers import word\nclass Make:\n    @staticmethod\n    def it(source, out): out.write(word)\n"
    )
    monkeypatch.chdir(package.parent)
    growfs.mount(tmp_path / "remote", "--producer", "mine.shards:Make.it")
    assert set(complete(growfs).values()) == {b"helped"}
    growfs.umount()
    for wrong, why in (("mine.shard:make", "no module mine.shard"), ("mine.shards:make", "has no function make")):
        refused = growfs.mount(tmp_path / "remote", "--producer", wrong, check=False)
        assert refused.returncode == 2
        assert f"{wrong}: " in refused.stderr
        assert why in refused.stderr
        assert str(package.parent) in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.promise(42)
def test_producer_processes_end_with_the_daemon(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "hangs.bin").touch()
    growfs.mount(tmp_path / "remote", "--producer", f"{FUNCTIONS}:troubled", "--no-wait", "--producer-timeout", 0)
    until(lambda: "printed over hangs" in growfs.log())
    growfs.kill()
    scratch = [path for path in (growfs.cache / "partial").iterdir() if path.is_dir()]
    assert scratch
    until(lambda: not working_in(scratch[0]))
    growfs.umount()


def working_in(folder: Path) -> list[int]:
    """The processes whose working directory is below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append(int(process.name))
        except OSError:
            continue
    return found
