"""Mount remote storage as a folder that lists only files that are complete on the local disk.

with growfs.mount("s3://bucket/train", cache_size="500GB") as path:
    train(path)
"""

from __future__ import annotations

import os
import sys

from growfs.version import __version__ as __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than everything that this file needs
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any, TypeVar

    from growfs.client.mount import Mount
    from growfs.client.samples import Samples
    from growfs.extensions.verify.digests import Verified

    T = TypeVar("T")


def mount(
    url: str,
    mountpoint: str | os.PathLike[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> Mount:
    """Mount, and return when training can start. The mount ends with `.unmount()`, or when the interpreter exits.

    In a `with` statement, it yields the path and ends with the block. url: any fsspec URL. mountpoint: an empty folder;
    by default a temporary one. options: those of `growfs mount`, with underscores, and with values as on the command
    line: cache_size="500GB", wait_files=10. storage_options: those of the store's fsspec filesystem. Raises
    growfs.errors.GrowfsError.
    """
    from growfs.client import mount  # here, because the daemon and its workers also import this package

    return mount.mount(url, mountpoint, storage_options, options)


def next_generation(path: str | os.PathLike[str], number: int | None = None) -> Path:
    """Begin the next generation in a mount, or in a folder that `growfs fill` keeps filled, if there is something new;
    returns its folder.

    number: begin the generation with that number, the one after the newest, even if there is nothing new; or return it,
    if another process has begun it. So ranks agree without talking to each other. The returned folder stays unchanged
    until this process calls the function again or ends, in whatever way. If the daemon of a filled folder does not
    answer, its newest existing generation is returned, or the one with that number, with a warning. Raises
    growfs.errors.GrowfsError if the path is neither a mount nor filled, or the generation has ended.

    for epoch in range(90):
        train(ImageFolder(growfs.next_generation("/mnt/train"), transform))
    """
    from growfs.client import generation

    return generation.next_generation(path, number)


def epoch(
    path: str | os.PathLike[str],
    number: int | None = None,
    part: int = 1,
    catalog: Mapping[str, Any] | None = None,
) -> Iterator[Path]:
    """Yield the folders to read in the next epoch, in a mount or a filled folder.

    Without --exact, that is one folder, `next_generation`, and the other arguments are ignored. With --exact, it is one
    for each part of a pass, and each file is in exactly one of them.

    number: of the pass, from 1; by default, this process counts its calls. part: the first one to be yielded. Each
    process that passes the same numbers gets the same parts, on any node, without talking to the others. A part is
    yielded once it is cached, and makes room for another one after its files were opened. catalog: from `position`;
    raises an error if the parts of the pass are others than then. Raises growfs.errors.GrowfsError.

    for number in range(1, 91):
        for part in growfs.epoch("/mnt/train", number):
            train(ImageFolder(part, transform, allow_empty=True))
    """
    from pathlib import Path

    from growfs.client import epochs

    return epochs.epoch(Path(path), number, part, catalog)


def samples(
    path: str | os.PathLike[str],
    read: Callable[[Path], T],
    number: int | None = None,
    *,
    share: tuple[int, int] = (0, 1),
    include: str = "*",
) -> Samples[T]:
    """Yield what `read` returns for each file of a pass, part after part, in random order, for a data loader whose
    batches span parts.

    `read` is called when its sample is asked for, and has to open the file. number: of the pass; by default, this
    process counts its calls. share: (i, n) is the i-th of n shares, for processes or data loader workers that divide
    the files. include: a pattern that the paths of the files match, such as "train/*.jpg"; * also matches slashes.
    `state_dict()` and `load_state_dict()` of the result save and restore its position. Without --exact, the files are
    those of the next generation. Raises growfs.errors.GrowfsError.

    class Images(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            return growfs.samples("/mnt/train", read_image, share=(worker.id, worker.num_workers))
    """
    from pathlib import Path

    from growfs.client.samples import Samples

    return Samples(Path(path), read, number, share, include)


def position(part: str | os.PathLike[str], *, next: bool = False) -> dict[str, Any]:
    """The arguments with which `epoch` begins with this part, which it yielded, for a checkpoint, as a dict for JSON.

    next: with the part after it, for a checkpoint at the end of a part. Raises growfs.errors.GrowfsError.
    """
    from pathlib import Path

    from growfs.client import epochs

    return epochs.position(Path(part), next=next)


def verify(place: str | os.PathLike[str]) -> Verified:
    """Compare cached files with their digests, as `growfs verify` does; files that differ are evicted.

    place: a mountpoint, a cache, or a directory of caches. The result has `files`, `bytes`, `damaged` (paths) and
    `fetched`. Raises growfs.errors.GrowfsError.
    """
    from pathlib import Path

    from growfs.extensions.verify import digests

    return digests.verify(Path(place))


def main() -> None:
    """The `growfs` command. Starts the daemon of a mount before importing anything that parses the arguments."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":  # in de_DE.ISO-8859-1, say
        os.environ["PYTHONUTF8"] = "1"  # also for the daemon
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    try:
        from growfs.daemon.spawn import start_early

        arguments = sys.argv[1:]
        as_helper = is_mount_helper(sys.argv)
        start_early(["mount", *arguments[:1]] if as_helper else arguments)
        from growfs import cli

        if as_helper:
            from growfs.extensions.fstab import mount_helper

            mount_helper.main(arguments, cli.main)
        else:
            cli.main(prog_name="growfs")
    except KeyboardInterrupt:  # during the imports: later, the command handles it
        sys.exit(130)  # as a shell reports SIGINT


def is_mount_helper(command: list[str]) -> bool:
    """Whether mount(8) runs this, as mount.fuse.growfs, or mount.fuse3(8) as growfs URL MOUNTPOINT -o OPTIONS."""
    program, *arguments = command
    is_command = arguments[:1] and arguments[0].lstrip("-").isalpha()
    return os.path.basename(program).startswith("mount.") or (arguments[2:3] == ["-o"] and not is_command)
