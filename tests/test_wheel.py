"""The wheel, in a virtual environment that has only what it requires, on a machine without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from growfs.fuse.engine_choice import PACKAGES
from growfs.fuse.probe import why_not_passthrough
from tools.man import PAGE

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
QUICK = ["--retries", "0", "--timeout", "10"]

pytestmark = pytest.mark.timeout(300)


class Installed:
    """A virtual environment with the wheel. No program but its own is on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin/python"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GROWFS"))}
        self.env = {**inherited, "PATH": str(folder / "bin"), "CC": "no-compiler", "CXX": "no-compiler"}
        self.cwd = folder

    def run(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, env=self.env, cwd=self.cwd, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def growfs(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("growfs", *words, check=check)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run([*PIP, *QUICK, *build], capture_output=True, text=True, check=False)
    if done.returncode:
        probe = ["download", "--no-deps", "--dest", str(folder / "probe"), "hatchling"]
        assert subprocess.run([*PIP, *QUICK, *probe], capture_output=True, check=False).returncode, done.stderr
        pytest.skip("pip reaches no package index here, so it cannot install what builds the wheel")
    (wheel,) = folder.glob("growfs-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    found = Installed(folder / "venv")
    found.run(*PIP, "--python", found.python, "install", "--no-compile", "--no-deps", "--quiet", wheel)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (growfs,) = metadata.distributions(path=[str(wheel)])
    for needed in dependencies(growfs):
        for top in {file.parts[0] for file in needed.files or () if ".." not in file.parts}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(needed.locate_file(top)))
    return found


def dependencies(distribution: metadata.Distribution, extras: Iterable[str] = ()) -> Iterator[metadata.Distribution]:
    """What pip would install with a distribution, as the environment of the tests has it."""
    for requirement in map(Requirement, distribution.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(needed.version, prereleases=True)
            yield needed
            yield from dependencies(needed, requirement.extras)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "file").write_text("content")
    return folder


@pytest.fixture
def mountpoint(installed: Installed, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    installed.growfs("umount", path, check=False)


def test_it_brings_the_man_page(installed: Installed) -> None:
    assert (installed.python.parents[1] / "share/man/man1/growfs.1").read_text() == PAGE.read_text()


def test_it_mounts_by_passthrough(installed: Installed, remote: Path, mountpoint: Path, tmp_path: Path) -> None:
    script = "import growfs, importlib.util as util; print(growfs.__file__, util.find_spec('pyfuse3'))"
    file, pyfuse3 = installed.run("python", "-c", script).stdout.split()
    assert Path(file).is_relative_to(installed.cwd)
    assert pyfuse3 == "None"
    if why_not := why_not_passthrough(tmp_path):
        pytest.skip(f"passthrough cannot run here: {why_not}")
    installed.growfs("mount", remote, mountpoint, "--cache-dir", tmp_path / "cache", "--wait-files", 1)
    assert (mountpoint / "file").read_text() == "content"
    status = json.loads(installed.growfs("status", mountpoint, "--json").stdout)
    assert status["engine"] == "passthrough"
    assert "libfuse is not installed" in installed.growfs("doctor", "--cache-dir", tmp_path / "other").stdout
    installed.growfs("umount", mountpoint)
    assert not (mountpoint / "file").exists()


@pytest.mark.long
def test_the_portable_engine_is_refused_with_the_line_that_installs_it(
    installed: Installed, remote: Path, mountpoint: Path, tmp_path: Path
) -> None:
    flags = ("--cache-dir", tmp_path / "cache", "--engine", "libfuse")
    line = f"{PACKAGES} && {installed.python} -m pip install 'growfs[libfuse]'"
    done = installed.growfs("mount", remote, mountpoint, *flags, check=False)
    assert done.returncode == 1
    assert "needs pyfuse3, which is not installed" in done.stderr
    assert line in done.stderr
    doctor = installed.growfs("doctor", *flags, check=False)
    assert doctor.returncode == 1
    assert line in doctor.stdout
