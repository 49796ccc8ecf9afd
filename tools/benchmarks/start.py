"""How long commands take: mounting a bucket of few files, and other commands in everyday use."""

from __future__ import annotations

import time

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import Figures, Setting, make_files, run
from tools.benchmarks.mounts import GROWFS, mounted
from tools.benchmarks.servers import rclone_server

FILES, FILE_BYTES = 200, 10_000


def start(setting: Setting, found: Figures) -> str:
    """Each command once per round."""
    bucket = setting.folder / "remote" / "bucket"
    make_files(bucket, FILES, FILE_BYTES, directories=10)

    def time_command(name: str, *words: object) -> None:
        began = time.monotonic()
        run([*GROWFS, *words])
        found.add(name, time.monotonic() - began, unit="s")

    with rclone_server(bucket.parent) as server:
        flags = ["--endpoint-url", server.endpoint, "--cache-size", "100MB"]
        for number in range(setting.rounds):
            folder = setting.folder / str(number)
            with Cgroup() as group:
                with mounted("s3://bucket", folder, *flags, start=lambda words: run(group.command(words))) as mount:
                    cpu_s = group.cpu_s()
                    time_command("growfs status", "status", mount.mountpoint)
                    time_command("growfs list", "list")
                found.add("growfs mount s3://, an empty cache", mount.returned_s, unit="s")
                if cpu_s is not None:
                    found.add("the same, CPU of all processes", cpu_s, unit="s")
            with mounted("s3://bucket", folder, *flags) as mount:
                found.add("growfs mount s3:// again, with its cache", mount.returned_s, unit="s")
            with mounted(bucket, folder / "of a folder", "--cache-size", "100MB") as mount:
                found.add("growfs mount file://", mount.returned_s, unit="s")
            time_command("growfs --help", "--help")
    return f"a bucket of {FILES} files of {FILE_BYTES // 1000} kB on loopback"
