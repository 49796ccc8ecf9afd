"""What a training job that needs all cores loses while growfs fetches new files, and how many it gets for that.

The S3 server stands for another machine: it has half of the cores to itself, and the job shares the others with growfs.
"""

from __future__ import annotations

import contextlib
import time

from tools.benchmarks import recipe_data
from tools.benchmarks.measure import Figures, Setting, fault_in_memory, halved_cores, need_modules, on_cores, size_of
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import rclone_server
from tools.benchmarks.while_filling import fetched

IMAGES, CLASSES, EPOCHS = 6000, 10, 2
LOADERS = {"images": "ImageFolder", "decoded": "tf.data"}
"""Commands of the reader."""


def busy(setting: Setting, found: Figures) -> str:
    """Epochs over a third of the dataset, in turns: some while nothing is fetched, some while files are replaced."""
    need_modules("tensorflow", "torch", "torchvision")
    server_cores, job_cores = halved_cores()
    bucket = setting.folder / "remote" / "bucket"
    images = 60 if setting.quick else IMAGES
    recipe_data.images(bucket, CLASSES, images // CLASSES)
    bytes = size_of(bucket)
    cache_size = bytes // 3
    with contextlib.ExitStack() as stack:
        with on_cores(server_cores):
            server = stack.enter_context(rclone_server(bucket.parent))
        stack.enter_context(on_cores(job_cores))
        flags = ["--endpoint-url", server.endpoint, "--cache-size", cache_size, "--engine", setting.engines[0]]
        for command, loader in LOADERS.items():
            reader = stack.enter_context(ReaderProcess(OMP_NUM_THREADS="1"))
            fault_in_memory(2 * cache_size)
            with mounted("s3://bucket", setting.folder / loader, *flags, "--wait-bytes", cache_size * 4 // 5) as mount:
                reader.call(command, mount.mountpoint, len(job_cores))  # imports, and warms up
                for _ in range(setting.rounds):
                    mount.call("pause")
                    alone, _ = _epochs(reader, command, mount, len(job_cores))
                    mount.call("resume")
                    beside, new = _epochs(reader, command, mount, len(job_cores))
                    found.add(f"{loader}, nothing fetched", alone, unit="images/s")
                    found.add(f"{loader}, while files are replaced, of that", beside / alone, at_least=0.98)
                    found.add(f"{loader}, new images", new / (bytes / images), unit="images/s")
    return f"{images:,} JPEGs of 110 kB, a third cached, decoded on all cores but the server's"


def _epochs(reader: ReaderProcess, command: str, mount: Mount, workers: int) -> tuple[float, float]:
    """Images per second, and bytes fetched per second. Each epoch lists again, so files can be replaced between two."""
    before, began = fetched(mount), time.monotonic()
    epochs = [reader.call(command, mount.mountpoint, workers) for _ in range(EPOCHS)]
    rate = (fetched(mount) - before) / (time.monotonic() - began)
    return sum(epoch["files"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs), rate
