"""Producers that shrink images to the size that a model needs."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import BinaryIO

from growfs.errors import pip_install

ORIENTATION = 0x0112
"""The EXIF tag that says how to rotate an image."""


def resize(source: BinaryIO, out: BinaryIO, pixels: int, quality: int = 90) -> None:
    """Shrink an image to at most `pixels` in width and height, in the same format. Needs Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"resize needs a package that is not installed: {pip_install('growfs[images]')}") from None
    with Image.open(source) as image:
        format = image.format
        image.draft("RGB", (pixels, pixels))  # a JPEG is decoded only as far as needed
        image.thumbnail((pixels, pixels), Image.Resampling.LANCZOS)
        exif = Image.Exif()
        with suppress(Exception):  # that of the image may be broken
            exif[ORIENTATION] = int(image.getexif()[ORIENTATION])
        lossy = {"quality": quality} if format in ("JPEG", "MPO", "WEBP", "AVIF") else {}
        image.save(out, format, exif=exif, **lossy)


at_most_256 = partial(resize, pixels=256)
at_most_512 = partial(resize, pixels=512)
