"""Which features can be deleted: deletes each in a copy, imports what a mount needs, and shows the help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.features import FEATURES, ROOT, Feature, owner, source_files

MOUNT = """
import growfs, growfs.cli, growfs.client.mount, growfs.daemon.server, growfs.daemon.wiring, growfs.fuse.passthrough
import growfs.workers.downloader, growfs.workers.worker
from growfs.remote import open_remote
from growfs.remote.interface import RemoteSpec
open_remote(RemoteSpec("/tmp"))
growfs.cli.main(["--help"])
"""


def delete(feature: Feature, checkout: Path) -> None:
    """Delete the files of a feature, and its lines in the registry of extensions."""
    for file in source_files(checkout):
        if owner(file) is feature:
            (checkout / "growfs" / file).unlink()
    registry = checkout / "growfs/extensions/__init__.py"
    lines = registry.read_text().splitlines(keepends=True)
    registry.write_text("".join(line for line in lines if f'"{feature.name}"' not in line))


def main() -> None:
    deletable = 0
    for feature in FEATURES:
        with TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "growfs", Path(folder, "growfs"))
            delete(feature, Path(folder))
            done = subprocess.run(
                [sys.executable, "-c", MOUNT], cwd=folder, capture_output=True, text=True, check=False
            )
        deletable += not done.returncode
        print(f"{feature.name:11}", done.stderr.strip().splitlines()[-1] if done.returncode else "can be deleted")
    print(f"{deletable} of {len(FEATURES)} features can be deleted")


if __name__ == "__main__":
    main()
