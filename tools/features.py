"""The features of growfs, their own files, and the words by which other code names them. The rest is the core.

A good feature is an extension: a folder that can be deleted. Those with words are far from it: the core knows of them.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Feature(NamedTuple):
    """files: files and folders in growfs/. words: an identifier of the feature contains one of them."""

    name: str
    files: str
    words: str = ""

    def is_named_in(self, identifier: str) -> bool:
        """Whether an identifier contains a word of this feature: PeersStatus and set_peers contain `peers`."""
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower()
        return any(f"_{word}_" in f"_{snake}_" for word in self.words.split())


FEATURES = (
    Feature(
        "exact",
        "extensions/exact rotation/parts.py simulation/exact.py",
        "exact part parts pass_position hidden_below is_read shown_once shows_once",
    ),
    Feature(
        "peers",
        "extensions/peers rotation/circle.py simulation/nodes.py",
        "peer peers hosts awaits other_source other_bytes from_other other_files open_other",
    ),
    Feature("fill", "extensions/fill", "fill filled mirrors front_end front_ends"),
    Feature("links", "fuse/links", "links link_bit link_open sees_opens counts_all opened_by keep_readers_away"),
    Feature(
        "producers",
        "extensions/producers producers/compressed.py producers/images.py",
        "producer produced made endless",
    ),
    Feature("full disk", "btrfs.py cache/full_disk.py", "btrfs full lacking quota refusal spare"),
    Feature("members", "extensions/members producers/archives.py", "archive archives member members"),
    Feature("manifests", "extensions/manifests", "manifest"),
    Feature("metrics", "extensions/metrics", "metrics"),
    Feature("libfuse", "fuse/libfuse.py", "libfuse"),
    Feature("csi", "extensions/csi"),
    Feature("ray", "ray.py client/node_mount.py"),
    Feature("top", "extensions/top"),
    Feature("report", "extensions/report"),
    Feature("history", "extensions/history"),
    Feature("simulation", "simulation"),  # without the files above
    Feature("plan", "extensions/plan"),
    Feature("doctor", "extensions/doctor"),
    Feature("verify", "extensions/verify"),
    Feature("stores", "remote/stores remote/http"),
    Feature("open counter", "vfs/open_counter.py vfs/file_events.py"),  # links and fill need it
    Feature("latency", "fuse/latency.py"),
    Feature("namespaces", "fuse/users.py"),
    Feature("python api", "client/mount.py client/wait.py client/generation.py client/epochs.py client/samples.py"),
    Feature("completion", "client/completion.py"),
    Feature("fstab", "extensions/fstab"),
    Feature("cache", "extensions/cache"),
)
OWNERS = {PurePath(file): feature for feature in FEATURES for file in feature.files.split()}


def owner(file: PurePath) -> Feature | None:
    """The feature that a file in growfs/ belongs to."""
    return next((OWNERS[path] for path in (file, *file.parents) if path in OWNERS), None)


def module_name(file: PurePath) -> str:
    """The name of the module in a file in growfs/."""
    return ".".join(("growfs", *file.with_suffix("").parts)).removesuffix(".__init__")


def source_files(checkout: Path) -> list[PurePath]:
    """The files in growfs/ that people write."""
    package = checkout / "growfs"
    files = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    return [file for file in files if file.parent.name != "generated"]
