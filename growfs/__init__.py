"""growfs: a mount that lists only the files that are whole on the local disk, and adds the others in the background.

with growfs.mount("s3://bucket/train", cache_size="500GB") as path:
    train(path)
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def mount(
    url: str,
    mountpoint: str | os.PathLike[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> AbstractContextManager[Path]:
    """Mount for the time of a `with` block, in which training can start at once; gives the path.

    url: any fsspec URL. mountpoint: an empty folder; without it, a temporary one. options: those of `growfs mount`,
    with underscores, values as on the command line: cache_size="500GB", wait_files=10. storage_options: those of the
    store's fsspec filesystem. Raises growfs.errors.GrowfsError.
    """
    from growfs.daemon import launch  # not above: the daemon and its workers import this package too

    return launch.mounted(url, mountpoint, storage_options, options)
