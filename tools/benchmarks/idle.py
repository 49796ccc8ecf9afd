"""The CPU time of an idle mount."""

from __future__ import annotations

import contextlib
import time

from tools.benchmarks.measure import Figure, Setting, at_most
from tools.benchmarks.mounts import ENGINES, fully_cached

TARGET_S = 0.02
SETTLE_S = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """All mounts at once, and only one round: CPU seconds do not depend on other processes."""
    idle_s = 1 if setting.quick else 20
    remote = setting.folder / "remote"
    remote.mkdir()
    for number in range(100):
        (remote / f"{number}.bin").write_bytes(b"content")
    with contextlib.ExitStack() as stack:
        mounts = {}
        for contender in setting.contenders:
            folder = setting.folder / contender
            folder.mkdir()
            mounts[contender] = stack.enter_context(fully_cached(contender, remote, folder))
        time.sleep(SETTLE_S)
        before = {contender: mount.cpu_s() for contender, mount in mounts.items()}
        time.sleep(idle_s)
        used = {contender: mount.cpu_s() - before[contender] for contender, mount in mounts.items()}
    found = [
        at_most(f"{contender}, daemon's CPU", [seconds], "s", TARGET_S if contender in ENGINES else None)
        for contender, seconds in used.items()
    ]
    return f"{idle_s} s of an idle mount", found
