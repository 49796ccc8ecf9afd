"""What a mount costs that nobody uses."""

from __future__ import annotations

import contextlib
import time

from tools.benchmarks.measure import Figure, Setting, at_most
from tools.benchmarks.mounts import ENGINES, all_resident

TARGET_S = 0.02
SETTLE_S = 1.0


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """All mounts at the same time, once: seconds of CPU do not depend on who else is there."""
    idle_s = 1 if setting.quick else 20
    remote = setting.folder / "remote"
    remote.mkdir()
    for number in range(100):
        (remote / f"{number}.bin").write_bytes(b"content")
    with contextlib.ExitStack() as stack:
        mounts = {}
        for who in setting.contenders:
            folder = setting.folder / who
            folder.mkdir()
            mounts[who] = stack.enter_context(all_resident(who, remote, folder))
        time.sleep(SETTLE_S)
        before = {who: mount.cpu_s() for who, mount in mounts.items()}
        time.sleep(idle_s)
        used = {who: mount.cpu_s() - before[who] for who, mount in mounts.items()}
    found = [
        at_most(f"{who}, daemon's CPU", [seconds], "s", TARGET_S if who in ENGINES else None)
        for who, seconds in used.items()
    ]
    return f"{idle_s} s of an idle mount", found
