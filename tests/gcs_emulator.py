"""gcp-storage-emulator, and what Google Cloud Storage does and it does not: `python -m tests.gcs_emulator PORT`.

Threads, kept connections, and the headers of a download: ETag, Last-Modified, the generation, and the checksum of the
whole file beside a range of it (https://cloud.google.com/storage/docs/xml-api/reference-headers).
"""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from email.utils import format_datetime
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from gcp_storage_emulator import server
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage


def main() -> None:
    """Serve until the process is ended."""
    logging.disable()
    server.RequestHandler.protocol_version = "HTTP/1.1"
    server.RequestHandler.disable_nagle_algorithm = True  # else each response takes 40 ms
    server.HANDLERS = tuple(
        (pattern, {method: _described if handler is objects.download else handler for method, handler in found.items()})
        for pattern, found in server.HANDLERS
    )
    read_data = server._read_data
    server._read_data = lambda handler, query: read_data(handler, query) or (b"" if "uploadType" in query else None)
    server.urlparse = urlsplit  # a semicolon is part of a name
    ThreadingHTTPServer.request_queue_size = 128  # as in tests/servers.py
    storage = Storage(use_memory_fs=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), partial(server.RequestHandler, storage)).serve_forever()


def _described(request: Any, response: Any, storage: Any, *args: Any, **options: Any) -> None:
    objects.download(request, response, storage, *args, **options)
    if response.status >= 300:
        return
    about = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
    response["ETag"] = f'"{about["generation"]}"'
    response["Last-Modified"] = format_datetime(datetime.fromisoformat(about["updated"][:-1] + "+00:00"), usegmt=True)
    response["x-goog-generation"] = about["generation"]
    response["X-Goog-Hash"] = f"crc32c={about['crc32c']},md5={about['md5Hash']}"


if __name__ == "__main__":
    main()
