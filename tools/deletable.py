"""Which features can be deleted: without the files of each in turn (tools/features.py), imports what a mount needs."""

from __future__ import annotations

import subprocess
import sys

from tools.features import FEATURES, ROOT, module_name, owner, source_files

MOUNT = """
import growfs, growfs.cli, growfs.client.mount, growfs.daemon.server, growfs.daemon.wiring, growfs.fuse.passthrough
import growfs.workers.downloader, growfs.workers.worker
from growfs.remote import open_remote
from growfs.remote.interface import RemoteSpec
open_remote(RemoteSpec("/tmp"))
"""


def main() -> None:
    deletable = 0
    for feature in FEATURES:
        modules = [module_name(file) for file in source_files(ROOT) if owner(file) is feature]
        # To import a module that is None raises the same error as to import one that does not exist.
        script = f"import sys; sys.modules.update(dict.fromkeys({modules}))\n{MOUNT}"
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        deletable += not done.returncode
        print(f"{feature.name:11}", done.stderr.strip().splitlines()[-1] if done.returncode else "can be deleted")
    print(f"{deletable} of {len(FEATURES)} features can be deleted")


if __name__ == "__main__":
    main()
