"""`S3Remote`: S3 and compatible stores.

The listing is flat, page by page. Files are read by GETs whose headers give the version, so no second request is needed
for it. `fs.sign` and `fs.get_file` are not used: they interpret "?versionId=" in a key as an option, and the latter
discards the headers.
"""

from __future__ import annotations

import io
import logging
import math
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
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
    UsageError,
)
from growfs.remote.errors import Problem
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
from growfs.remote.http.download import BUSY_STATUSES, HttpError, extent_of
from growfs.remote.http.stream import FileStream
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import FetchTask, Page, RemoteFile, RemoteSpec, RemoteStream
from growfs.remote.metadata import file_from_headers, file_from_info
from growfs.remote.stores.base import PAGE_FILES_MAX, Access
from growfs.remote.stores.fsspec import PAGE_READ_S, FsspecRemote
from growfs.remote.stores.s3 import client, listing
from growfs.remote.stores.s3.client import (
    CREDENTIAL_SOURCES,
    REFUSED_S,
    Client,
    failed_credentials,
    forget_credentials,
    library_client,
    mend,
    note_served,
    plain_client,
)
from growfs.remote.stores.s3.credentials import Renewal
from growfs.remote.stores.s3.key_ranges import KeyRange, KeyRanges, RepeatedPage
from growfs.remote.stores.s3.listing import KeyPage, NotAListing
from growfs.remote.stores.s3.parallel_lister import ConcurrencyLimit, ParallelLister
from growfs.remote.stores.s3.signer import Signer, signer_by_library, signer_with
from growfs.remote.stores.s3.static_settings import CONFIG, StaticSettings, static_settings

log = logging.getLogger(__name__)

REGION_TRIES_MAX = 3
"""How often a process asks a bucket for its region: the answer may be lost."""
NEEDS_HOST = frozenset({"SecondLevelDomainForbidden", "PathStyleDomainForbidden", "VirtualHostDomainRequired"})
"""Codes of stores that refuse requests with the bucket in the path."""
IN_HOST = "--storage-option config_kwargs.s3.addressing_style=virtual"
CHUNK_BYTES = 256 * 1024
DIRECTORY_SUFFIXES = ("--x-s3", "--xa-s3")
"""Of directory buckets (S3 Express), and of access points to them: they have no order and no StartAfter."""
RESTORED = {"OptionalObjectAttributes": ["RestoreStatus"]}
"""A listing parameter that makes it report which archived objects can be read."""
_CONNECTION_OPTIONS = {"proxies", "proxies_config", "client_cert"}  # connection options of botocore
_OWN_PARAMETERS = {"RequestPayer", "ACL", "ServerSideEncryption", "SSEKMSKeyId", "StorageClass"}
"""Parameters of requests that growfs sends, or that are only for uploads."""


_CREDENTIAL_FILES = {"shared-credentials-file": "credentials_file", "config-file": "config_file"}
"""Botocore's names of the variables with the paths of these providers' files."""


class Manner(NamedTuple):
    """How objects are requested."""

    has_checksums: bool = True
    """With `x-amz-checksum-mode`, which some stores refuse."""
    accepts: str = "identity"
    """The encoding. Some stores decompress objects that are stored compressed, unless that is gzip."""


MANNERS = [Manner(has_checksums, accepts) for accepts in ("identity", "gzip") for has_checksums in (True, False)]


TENANT = r"((?!arn:)\w+:(?!\d+(/|$)))"
"""Before the bucket, in Ceph. A server and its port are no tenant and bucket."""


class S3Remote(FsspecRemote):
    """A bucket, or the keys below a prefix of it. The cursor of a page is the key ranges that are left."""

    name = "s3"
    schemes = ("s3", "s3a")
    takes_endpoint = True
    has_inventories = True
    package = "s3fs"
    usual_server = "https://s3.amazonaws.com"
    needs_library = False  # except for options that only s3fs knows
    heads_useful = True
    sends_as_stored = True
    public_options = frozenset({"endpoint_url", "profile", "region_name"})
    login = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run 'aws configure', or pass --anon for a public bucket"
    credential_variables = ("AWS_ACCESS_KEY_ID",)
    secret_variables = frozenset(
        {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"}
    )
    ca_variable = "AWS_CA_BUNDLE"
    no_credentials = frozenset({"PartialCredentialsError", "ProfileNotFound"})
    wrong_credentials = frozenset({"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})
    busy_codes = frozenset(
        {"SlowDown", "RequestTimeout", "ServiceUnavailable", "InternalError", "Throttling", "ThrottlingException"}
        | {"RequestLimitExceeded", "OperationAborted", "BandwidthLimitExceeded"}
    )
    unreachable = frozenset(
        {"HTTPClientError", "IncompleteReadError", "ResponseParserError", "FlexibleChecksumError", "ChecksumError"}
    )

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        if not re.match(rf"\w+://({TENANT}?[\w.-]{{1,255}}(/|$)|arn:)", spec.url):
            raise UsageError(f"{self.safe_url()}: names no bucket; use s3://bucket/prefix")
        self._signer: Signer | None = None
        self._signer_number = 0  # of the client that it was made from
        self._signer_lock = threading.Lock()
        self._refusal = ""  # of credentials
        self._refused_at = -math.inf
        self._concurrency = ConcurrencyLimit()  # from the last listing, which may be continued
        self._knows_restored: bool | None = None
        self._plus: str | None = None  # what '+' stands for in a listing, once it is known
        self._manner = Manner()
        self._manner_lock = threading.Lock()
        self._manner_tries = 0
        self._region_lock = threading.Lock()
        self._region_tries = 0
        self._found_region_at = -math.inf
        self._page_timeouts = TIMEOUTS  # longer after each timeout: a server may need minutes for a page
        self._client_lock = threading.Lock()  # a botocore session makes one client at a time
        self._client_number = 0  # of the current client; the signer of an earlier one is not used
        self._renewal = Renewal()

    def preload(self) -> None:
        client.share_credentials()
        if self.client.uses_library or self._static_settings is None:
            client.preload()

    @classmethod
    def _why_library(cls, spec: RemoteSpec) -> str:
        parameters = spec.storage_options.get("s3_additional_kwargs", {}).keys() - _OWN_PARAMETERS
        options = spec.storage_options.get("config_kwargs", {}).keys() & _CONNECTION_OPTIONS
        if found := sorted(parameters) + sorted(options):
            return f"knows the option {found[0]}"
        return super()._why_library(spec)

    @classmethod
    def _given_server(cls, spec: RemoteSpec) -> str | None:
        given = super()._given_server(spec) or spec.storage_options.get("client_kwargs", {}).get("endpoint_url")
        return given or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")

    def _library_options(self) -> dict[str, Any]:
        options, url = super()._library_options(), self.spec.endpoint_url
        is_multi_region = self._bucket_in_url.startswith("arn:") and ".mrap/" in f"{self.spec.url}/"  # an access point
        has_own_signature = is_multi_region or self._bucket_in_url.endswith(DIRECTORY_SUFFIXES)
        config = dict(CONFIG)
        if has_own_signature:
            del config["signature_version"]
        options["config_kwargs"] = config | options.get("config_kwargs", {})
        if url:
            options.pop("endpoint_url", None)
            options["client_kwargs"] = {**options.get("client_kwargs", {}), "endpoint_url": url}
        if self.spec.anon:
            options["anon"] = True
        return options

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        from aiobotocore.session import AioSession

        fs, root = super()._open_library(options)
        fs.retries = 1
        if re.match(TENANT, root) and fs.session is None:
            fs.session = AioSession(**fs.kwargs)
            client.accept_tenants(fs.session)
        return fs, root

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        bucket, prefix = self._bucket_and_prefix
        ranges = KeyRanges(cursor, serial=bucket.endswith(DIRECTORY_SUFFIXES))
        if cursor is None:
            self._concurrency = ConcurrencyLimit()
        try:
            yield from ParallelLister(ranges, self._concurrency, self._connection, self._list_keys).pages()
        except RepeatedPage:
            raise self.listing_without_end() from None
        if prefix and cursor is None and not ranges.pages:
            raise RemoteMissing(f"{self.safe_url()}: nothing is stored below it; {self._hint(bucket, prefix)}")

    def fetch(self, task: FetchTask) -> RemoteFile:
        began, received, was_refused, manner = time.monotonic(), 0, False, self._manner
        was_known = self._lists_other_etags  # otherwise another thread may find out meanwhile

        def progress(count: int) -> None:
            nonlocal received
            received += count
            task.progress(count)

        try:
            found = super().fetch(task._replace(progress=progress))
        except RemoteChanged:
            if received:
                raise
            if not self._has_better_manner(task.file, manner):
                if was_known or not (self._lists_other_etags or self._is_listed_otherwise(task.file)):
                    raise
                self._lists_other_etags = True
            found = super().fetch(task)
        except RemoteDenied as error:
            if self._renewal.served_also(began) or not self._has_renewed_credentials(began, error):
                raise  # the credentials are valid, or there are no others
            if received:  # a later request was refused
                raise RemoteBusy(str(error)) from None  # so that it is retried from the start
            began = time.monotonic()
            found, was_refused = super().fetch(task), True
        note_served(self._renewal, began, was_refused)
        return found

    def _hint(self, bucket: str, prefix: str) -> str:
        """What may be wrong with a prefix, as a person might write it."""
        if re.search(r"[*?[]", prefix):
            return "a pattern belongs in --include"
        begin = prefix.rstrip("/")
        reply = self._call("", "list_objects_v2", Bucket=bucket, Prefix=begin, MaxKeys=1, **listing.ENCODED)
        similar = next((unquote(row["Key"]) for row in reply.get("Contents", [])), "")
        if similar == begin:
            return "it is an object; give the URL of its folder"
        return f"check the prefix; there is {similar}" if similar else "check the prefix"

    def _is_listed_otherwise(self, file: RemoteFile) -> bool:
        """Whether a file is listed as before, and its HEAD gives the same time and size, but another ETag."""
        bucket, prefix = self._bucket_and_prefix
        reply = self._call(
            file.path, "list_objects_v2", Bucket=bucket, Prefix=prefix + file.path, MaxKeys=1, **listing.ENCODED
        )
        try:
            files = self._read_page(partial(listing.from_library, reply, prefix)).files
        except NotAListing as reason:
            raise self.not_a_listing(str(reason)) from None
        now = self.stat(file.path)
        return file in files and file[:3] == now[:3] and file.version != now.version

    def _has_renewed_credentials(self, since: float, refusal: RemoteDenied) -> bool:
        """Look for credentials anew, as in a new process. Returns whether that was done after `since` (monotonic).

        The library renews them only shortly before their announced expiry, and the store may refuse them earlier.
        """
        if self.spec.anon or self._options.get("key"):
            return False  # there are no others
        with self._client_lock:
            if self._renewal.is_due(since, refusal):
                if client := self.__dict__.get("_plain_client"):
                    with suppress(Exception):  # problems with them are reported where they are looked for
                        forget_credentials(client, since, refusal)
                self._forget_client()
                self._renewal.note()
            return self._renewal.was_done_after(since)

    def _fetch_by_get(self, task: FetchTask) -> RemoteFile:
        began, manner = time.monotonic(), self._manner
        try:
            return super()._fetch_by_get(task)
        except FallBack as reason:
            # Stores return one of these for a header that they do not know.
            may_be_manner = not isinstance(reason, OddStatus) or reason.status in (400, 501)
            if not (self._has_found_region(began) or (may_be_manner and self._has_better_manner(task.file, manner))):
                raise
        return super()._fetch_by_get(task)

    def _has_better_manner(self, file: RemoteFile, used: Manner) -> bool:
        """Whether the store sends a file as it was listed if asked in another manner; it is asked so from then on.

        Called after an unusual response to a request in the manner `used`. The first byte is requested in each manner,
        and in that one first.
        """
        if not self._requests_itself:
            return False
        with self._manner_lock:
            if self._manner == used and self._manner_tries < 3:
                self._manner_tries += 1
                with suppress(ConnectionFailed, RemoteBusy):  # which says nothing about the manner
                    found = next((manner for manner in (used, *MANNERS) if self._is_sent_as_listed(file, manner)), used)
                    if found != used and not self._is_sent_as_listed(file, used):  # nor does one of several servers
                        checksums = "" if found.has_checksums else ", and no checksums"
                        log.warning("objects are requested with encoding %s%s from now on", found.accepts, checksums)
                        self._manner = found
            return self._manner != used

    def _is_sent_as_listed(self, file: RemoteFile, manner: Manner) -> bool:
        """Raises ConnectionFailed, RemoteBusy."""
        try:
            with self._downloader.connection() as connection:
                request = self._request(file, "GET", manner)
                response = self._downloader.begin(connection, request, {"Range": "bytes=0-0"})
                connection.close()
                length, extent = extent_of(response)
                return self._checked(file, extent[1] if extent else length, response.headers) is not None
        except HttpError as error:
            if error.status in BUSY_STATUSES:
                raise RemoteBusy(str(error)) from None
        except RemoteBusy:
            raise
        except (FallBack, RemoteError):
            pass
        return False

    def _has_found_region(self, since: float) -> bool:
        """Whether it was found after `since` (monotonic) that the bucket's region is not the one signed for.

        The store is asked after it has refused a request (docs.aws.amazon.com: API_HeadBucket).
        """
        with self._region_lock:
            if self._region_tries < REGION_TRIES_MAX:
                self._region_tries += 1
                with suppress(RemoteError), self.translating():
                    self._follow_region()
            return self._found_region_at > since

    def _follow_region(self) -> None:
        bucket, _ = self._bucket_and_prefix
        meta = self._client(bucket).boto.meta
        region = self.region_in(self.head(f"{meta.endpoint_url}/{bucket}"))
        if region:
            self._region_tries = REGION_TRIES_MAX
        if region not in (None, meta.region_name):
            client_kwargs = self._options.get("client_kwargs", {}) | {"region_name": region}
            self._options = self._options | {"client_kwargs": client_kwargs}
            self._forget_client()
            self._found_region_at = time.monotonic()

    def _forget_client(self) -> None:
        for name in ("_plain_client", "_shared"):  # each has a session, which has read the credentials
            self.__dict__.pop(name, None)
        self._client_number += 1

    def access(self) -> Access:
        with self.translating():
            bucket, _ = self._bucket_and_prefix
            client = self._client(bucket)
            meta = client.boto.meta
            return Access(meta.endpoint_url, self._credentials(client), meta.region_name or "", bucket)

    def region_in(self, headers: Headers) -> str | None:
        return headers.get("x-amz-bucket-region")  # AWS sends it in every response, even a refusal

    def _credentials(self, client: Client) -> str:
        """The source of the credentials (botocore.credentials); empty if there are none."""
        if by_options := self._credentials_by_options():
            return by_options
        session = client.session
        found = client.call(session.get_credentials)
        if not found:
            return ""
        variable = _CREDENTIAL_FILES.get(found.method)
        if variable is None:
            source = CREDENTIAL_SOURCES.get(found.method)
            return source.words if source else str(found.method)
        return f"{session.get_config_variable(variable)}, profile {session.profile or 'default'}"

    def _credentials_by_options(self) -> str:
        has_key = self._options.get("key") or self._options.get("client_kwargs", {}).get("aws_access_key_id")
        return super()._credentials_by_options() if self.spec.anon or has_key else ""

    def known_credentials(self) -> str:
        with suppress(Exception):  # the error with them is already being described
            return self._credentials(self._client(self._bucket_and_prefix[0]))
        return ""

    def login_advice(self) -> str:
        with suppress(Exception):  # as above
            if not self._credentials_by_options():
                client = self._client(self._bucket_and_prefix[0])
                return mend(client.call(client.session.get_credentials).method, self._options) or self.login
        return self.login

    def own_error(self, problem: Problem) -> GrowfsError | None:
        if "NoSuchBucket" in problem.words:
            return BucketMissing(f"{problem.where}: no such bucket; check the name and --endpoint-url")
        if "NoCredentialsError" in problem.words:
            return problem.without_credentials()
        if "InvalidObjectState" in problem.words:
            return RemoteError(f"{problem.where}: is archived; restore it, or copy it to another storage class")
        if "RequestTimeTooSkewed" in problem.words:
            return problem.denied(
                f"the store's clock shows a different time ({problem.detail})", "set this machine's clock"
            )
        if problem.words & NEEDS_HOST:
            return problem.denied(f"the bucket must be in the host's name ({problem.detail})", f"pass {IN_HOST}")
        if any(word.startswith("KMS.") for word in problem.words):
            return problem.denied(f"its key cannot be used ({problem.detail})", "check the KMS key of the object")
        failed = failed_credentials(problem.chain)
        if failed and not problem.is_busy(failed[0]):
            source = CREDENTIAL_SOURCES.get(failed[1])
            words = source.words if source else failed[1] or "botocore"
            advice = mend(failed[1], self._options) or self.login
            return RemoteDenied(f"{problem.where}: no credentials from {words} ({problem.detail}); {advice}")
        if "AccessDenied" in problem.words and not self.spec.anon:  # the credentials are valid
            advice = "check its permissions: the policies of the bucket, of the object's key and of the credentials"
            return problem.denied(f"access denied ({problem.status}: {problem.detail})", advice)
        return None

    def status_of(self, error: BaseException) -> int:
        response = _response(error)
        return super().status_of(error) if response is None else response["ResponseMetadata"].get("HTTPStatusCode", 0)

    def code_of(self, error: BaseException) -> str:
        if isinstance(error, HttpError):
            return error.code
        return str((_response(error) or {}).get("Error", {}).get("Code") or "")

    def _refused_code(self, body: bytes) -> str:
        found = re.search(rb"<Code>(\w+)</Code>", body)
        code = found[1].decode() if found else ""
        return code if code == "AccessDenied" or code in self.wrong_credentials else ""

    def _connection(self) -> Connection:
        return Connection(lambda: self._tls)

    def _list_keys(self, connection: Connection, key_range: KeyRange) -> KeyPage:
        """The first page of the names of a range."""
        bucket, prefix = self._bucket_and_prefix
        parameters: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": PAGE_FILES_MAX, **listing.ENCODED}
        if key_range.token is not None:
            parameters["ContinuationToken"] = key_range.token
        elif key_range.after:
            parameters["StartAfter"] = prefix + key_range.after
        page = self._list_page(connection, parameters | RESTORED if self._knows_restored else parameters, prefix)
        has_archived = listing.ARCHIVED in page.reasons.values()
        if has_archived and self._knows_restored is None:  # requested only then: some stores refuse the parameter
            try:
                page = self._list_page(connection, parameters | RESTORED, prefix)
                self._knows_restored = True
            except RemoteBusy:
                raise
            except GrowfsError:
                self._knows_restored = False
        return page

    def _list_page(
        self, connection: Connection, parameters: dict[str, Any], prefix: str, was_refused: bool = False
    ) -> KeyPage:
        why, odd = "", None
        if self._requests_itself:
            connection.timeouts = self._page_timeouts
            began = time.monotonic()
            try:
                response = self._downloader.begin(connection, self._page_request(parameters), {})
                page = self._read_page(partial(listing.parsed, connection.read(response), prefix))
                self._threads.library.note_own()
                note_served(self._renewal, began, was_refused)
                return page
            except (HttpError, ConnectionFailed) as error:
                if isinstance(error, ConnectionTimedOut) and connection.timeouts.read_s < PAGE_READ_S:
                    longer = connection.timeouts.doubled()
                    self._page_timeouts = max(self._page_timeouts, longer, key=lambda timeouts: timeouts.read_s)
                translated = self.translated(error)
                if not isinstance(translated, RemoteDenied) or not self._has_renewed_credentials(began, translated):
                    raise translated from None
                return self._list_page(connection, parameters, prefix, was_refused=True)
            except FallBack as reason:
                if self._has_found_region(began):
                    return self._list_page(connection, parameters, prefix)
                why = str(reason)
            except NotAListing as reason:  # something in between may refuse growfs, but let the library through
                odd, why = self.not_a_listing(str(reason)), f"no listing: {reason}"
        try:
            reply = self._call("", "list_objects_v2", **parameters)
            page = self._read_page(partial(listing.from_library, reply, prefix))
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
        bucket, prefix = self._bucket_and_prefix
        try:
            reply = self._call(path, "head_object", Bucket=bucket, Key=prefix + path)
        except RemoteMissing:
            self._require_bucket()
            raise
        return _file(path, reply.get("ContentLength"), reply)

    def still_has(self, file: RemoteFile) -> bool:
        """By a HEAD alone: the bucket has just been listed. An archived object is skipped, as in a listing."""
        bucket, prefix = self._bucket_and_prefix
        try:
            reply = self._call(file.path, "head_object", Bucket=bucket, Key=prefix + file.path)
        except RemoteBusy:
            raise
        except RemoteError:
            return False
        is_archived = reply.get("StorageClass") in listing.ARCHIVES
        return not is_archived or 'ongoing-request="false"' in reply.get("Restore", "")

    def _require_bucket(self) -> None:
        """Raise BucketMissing if the bucket does not exist: the response to a HEAD has no body to tell."""
        bucket, prefix = self._bucket_and_prefix
        try:
            self._call("", "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        except RemoteError as error:
            if isinstance(error, (BucketMissing, RemoteBusy)):
                raise

    def _request(self, file: RemoteFile, method: str, manner: Manner | None = None) -> HttpRequest:
        bucket, prefix = self._bucket_and_prefix
        manner = manner or self._manner
        with self._signing():
            request = self._fresh_signer(bucket).request(prefix + file.path, method, manner.has_checksums)
        headers = request.headers | {"Accept-Encoding": manner.accepts}  # not signed: some servers change it on the way
        return replace(request, headers=headers, redirects=REDIRECTS_MAX)

    @contextmanager
    def _signing(self) -> Iterator[None]:
        """Raises FallBack; RemoteDenied or RemoteBusy if credentials cannot be obtained: the library has no others."""
        try:
            yield
        except (FallBack, GrowfsError):
            raise
        except Exception as error:
            translated = self.translated(error)
            if isinstance(translated, (RemoteDenied, RemoteBusy)):
                raise translated from None
            raise FallBack("cannot be signed") from error

    def _fresh_signer(self, bucket: str) -> Signer:
        with self._signer_lock:
            if self._signer_number != self._client_number:
                self._signer, self._signer_number = None, self._client_number
            if self._signer and self._signer.is_fresh:
                return self._signer
            if time.monotonic() < self._refused_at + REFUSED_S:
                raise RemoteDenied(self._refusal)
            try:
                with self._signing():
                    self._signer = self._new_signer(bucket)
            except (RemoteDenied, RemoteBusy) as error:
                if self._signer is None:
                    if isinstance(error, RemoteDenied):
                        self._refusal, self._refused_at = str(error), time.monotonic()
                    raise
                self._signer.keep()  # valid until the store refuses it: credentials are renewed in advance
            return self._signer

    def _new_signer(self, bucket: str) -> Signer:
        settings = self._static_settings
        return signer_with(settings) if settings else signer_by_library(self._client(bucket), bucket)

    def _page_request(self, parameters: dict[str, Any]) -> HttpRequest:
        """A signed GET of a page. Raises FallBack if that is impossible."""
        with self._signing():
            return self._fresh_signer(parameters["Bucket"]).page(parameters)

    @property
    def _static_settings(self) -> StaticSettings | None:
        """As the options, the environment and the files say now."""
        return static_settings(self._options, self._bucket_in_url)

    def _client(self, bucket: str) -> Client:
        with self._client_lock:
            return self._plain_client or library_client(self.fs, bucket)

    @cached_property
    def _plain_client(self) -> Client | None:
        return plain_client(self._options)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        return file_from_headers(file.path, size, headers)

    def _trusted(self) -> ssl.SSLContext:
        """As in botocore: the option `verify`, else AWS_CA_BUNDLE, ca_bundle in ~/.aws/config, or the system's."""
        verify = self._options.get("client_kwargs", {}).get("verify")
        if verify is None and (settings := self._static_settings):
            verify = settings.ca_bundle
        elif verify is None:
            bucket, _ = self._bucket_and_prefix
            verify = self._client(bucket).session.get_config_variable("ca_bundle")
        if isinstance(verify, str):
            folder = os.path.isdir(verify)
            return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
        context = super()._trusted()
        if verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _by_library(self, task: FetchTask) -> RemoteFile:
        file, wanted = task.file, task.byte_range
        bucket, prefix = self._bucket_and_prefix
        parameters = {"Range": f"bytes={wanted.offset}-{wanted.offset + wanted.size - 1}"} if wanted else {}
        with self._threads.unsplit(wanted.size if wanted else file.size), open(task.target, "wb") as out:
            reply = self._call(file.path, "get_object", Bucket=bucket, Key=prefix + file.path, **parameters)
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
        bucket, prefix = self._bucket_and_prefix
        now = self._stat_listed(file)
        if now.size == start:  # a range that would be empty
            source: Any = io.BytesIO()
        else:
            reply = self._call(file.path, "get_object", Bucket=bucket, Key=prefix + file.path, Range=f"bytes={start}-")
            source = _Body(reply["Body"], self.fs.loop)
        stat_now, translating = partial(self._stat_listed, now), partial(self.translating, file.path)
        return FileStream(source, now, 0, stat_now, self._threads.throttle, translating)

    @property
    def _bucket_in_url(self) -> str:
        """The bucket, or the beginning of an ARN."""
        return self.spec.url.partition("://")[2].partition("/")[0]

    @cached_property
    def _bucket_and_prefix(self) -> tuple[str, str]:
        bucket, _, key = self.spec.url.rstrip("/").partition("://")[2].partition("/")
        if ":" in bucket or "?" in key:  # an ARN, or what may be a version
            bucket, key, _ = self.fs.split_path(self.spec.url.rstrip("/"))
        return bucket, f"{key}/" if key else ""

    def _call(self, path: str, method: str, **arguments: Any) -> dict[str, Any]:
        with self.translating(path):
            reply: dict[str, Any] = self.fs.call_s3(method, **arguments)
            return reply


def _response(error: BaseException) -> dict[str, Any] | None:
    """Botocore's parsed response, from its exceptions."""
    response = getattr(error, "response", None)
    return {"ResponseMetadata": {}, **response} if isinstance(response, dict) else None


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
    """The file, with its time in whole seconds: only a listing has milliseconds (rclone, MinIO)."""
    when = reply.get("LastModified")
    return file_from_info(
        path, {"size": size, "ETag": reply.get("ETag"), "mtime": when and when.replace(microsecond=0)}
    )
