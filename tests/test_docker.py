"""The files in docker/ agree with the rules and schemas of those who read them, and with growfs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
HADOLINT = Path(sys.executable).with_name("hadolint")


def test_the_dockerfile_follows_the_rules_of_hadolint() -> None:
    done = subprocess.run([HADOLINT, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_image_gets_what_it_copies() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in (DOCKER / "Dockerfile").read_text().splitlines() if line[:5] == "COPY "]
    assert let_in == {source for sources in copies for source in sources if not source.startswith(("-", "/"))}
    assert all((ROOT / name).exists() for name in let_in)
