"""The share of its time that a loop over small files computes, while a cache of a tenth of them rotates.

The loop has one thread and reads nothing ahead, so it is busy while it computes and waits while it lists and reads.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict

from tools.benchmarks.bucket_copy import NAME, ratios
from tools.benchmarks.measure import Figure, Setting, at_least, figure
from tools.benchmarks.mounts import ENGINES, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import behind_link, rclone_server

DIRECTORIES = 10
SIZE = 50_000
CACHED_SHARE = 10
COMPUTE_S = 0.0005
RTT_S, RATE = 0.01, 30_000_000
TARGET = 0.85
PLAIN = "plain files"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Each mount in turn with a folder of as many plain files as the cache has."""
    files, epochs = (200, 3) if setting.quick else (12_000, 20)
    cached = files // CACHED_SHARE
    remote, plain = setting.folder / "remote", setting.folder / "plain"
    for number in range(files):
        for folder in (remote / NAME, plain) if number < cached else (remote / NAME,):
            path = folder / f"class{number % DIRECTORIES}" / f"{number:06}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SIZE))
    busy: dict[str, list[float]] = defaultdict(list)
    engines = [contender for contender in setting.contenders if contender in ENGINES]
    different: dict[str, list[float]] = defaultdict(list)
    with (
        rclone_server(remote, setting.folder / "rclone.log", low_priority=True, etags="crc32") as server,
        behind_link(server.endpoint, RTT_S, RATE, setting.folder / "link.log") as link,
        ReaderProcess() as reader,
    ):
        flags = ["--endpoint-url", link.endpoint, "--cache-size", cached * (SIZE + 3000), "--wait-files", cached // 2]
        for number in range(setting.rounds):
            for contender in engines:
                folder = setting.folder / f"{number}-{contender}"
                folder.mkdir()
                with mounted(f"s3://{NAME}", folder, "--engine", contender, *flags) as mount:
                    found = reader.call("train", mount.mountpoint, epochs, COMPUTE_S)
                busy[contender].append(found["busy"])
                different[contender].append(found["different"] / files)
                shutil.rmtree(folder)
            busy[PLAIN].append(reader.call("train", plain, epochs, COMPUTE_S)["busy"])
    figures = [figure(PLAIN, busy[PLAIN], "of the time")]
    for contender in engines:
        figures += [
            at_least(contender, busy[contender], "of the time", TARGET),
            figure(f"{contender}, of {PLAIN}", ratios(busy[contender], busy[PLAIN]), ""),
            figure(f"{contender}, of the data set seen", different[contender], ""),
        ]
    return (
        f"{files:,} files of {SIZE // 1000} kB, a tenth cached, {epochs} epochs, 0.5 ms of computing for each",
        figures,
    )
