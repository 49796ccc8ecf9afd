"""`S3Remote`: S3 and compatible stores.

The listing is flat, page by page. Files are read by GETs whose headers give the version, so no second request is needed
for it. `fs.sign` and `fs.get_file` are not used: they interpret "?versionId=" in a key as an option, and the latter
discards the headers.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from growfs.errors import (
    BucketMissing,
    GrowfsError,
    RemoteBusy,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
)
from growfs.remote.http.checksum import expected_checksum
from growfs.remote.http.connection import (
    REDIRECTS_MAX,
    TIMEOUTS,
    Connection,
    ConnectionFailed,
    ConnectionTimedOut,
    FallBack,
    Headers,
    HttpRequest,
    OddStatus,
)
from growfs.remote.http.download import HttpError, extent_of
from growfs.remote.http.stream import FileStream
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, Page, RemoteFile, RemoteSpec, RemoteStream
from growfs.remote.metadata import file_from_fields, file_from_headers
from growfs.remote.stores.base import PAGE_FILES_MAX
from growfs.remote.stores.fsspec import PAGE_READ_S
from growfs.remote.stores.s3 import listing
from growfs.remote.stores.s3.access import DIRECTORY_SUFFIXES, BucketAccess
from growfs.remote.stores.s3.client import note_served
from growfs.remote.stores.s3.key_ranges import KeyRange, KeyRanges, RepeatedPage
from growfs.remote.stores.s3.listing import KeyPage, NotAListing
from growfs.remote.stores.s3.manner import Manner, MannerChoice
from growfs.remote.stores.s3.parallel_lister import ConcurrencyLimit, ParallelLister

CHUNK_BYTES = 256 * 1024
RESTORED = {"OptionalObjectAttributes": ["RestoreStatus"]}
"""A listing parameter that makes it report which archived objects can be read."""


class Sent(NamedTuple):
    """What a request was sent with."""

    at: float
    """When it was made, monotonic: with the credentials and for the region of that time."""
    manner: Manner
    ignores_etags: bool
    """Whether it was known that the store lists other ETags than it sends."""


class S3Remote(BucketAccess):
    """A bucket, or the keys below a prefix of it. The cursor of a page is the key ranges that are left."""

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        self._concurrency = ConcurrencyLimit()  # from the last listing, which may be continued
        self._knows_restored: bool | None = None
        self._plus: str | None = None  # what '+' stands for in a listing, once it is known
        self._page_timeouts = TIMEOUTS  # longer after each timeout: a server may need minutes for a page
        self._manners = MannerChoice()

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        ranges = KeyRanges(cursor, serial=self._bucket.endswith(DIRECTORY_SUFFIXES))
        if cursor is None:
            self._concurrency = ConcurrencyLimit()
        try:
            yield from ParallelLister(ranges, self._concurrency, self._new_connection, self._list_keys).pages()
        except RepeatedPage:
            raise self.listing_without_end() from None
        if self._prefix and cursor is None and not ranges.pages:
            raise RemoteMissing(f"{self.safe_url()}: nothing is stored below it; {self._hint()}")

    def fetch(self, task: FetchTask) -> RemoteFile:
        sent, received, was_refused = self._sent_now(), 0, False

        def progress(count: int) -> None:
            nonlocal received
            received += count
            task.progress(count)

        try:
            found = super().fetch(task._replace(progress=progress))
        except (RemoteChanged, RemoteDenied) as error:
            was_refused = isinstance(error, RemoteDenied)
            if (received and not was_refused) or not self._has_learned(error, sent, task.file):
                raise
            if received:  # a later request was refused
                raise RemoteBusy(str(error)) from None  # so that it is retried from the start
            sent = self._sent_now()
            found = super().fetch(task)
        note_served(self._renewal, sent.at, was_refused)
        return found

    def _sent_now(self) -> Sent:
        return Sent(time.monotonic(), self._manners.current, self._lists_other_etags)

    def _has_learned(self, error: Exception, sent: Sent, file: RemoteFile | None = None) -> bool:
        """Whether a request that failed is worth repeating, because of what has been found out since it was sent.

        If access is denied: other credentials. If the response is unusual: the region of the bucket, or another manner
        of requesting objects. If the file is another version than was listed: such a manner, or that the store lists
        other ETags than it sends. file: None for a page of a listing.
        """
        if isinstance(error, RemoteDenied):
            others_are_served = file is not None and self._renewal.served_also(sent.at)
            return not others_are_served and self._has_renewed_credentials(sent.at, error)
        if isinstance(error, FallBack) and self._has_found_region(sent.at):
            return True
        # Stores return one of these statuses for a header that they do not know.
        if file is None or (isinstance(error, OddStatus) and error.status not in (400, 501)):
            return False
        if self._requests_itself and self._manners.has_changed(sent.manner, partial(self._is_sent_as_listed, file)):
            return True
        if isinstance(error, RemoteChanged) and not self._lists_other_etags and self._is_listed_otherwise(file):
            self._lists_other_etags = True
        return self._lists_other_etags != sent.ignores_etags

    def _hint(self) -> str:
        """What may be wrong with the prefix, as a person might write it."""
        if re.search(r"[*?[]", self._prefix):
            return "a pattern belongs in --include"
        begin = self._prefix.rstrip("/")
        reply = self._call("", "list_objects_v2", Prefix=begin, MaxKeys=1, **listing.ENCODED)
        similar = next((unquote(row["Key"]) for row in reply.get("Contents", [])), "")
        if similar == begin:
            return "it is an object; give the URL of its folder"
        return f"check the prefix; there is {similar}" if similar else "check the prefix"

    def _is_listed_otherwise(self, file: RemoteFile) -> bool:
        """Whether a file is listed as before, and its HEAD gives the same time and size, but another ETag."""
        reply = self._call(file.path, "list_objects_v2", Prefix=self._prefix + file.path, MaxKeys=1, **listing.ENCODED)
        try:
            files = self._read_page(partial(listing.from_library, reply, self._prefix)).files
        except NotAListing as reason:
            raise self.not_a_listing(str(reason)) from None
        now = self.stat(file.path)
        return file in files and file[:3] == now[:3] and file.version != now.version

    def _fetch_by_get(self, task: FetchTask) -> RemoteFile:
        sent = self._sent_now()
        try:
            return super()._fetch_by_get(task)
        except FallBack as reason:
            if not self._has_learned(reason, sent, task.file):
                raise
        return super()._fetch_by_get(task)

    def _is_sent_as_listed(self, file: RemoteFile, manner: Manner) -> bool:
        """Whether its first byte is, if it is requested in this manner. Raises ConnectionFailed, RemoteBusy."""
        try:
            with self._downloader.connection() as connection:
                request = self._request(file, "GET", manner)
                response = self._downloader.begin(connection, request, {"Range": "bytes=0-0"})
                connection.close()
                length, extent = extent_of(response)
                return self._checked(file, extent[1] if extent else length, response.headers) is not None
        except (HttpError, FallBack, RemoteError) as error:
            translated = self.translated(error)
            if isinstance(translated, RemoteBusy):
                raise translated from None
            return False

    def _list_keys(self, connection: Connection, key_range: KeyRange) -> KeyPage:
        """The first page of the names of a range."""
        parameters: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._prefix,
            "MaxKeys": PAGE_FILES_MAX,
            **listing.ENCODED,
        }
        if key_range.token is not None:
            parameters["ContinuationToken"] = key_range.token
        elif key_range.after:
            parameters["StartAfter"] = self._prefix + key_range.after
        page = self._list_page(connection, parameters | RESTORED if self._knows_restored else parameters)
        has_archived = listing.ARCHIVED in page.reasons.values()
        if has_archived and self._knows_restored is None:  # requested only then: some stores refuse the parameter
            try:
                page = self._list_page(connection, parameters | RESTORED)
                self._knows_restored = True
            except RemoteBusy:
                raise
            except GrowfsError:
                self._knows_restored = False
        return page

    def _list_page(self, connection: Connection, parameters: dict[str, Any], was_refused: bool = False) -> KeyPage:
        why, odd, sent = "", None, self._sent_now()
        if self._requests_itself:
            connection.timeouts = self._page_timeouts
            try:
                response = self._downloader.begin(connection, self._page_request(parameters), {})
                page = self._read_page(partial(listing.parsed, connection.read(response), self._prefix))
                self._threads.library.note_own()
                note_served(self._renewal, sent.at, was_refused)
                return page
            except (HttpError, ConnectionFailed) as error:
                if isinstance(error, ConnectionTimedOut) and connection.timeouts.read_s < PAGE_READ_S:
                    longer = connection.timeouts._replace(read_s=2 * connection.timeouts.read_s)
                    self._page_timeouts = max(self._page_timeouts, longer, key=lambda timeouts: timeouts.read_s)
                translated = self.translated(error)
                if not self._has_learned(translated, sent):
                    raise translated from None
                return self._list_page(connection, parameters, was_refused=True)
            except FallBack as reason:
                if self._has_learned(reason, sent):
                    return self._list_page(connection, parameters)
                why = str(reason)
            except NotAListing as reason:  # something in between may refuse growfs, but let the library through
                odd, why = self.not_a_listing(str(reason)), f"no listing: {reason}"
        try:
            reply = self._call("", "list_objects_v2", **parameters)
            page = self._read_page(partial(listing.from_library, reply, self._prefix))
        except NotAListing as reason:
            raise odd or self.not_a_listing(str(reason)) from None
        except RemoteBusy as error:  # botocore takes what it cannot parse for an error of the server
            raise odd or error from None
        self._note_library(why)
        # Takes effect from the next page on: botocore parses times with dateutil, which is half the cost of a page.
        self.fs.session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)
        return page

    def _read_page(self, read: Callable[[str | None], KeyPage]) -> KeyPage:
        """A page that was received. read: with what '+' stands for, None if that is not known. Raises NotAListing."""
        page = read(self._plus)
        if page.unsure:
            by_space, by_plus = (RemoteFile(path, None, None, "") for path in page.unsure)
            self._plus = "+" if self.still_has(by_plus) and not self.still_has(by_space) else " "
            page = read(self._plus)
        return page

    def stat(self, path: str, version: str = "") -> RemoteFile:
        try:
            reply = self._call(path, "head_object", Key=self._prefix + path)
        except RemoteMissing:
            self._require_bucket()
            raise
        return _file(path, reply.get("ContentLength"), reply)

    def still_has(self, file: RemoteFile) -> bool:
        """By a HEAD alone: the bucket has just been listed. An archived object is skipped, as in a listing."""
        try:
            reply = self._call(file.path, "head_object", Key=self._prefix + file.path)
        except RemoteBusy:
            raise
        except RemoteError:
            return False
        is_archived = reply.get("StorageClass") in listing.ARCHIVES
        return not is_archived or 'ongoing-request="false"' in reply.get("Restore", "")

    def _require_bucket(self) -> None:
        """Raise BucketMissing if the bucket does not exist: the response to a HEAD has no body to tell."""
        try:
            self._call("", "list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        except RemoteError as error:
            if isinstance(error, (BucketMissing, RemoteBusy)):
                raise

    def _request(self, file: RemoteFile, method: str, manner: Manner | None = None) -> HttpRequest:
        manner = manner or self._manners.current
        with self._signing():
            request = self._fresh_signer().request(self._prefix + file.path, method, manner.has_checksums)
        headers = request.headers | {"Accept-Encoding": manner.accepts}  # not signed: some servers change it on the way
        return replace(request, headers=headers, redirects=REDIRECTS_MAX)

    def _page_request(self, parameters: dict[str, Any]) -> HttpRequest:
        """A signed GET of a page. Raises FallBack if that is impossible."""
        with self._signing():
            return self._fresh_signer().page(parameters)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        return file_from_headers(file.path, size, headers)

    def _by_library(self, task: FetchTask) -> RemoteFile:
        file, wanted = task.file, task.byte_range
        parameters = {"Range": f"bytes={wanted.offset}-{wanted.offset + wanted.size - 1}"} if wanted else {}
        with self._threads.unsplit(wanted.size if wanted else file.size), open(task.target, "wb") as out:
            reply = self._call(file.path, "get_object", Key=self._prefix + file.path, **parameters)
            size, written = reply.get("ContentLength"), 0  # none if it comes in chunks
            expected = None if wanted else expected_checksum(reply["ResponseMetadata"]["HTTPHeaders"])
            checksum = expected and expected.segment(0)
            with closing(_Body(reply["Body"], self.fs.loop)) as body:
                if wanted:
                    if size is not None:
                        self._check_length(file.path, wanted, size)
                    size = int(reply["ContentRange"].rpartition("/")[2])
                now = _file(file.path, size, reply)
                self._verified(file, now)
                while True:
                    with self.translating(file.path):
                        chunk = body.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    out.write(chunk)
                    if checksum:
                        checksum.update(memoryview(chunk))
                    written += len(chunk)
                    task.progress(len(chunk))
        if wanted:
            self._check_length(file.path, wanted, written)
        now = self._verified(file, now, None if wanted else written)
        with self.translating(file.path):
            self._downloader.verify(expected, task, written)
        return now

    def _open_by_library(self, file: RemoteFile, start: int) -> RemoteStream:
        now = self._stat_listed(file)
        if now.size == start:  # a range that would be empty
            source: Any = io.BytesIO()
        else:
            reply = self._call(file.path, "get_object", Key=self._prefix + file.path, Range=f"bytes={start}-")
            source = _Body(reply["Body"], self.fs.loop)
        stat_now, translating = partial(self._stat_listed, now), partial(self.translating, file.path)
        return FileStream(source, now, 0, stat_now, self._threads.throttle, translating)


class _Body(io.RawIOBase):
    """The body of a response, which the library's event loop reads."""

    def __init__(self, body: Any, loop: Any) -> None:
        self._body, self._loop = body, loop

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        from fsspec.asyn import sync

        chunk = sync(self._loop, self._body.read, min(len(buffer), CHUNK_BYTES))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._body.close()
        super().close()


def _time(value: Any) -> datetime:
    """A time in a reply: parsed as stores write it in a listing, otherwise by botocore."""
    if isinstance(value, str) and value.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(value[:-1] + "+00:00")
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(value)
    return found


def _file(path: str, size: int | None, reply: dict[str, Any]) -> RemoteFile:
    """The file that a reply of the library describes."""
    return file_from_fields(path, size, reply.get("ETag") or "", listing.seconds_ns(reply.get("LastModified")))
