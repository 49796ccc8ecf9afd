"""The share of its time that a loop over small files computes while a cache of a tenth of them rotates.

The loop has one thread and does not read ahead, so it is busy while it computes, and waits while it lists and reads.
"""

from __future__ import annotations

from tools.benchmarks.filling import NAME
from tools.benchmarks.measure import Figures, Setting, make_files, temporary_folder
from tools.benchmarks.mounts import mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import behind_link, rclone_server

DIRECTORIES = 10
SIZE = 50_000
CACHED_SHARE = 10
COMPUTE_S = 0.0005
RTT_S, RATE = 0.01, 30_000_000
TARGET = 0.85
PLAIN = "plain files"


def rotation(setting: Setting, found: Figures) -> str:
    """Each mount in turn with a folder of as many plain files as the cache has."""
    files, epochs = (200, 3) if setting.quick else (12_000, 20)
    cached = files // CACHED_SHARE
    remote, plain = setting.folder / "remote", setting.folder / "plain"
    make_files(remote / NAME, files, SIZE, DIRECTORIES)
    make_files(plain, cached, SIZE, DIRECTORIES)
    with (
        rclone_server(remote, low_priority=True, etags="crc32") as server,
        behind_link(server.endpoint, RTT_S, RATE) as link,
        ReaderProcess() as reader,
    ):
        flags = ["--endpoint-url", link.endpoint, "--cache-size", cached * (SIZE + 3000), "--wait-files", cached // 2]
        for _ in range(setting.rounds):
            busy = reader.call("train", plain, epochs, COMPUTE_S)["busy"]
            found.add(PLAIN, busy, unit="of the time")
            for engine in setting.engines:
                with temporary_folder() as at, mounted(f"s3://{NAME}", at, "--engine", engine, *flags) as mount:
                    trained = reader.call("train", mount.mountpoint, epochs, COMPUTE_S)
                found.add(engine, trained["busy"], unit="of the time", at_least=TARGET)
                found.add(f"{engine}, of {PLAIN}", trained["busy"] / busy)
                found.add(f"{engine}, of the dataset seen", trained["different"] / files)
    return f"{files:,} files of {SIZE // 1000} kB, a tenth cached, {epochs} epochs, 0.5 ms of computing for each"
