"""The entry point of the daemon. It starts the fork server of the workers before it imports its own modules.

`python -m growfs.daemon.main FD SCHEME` is started by `launch`; `server` says what it reads and writes. SCHEME is that
of the remote's URL, for the fork server. Both take long to import, and the first listing waits for both.
"""

from __future__ import annotations

import gc
import os
import sys

from growfs.workers.fork_server import ForkServer


def main() -> None:
    """Serve one mount until it is unmounted."""
    gc.disable()  # while modules are imported: a tenth of the time; tune_gc enables it
    os.umask(0o077)  # of the workers, too
    fork_server = ForkServer(sys.argv[2])
    from growfs.daemon import server

    server.run(int(sys.argv[1]), fork_server)


if __name__ == "__main__":
    main()
