"""How long a reader waits for a resident small file while growfs fetches others at full speed.

The S3 server stands for another machine: half of the cores are its own, and the reader shares the other half with all
of growfs. With the server on the same cores a byte that another process sends back takes ten times as long while it
fills, in one of a hundred times, as the kernel leaves no core in the middle of a server's send.

In turn with each file of the mount the reader opens one on the local disk, without growfs, and sends a byte to a
process that sends it back. What these two take longer is not growfs's doing but the kernel's: an open through the mount
is at the least the two together, as the daemon is another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import defaultdict
from pathlib import Path

from tools.benchmarks import shards
from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure, on_cores, touched_memory, until
from tools.benchmarks.mounts import ENGINES, Mount, mounted
from tools.benchmarks.populate import NAME, ratios
from tools.benchmarks.readers import Reader
from tools.benchmarks.servers import rclone_serving

FILES = 200
SIZE = 100_000
SMALL = "small"
TARGET = 3.0
LOADS = ("filling", "idle")
WHICH = ("p50_ms", "p99_ms")


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Each mount while it fills its empty cache, then for as long when it has nothing more to do."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError("needs two cores, one of them for the server")
    servers, growfs = set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 :])
    mib = 4 if setting.quick else 128
    remote = setting.folder / "remote"
    bytes = shards.make(remote, shards.SHARDS, mib)
    names, local = setting.folder / "names", setting.folder / "local"
    names.write_text("".join(f"{number:03}.bin\n" for number in range(FILES)))
    for folder in (remote / NAME / SMALL, local):
        folder.mkdir()
        for name in names.read_text().splitlines():
            (folder / name).write_bytes(os.urandom(SIZE))
    engines = [who for who in setting.contenders if who in ENGINES]
    took: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        with on_cores(servers):
            server = stack.enter_context(rclone_serving(remote, setting.folder / "rclone.log"))
        stack.enter_context(on_cores(growfs))
        reader = stack.enter_context(Reader())
        flags = ["--endpoint-url", server.said, "--cache-size", 2 * bytes + (1 << 30)]
        for _ in range(setting.rounds):
            for who in engines:
                folder = setting.folder / who
                folder.mkdir()
                more = [*flags, "--engine", who]
                with mounted(f"s3://{NAME}", folder, *more, "--include", f"{SMALL}/**", "--wait-files", FILES):
                    pass
                os.sync()
                touched_memory(2 * bytes).close()
                with mounted(f"s3://{NAME}", folder, *more, "--no-wait") as mount:
                    rate, times = probed(mount, reader, [mount.mountpoint / SMALL, local], names)
                rates[who].append(rate)
                for load, both in times.items():
                    for whose, one in zip((who, *controls(who)), both, strict=True):
                        took[whose, who, load].append(one)
                shutil.rmtree(folder)
    found = []
    for who in engines:
        found.append(figure(f"{who}, fetched meanwhile", rates[who], "MB/s"))
        for whose in (who, *controls(who)):
            for which in WHICH:
                values = {load: [one[which] for one in took[whose, who, load]] for load in LOADS}
                name = f"{whose}, {which[:3]}"
                found += [figure(f"{name}, {load}", values[load], "ms") for load in LOADS]
                target = TARGET if (whose, which) == (who, "p99_ms") else None
                slower = ratios(values["filling"], values["idle"])
                found.append(at_most(f"{name}, filling, of idle", slower, "", target))
    return f"open and read of a resident file of 100 kB, while {shards.SHARDS} shards of {mib} MiB come", found


def controls(who: str) -> tuple[str, str]:
    """What the reader also does, beside a mount."""
    return f"local file, {who}", f"another process, {who}"


def probed(
    mount: Mount, reader: Reader, folders: list[Path], names: Path
) -> tuple[float, dict[str, list[dict[str, float]]]]:
    """MB/s that came while it filled, and by load what in_turn tells of the folders and of another process."""
    for folder in folders:
        reader.do("files", folder, names, 0)  # from its second open on a file is ready
    until(lambda: fetched(mount), "filling", every_s=0.02)
    began, before = time.monotonic(), fetched(mount)
    reader.ask("in_turn", folders, names)
    until(lambda: len(list(mount.files.glob("shard-*"))) == shards.SHARDS, "filling")  # asks nothing of the daemon
    filling, fill_s = reader.do("enough"), time.monotonic() - began
    reader.ask("in_turn", folders, names)
    time.sleep(fill_s)
    idle = reader.do("enough")
    rate = (fetched(mount) - before) / fill_s / 1e6
    return rate, dict(zip(LOADS, (filling, idle), strict=True))


def fetched(mount: Mount) -> int:
    """Bytes that came so far. Through the mount: starting a command would be a load of its own."""
    status = json.loads((mount.mountpoint / ".growfs/status.json").read_text())
    return int(status["fetch"]["bytes_total"])
