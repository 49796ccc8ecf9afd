"""A synthetic S3 server with any number of keys, computed from a formula, so it needs no disk.

`python -m tools.benchmarks.formula_s3 KEYS SIZE` serves the bucket 'formula' on loopback, prints
its URL, and runs until it is terminated. With 1000 keys per directory, key number n is d{n // 1000}/f{n % 1000}.bin;
keys sort as their numbers do. It supports ListObjectsV2 and ListObjects (with
the delimiter /), HEAD and GET, and ignores credentials.
"""

from __future__ import annotations

import bisect
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PER_DIRECTORY = 1000
PAGE_KEYS_MAX = 1000
CHUNK = bytes(range(256)) * 4096
MODIFIED_ISO = "2024-05-06T07:08:09.000Z"
MODIFIED_HTTP = "Mon, 06 May 2024 07:08:09 GMT"


def key(number: int) -> str:
    """The name of a key. Names sort as their numbers up to ten million."""
    directory, place = divmod(number, PER_DIRECTORY)
    return f"d{directory:04}/f{place:04}.bin"


def etag(number: int) -> str:
    """An ETag as long as a real one."""
    return f'"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"'


class Formula(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    keys = 0
    size = 0

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a million lines would distort the measurement."""

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.strip("/").count("/"):
            self._object(body=True)
            return
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("marker") or query.get("start-after", "")
        if query.get("delimiter") == "/" and "/" not in prefix:
            self._list_directories(prefix, after)
        else:
            self._list_keys(prefix, after, min(PAGE_KEYS_MAX, int(query.get("max-keys") or PAGE_KEYS_MAX)))

    def _list_keys(self, prefix: str, after: str, count_max: int) -> None:
        numbers = range(self.keys)
        start = bisect.bisect_left(numbers, prefix, key=key)
        start = max(start, bisect.bisect_right(numbers, after, key=key) if after else 0)
        end = min(self.keys, start + count_max)
        while end > start and not key(end - 1).startswith(prefix):
            end -= 1
        more = end < self.keys and end > start and key(end).startswith(prefix)
        contents = "".join(
            f"<Contents><Key>{key(number)}</Key><LastModified>{MODIFIED_ISO}</LastModified>"
            f"<ETag>{etag(number)}</ETag><Size>{self.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for number in range(start, end)
        )
        self._answer_page(prefix, end - start, key(end - 1) if more else "", contents)

    def _list_directories(self, prefix: str, after: str) -> None:
        names = (key(number).partition("/")[0] + "/" for number in range(0, self.keys, PER_DIRECTORY))
        left = [name for name in names if name.startswith(prefix) and name > after]
        page = left[:PAGE_KEYS_MAX]
        contents = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in page)
        self._answer_page(prefix, len(page), page[-1] if len(left) > len(page) else "", contents)

    def _answer_page(self, prefix: str, count: int, next: str, contents: str) -> None:
        """next: the last name of the page where there are more; else empty."""
        token = f"<NextContinuationToken>{next}</NextContinuationToken><NextMarker>{next}</NextMarker>" if next else ""
        self._answer(
            200,
            (
                '<?xml version="1.0" encoding="UTF-8"?>'
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>formula</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount>"
                f"<MaxKeys>{PAGE_KEYS_MAX}</MaxKeys><IsTruncated>{str(bool(next)).lower()}</IsTruncated>{token}"
                f"{contents}</ListBucketResult>"
            ).encode(),
        )

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _object(self, body: bool) -> None:
        name = unquote(urlsplit(self.path).path).strip("/").partition("/")[2]
        number = bisect.bisect_left(range(self.keys), name, key=key)
        if number >= self.keys or key(number) != name:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"")
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(self.size))
        self.send_header("ETag", etag(number))
        self.send_header("Last-Modified", MODIFIED_HTTP)
        self.end_headers()
        if body:
            self.wfile.flush()
            for start in range(0, self.size, len(CHUNK)):
                self.connection.sendall(memoryview(CHUNK)[: self.size - start])


def main() -> None:
    """Serve until terminated."""
    Formula.keys, Formula.size = int(sys.argv[1]), int(sys.argv[2])
    with ThreadingHTTPServer(("127.0.0.1", 0), Formula) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
