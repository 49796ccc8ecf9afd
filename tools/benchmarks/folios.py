"""How a file that growfs fetched lies in the page cache: in folios as large as those of a file written in large blocks?

Both are read where they lie, without a mount, by turns.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tools.benchmarks.cached import MIB
from tools.benchmarks.measure import Figures, Setting, fault_in_memory, make_file, need_space
from tools.benchmarks.mounts import mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import Certificate, rclone_server

READS = 5
"""Reads of each file in a round, of which the median counts."""
TARGET = 0.95


def folios(setting: Setting, found: Figures) -> str:
    """Fetch a shard by http and by https, and read it beside the shard on the server's disk."""
    mib = 16 if setting.quick else 512
    need_space(setting.folder, 3 * mib * MIB)
    plain = setting.folder / "remote" / "bucket" / "shard.bin"
    make_file(plain, mib)  # in blocks of 1 MiB
    for scheme, certificate in (("http", None), ("https", Certificate.create(setting.folder))):
        with rclone_server(setting.folder / "remote", setting.folder / f"{scheme}.log", certificate) as server:
            for number in range(setting.rounds):
                folder = setting.folder / f"{scheme}-{number}"
                folder.mkdir()
                flags: list[object] = ["--endpoint-url", server.endpoint, "--wait-files", 1]
                if certificate:
                    flags += ["--storage-option", f"client_kwargs.verify={certificate.file}"]
                fault_in_memory(mib * MIB).close()
                with mounted("s3://bucket", folder, *flags) as mount, ReaderProcess() as reader:
                    fetched = mount.files / plain.name
                    seconds: dict[Path, list[float]] = {plain: [], fetched: []}
                    for _ in range(READS):
                        for path, times in seconds.items():
                            began, ended = reader.call("sequential", path, MIB)
                            times.append(ended - began)
                    fetched.unlink()
                found.add("written in blocks of 1 MiB", mib * MIB / 1e9 / median(seconds[plain]), unit="GB/s")
                ratio = median(seconds[plain]) / median(seconds[fetched])
                found.add(f"fetched by {scheme}, read at so much of that rate", ratio, unit="x", at_least=TARGET)
    return f"a file of {mib} MiB in the page cache"
