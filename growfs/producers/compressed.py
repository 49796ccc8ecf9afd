"""Files that are stored compressed, and are to be local as they are: name them '{stem}', without the last extension."""

from __future__ import annotations

import gzip
import lzma
import shutil
import sys
from typing import BinaryIO

COPY_BYTES = 1 << 17  # what is larger leaves a core's cache between reading and writing, and takes twice the CPU


def copy(source: BinaryIO, out: BinaryIO) -> None:
    """As it is: to measure what a producer costs that does nothing."""
    shutil.copyfileobj(source, out, COPY_BYTES)


def gunzip(source: BinaryIO, out: BinaryIO) -> None:
    """What gzip packed."""
    with gzip.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)


def unxz(source: BinaryIO, out: BinaryIO) -> None:
    """What xz packed."""
    with lzma.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)


def unzstd(source: BinaryIO, out: BinaryIO) -> None:
    """What zstd packed. Needs Python 3.14, or the package backports.zstd: pip install 'growfs[zstd]'."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError:
            raise ImportError("unzstd needs a package that is not installed: pip install backports.zstd") from None
    with zstd.open(source, "rb") as unpacked:
        shutil.copyfileobj(unpacked, out, COPY_BYTES)
