"""Times one download with growfs's own code, alone in a fresh process. The benchmark "start" compares mounts with it.

`python -m tools.benchmarks.download URL ENDPOINT PATH TARGET` prints as JSON: `fetch_s`, the seconds from the first
request on, without imports.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from growfs.remote import open_remote, preload
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec


def main() -> None:
    """Fetch one file."""
    url, endpoint, path, target = sys.argv[1:]
    spec = RemoteSpec(url, endpoint_url=endpoint)
    preload(spec)
    began = time.perf_counter()
    open_remote(spec).fetch(FetchTask(RemoteFile(path, None, None, ""), Path(target)))
    print(json.dumps({"fetch_s": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
