"""Writes the dataset into a bucket, in each peer's own format: `python data.py FOLDER SAMPLES SAMPLE_BYTES PER_SHARD`.

It runs in the peers' own environment. A sample is random bytes and begins with its number. FOLDER/shards has tar files,
and FOLDER/mds the shards of MosaicML Streaming if that is installed, with the same samples, and as many in each.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random


def samples(count: int, size: int) -> Iterator[bytes]:
    """The samples, the same each time."""
    generator = Random(23)
    for number in range(count):
        yield number.to_bytes(8, "big") + generator.randbytes(size - 8)


def write_tars(folder: Path, count: int, size: int, per_shard: int) -> None:
    """Tar files without padding at the end, so that a sample is found without a parser."""
    folder.mkdir(parents=True)
    shard = io.BytesIO()
    for number, sample in enumerate(samples(count, size)):
        member = tarfile.TarInfo(f"{number:07}.bin")
        member.size = size
        shard.write(member.tobuf() + sample)
        if (number + 1) % per_shard == 0:
            (folder / f"{number // per_shard:05}.tar").write_bytes(shard.getvalue() + bytes(1024))
            shard = io.BytesIO()


def write_mds(folder: Path, count: int, size: int, per_shard: int) -> None:
    """MosaicML's format."""
    from streaming import MDSWriter

    limit = per_shard * (size + 64)
    with MDSWriter(out=str(folder), columns={"data": "bytes"}, size_limit=limit) as writer:
        for sample in samples(count, size):
            writer.write({"data": sample})


if __name__ == "__main__":
    folder, (count, size, per_shard) = Path(sys.argv[1]), map(int, sys.argv[2:5])
    assert size % 512 == 0
    write_tars(folder / "shards", count, size, per_shard)
    if find_spec("streaming"):
        write_mds(folder / "mds", count, size, per_shard)
