"""Producers that decompress files. Use --rename '{stem}', which removes the last extension."""

from __future__ import annotations

import gzip
import lzma
import shutil
import sys
from typing import BinaryIO

from growfs.errors import pip_install

COPY_BYTES = 1 << 17  # a larger buffer does not fit in a core's cache, and takes twice the CPU time


def copy(source: BinaryIO, out: BinaryIO) -> None:
    """Copy a file unchanged, to measure the cost of a producer that does nothing."""
    shutil.copyfileobj(source, out, COPY_BYTES)


def gunzip(source: BinaryIO, out: BinaryIO) -> None:
    """Decompress a gzip file."""
    with gzip.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)


def unxz(source: BinaryIO, out: BinaryIO) -> None:
    """Decompress an xz file."""
    with lzma.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)


def unzstd(source: BinaryIO, out: BinaryIO) -> None:
    """Decompress a zstd file. Needs Python 3.14, or the package backports.zstd from the extra `zstd`."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError:
            raise ImportError(f"unzstd needs a package that is not installed: {pip_install('growfs[zstd]')}") from None
    with zstd.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)
