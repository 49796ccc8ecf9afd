"""Has a driver fork the commands that mount. It has threads, so the fork server of the tests does it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from types import SimpleNamespace
from typing import IO

from growfs.extensions.csi import node
from tests.cli.support import script
from tests.forkserver import SETUP_VARIABLE, Process, python_variables
from tests.harness import FORKS


def prepare() -> None:
    """Run this in the driver, before it mounts."""
    node.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined, assignment]


def start(
    words: list[str], stdin: IO[str], stdout: int, stderr: IO[str], env: Mapping[str, str], start_new_session: bool
) -> Process:
    """As subprocess.Popen, for the words of `cgroups.enter` and a command."""
    end = words.index("--")
    enter = "".join(f"with open({file!r}, 'w') as group: group.write('0')\n" for file in words[4:end])
    command = words[words.index("growfs.cli", end) + 1 :]
    own = {name: text for name, text in env.items() if name != SETUP_VARIABLE} | python_variables(os.environ)
    return FORKS.start(script(command, enter), own, stdin, stdout, stderr, new_session=start_new_session)
