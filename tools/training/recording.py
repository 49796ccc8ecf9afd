"""Records the order in which a program reads MNIST through a real mount, behind an emulated link.

The images are PNG files in a folder for each class. Each is padded to FILE_BYTES, so that it takes as much of the disk
as of the link. growfs reads the names from a manifest, and rclone lists before the time begins, since the names of so
small files are a seventh of the traffic.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tools.benchmarks.child import Child
from tools.benchmarks.measure import ROOT, SHIM, write_file
from tools.benchmarks.mounts import mounted, rclone_mounted
from tools.benchmarks.servers import FarServer, behind_link, rclone_server
from tools.training.mnist import RESIDENT, Bytes, chosen, labels
from tools.training.orders import FILE_BYTES, OPENS_PER_S, PART_SHARE, Reading
from tools.training.results import EXACT, GROWFS, LRU

CACHE_BYTES = RESIDENT * FILE_BYTES
RTT_S = 0.01
RESPONSE_BYTES = FILE_BYTES + 768
"""A file on the link, with the headers of the response: with these, the link delivers a file in the intended time."""
PADDING = "padding"
CHUNK_BYTES = 13 + len(PADDING)
"""What a PNG takes for a text, besides the text."""


def padded(image: Bytes) -> bytes:
    picture = Image.fromarray(image)
    plain = io.BytesIO()
    picture.save(plain, "png")
    text, padded = PngInfo(), io.BytesIO()
    text.add_text(PADDING, " " * (FILE_BYTES - CHUNK_BYTES - len(plain.getvalue())))
    picture.save(padded, "png", pnginfo=text)
    return padded.getvalue()


def write_images(folder: Path) -> None:
    """Write the images of the first repetition, numbered as in a split."""
    for number, (label, image) in enumerate(zip(labels(), chosen(0), strict=True)):
        path = folder / str(label) / f"{number:05}.png"
        write_file(path, padded(image))
        os.utime(path, (time.time() - 60,) * 2)


HOW = {GROWFS: "again", EXACT: "parts", LRU: "all"}
"""How reader.py reads the mount of each way to read."""


@contextmanager
def mounted_as(way: str, opens_per_fetch: int, endpoint: str, manifest: Path, folder: Path) -> Iterator[Path]:
    """The mount of a way to read, which has the turnover for this link if it is growfs."""
    if way == LRU:
        with rclone_mounted(endpoint, "mnist/train", folder, CACHE_BYTES) as mountpoint:
            yield mountpoint
        return
    flags = ["--cache-size", CACHE_BYTES, "--refresh", 0, "--turnover", f"{100 / (1 + opens_per_fetch):g}%"]
    flags += ["--endpoint-url", endpoint, "--manifest", manifest]
    if way == EXACT:
        flags += ["--exact", "--part-size", f"{PART_SHARE:.0%}"]
    with mounted("s3://mnist/train", folder, *flags) as mount:
        yield mount.mountpoint


def record(way: str, opens_per_fetch: int, until_s: float, folder: Path) -> Reading:
    """Read through a fresh mount for this time. folder: empty."""
    train, manifest = folder / "buckets" / "mnist" / "train", folder / "manifest.csv"
    write_images(train)
    names = (path.relative_to(train) for path in sorted(train.rglob("*.png")))
    manifest.write_text("path,size\n" + "".join(f"{name},{FILE_BYTES}\n" for name in names))
    rate = RESPONSE_BYTES * OPENS_PER_S // opens_per_fetch
    with (
        rclone_server(train.parents[1], hashes=False) as server,
        behind_link(server.endpoint, RTT_S, rate) as link,
        mounted_as(way, opens_per_fetch, link.endpoint, manifest, folder) as mountpoint,
    ):
        found, bytes = read([str(mountpoint), HOW[way], str(until_s)], link)
    at_s = np.array(found["at_s"])
    return Reading(
        np.array(found["samples"], np.int64)[at_s <= until_s], at_s[at_s <= until_s], bytes // RESPONSE_BYTES
    )


def read(words: Sequence[str], link: FarServer) -> tuple[Any, int]:
    """Run reader.py; returns what it prints, and the bytes that the link has delivered, without a first listing."""
    variables = {"PYTHONPATH": f"{SHIM}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.training.reader", *words]
    with Child(command, variables, answers=True, name="the reader") as reader:
        reader.expect("ready")
        before = link.traffic().bytes if "all" in words else 0
        reader.send("begin")
        found = json.loads(reader.expect("{.*")[0])
    return found, link.traffic().bytes - before
