"""Times the listing of a bucket, alone in a fresh process.

`python -m tools.benchmarks.listing ENDPOINT FILES REQUESTS` lists at least FILES files of the bucket 'formula' with at
most REQUESTS requests in flight, and prints as JSON: `keys_per_s`, and the process's `cpu_us` per key.
"""

from __future__ import annotations

import json
import sys
import time

from growfs.remote import open_remote, preload
from growfs.remote.interface import RemoteSpec
from growfs.remote.stores.s3 import parallel_lister


def main() -> None:
    """List the bucket. The imports and the first page, which creates the client, are not timed."""
    endpoint, files, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    parallel_lister.REQUESTS_MAX = requests
    spec = RemoteSpec("s3://formula", endpoint_url=endpoint)
    preload(spec)
    pages = open_remote(spec).pages()
    next(pages)
    began, cpu, keys = time.perf_counter(), time.process_time(), 0
    for page in pages:
        keys += len(page.files)
        if keys >= files:
            break
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"keys_per_s": keys / took_s, "cpu_us": cpu_s / keys * 1e6}), flush=True)


if __name__ == "__main__":
    main()
