"""The entry point of the daemon. It starts the fork server of the workers before it imports its own modules.

`python -m growfs.daemon.main FD SCHEME` is started by `launch`; `server` describes its input and output. SCHEME is the
scheme of the remote's URL, for the fork server. Both take long to import, and the first listing waits for both.
"""

from __future__ import annotations

import os
import sys

from growfs.syscalls import raise_limits
from growfs.workers.fork_server import ForkServer


def main() -> None:
    """Serve one mount until it is unmounted."""
    os.umask(0o077)  # also for the workers, as the limits
    raise_limits()
    fork_server = ForkServer(sys.argv[2])
    from growfs.daemon import server

    server.run(int(sys.argv[1]), fork_server)


if __name__ == "__main__":
    main()
