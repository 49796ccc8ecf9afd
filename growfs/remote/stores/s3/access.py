"""`BucketAccess`: how requests reach a bucket: its client, its region, credentials, signatures and certificates.

All of them are as the options, the environment and the files say, until the store shows that they are not: then they
are looked for anew. The errors of S3 are described here.
"""

from __future__ import annotations

import math
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from growfs.errors import BucketMissing, GrowfsError, RemoteDenied, RemoteError, RemoteUnavailable, UsageError
from growfs.remote.errors import Problem
from growfs.remote.http.connection import FallBack, Headers
from growfs.remote.http.download import HttpError
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import RemoteSpec
from growfs.remote.stores.base import Access
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3 import client
from growfs.remote.stores.s3.client import REFUSED_S, Client, forget_credentials, library_client, plain_client
from growfs.remote.stores.s3.credential_sources import failed_credentials, mend, source_of
from growfs.remote.stores.s3.credentials import Renewal
from growfs.remote.stores.s3.signer import Signer, signer_by_library, signer_with
from growfs.remote.stores.s3.static_settings import CONFIG, StaticSettings, server_in, static_settings

REGION_TRIES_MAX = 3
"""How often a process asks a bucket for its region: the answer may be lost."""
DIRECTORY_SUFFIXES = ("--x-s3", "--xa-s3")
"""Of directory buckets (S3 Express), and of access points to them: they have no order and no StartAfter."""
TENANT = r"((?!arn:)\w+:(?!\d+(/|$)))"
"""Before the bucket, in Ceph. A server and its port are no tenant and bucket."""
_OWN_PARAMETERS = {"RequestPayer", "ACL", "ServerSideEncryption", "SSEKMSKeyId", "StorageClass"}
"""Parameters of requests that growfs sends, or that are only for uploads."""
_CREDENTIAL_FILES = {"shared-credentials-file": "credentials_file", "config-file": "config_file"}
"""Botocore's names of the variables with the paths of these providers' files."""


class BucketAccess(FsspecRemote):
    """What S3Remote reads a bucket with."""

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
        self._lock = threading.RLock()
        """Guards the client and the signer. A botocore session makes one client at a time."""
        self._signer: Signer | None = None
        self._refusal = ""  # of credentials
        self._refused_at = self._forgot_at = -math.inf
        self._renewal = Renewal()
        self._region_lock = threading.Lock()
        self._region_tries = 0

    def preload(self) -> None:
        client.share_credentials()
        if self.client.uses_library or self._static_settings is None:
            client.preload()

    @classmethod
    def _why_library(cls, spec: RemoteSpec) -> str:
        parameters = spec.storage_options.get("s3_additional_kwargs", {}).keys() - _OWN_PARAMETERS
        options = spec.storage_options.get("config_kwargs", {}).keys() & {"proxies", "proxies_config", "client_cert"}
        if found := sorted(parameters) + sorted(options):
            return f"knows the option {found[0]}"
        return super()._why_library(spec)

    @classmethod
    def _given_server(cls, spec: RemoteSpec) -> str | None:
        return super()._given_server(spec) or server_in(spec.storage_options.get("client_kwargs", {}))

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

    def access(self) -> Access:
        with self.translating():
            client = self._client()
            meta = client.boto.meta
            return Access(meta.endpoint_url, self._credentials(client), meta.region_name or "", self._bucket)

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
        if variable := _CREDENTIAL_FILES.get(found.method):
            return f"{session.get_config_variable(variable)}, profile {session.profile or 'default'}"
        return source_of(found.method).words

    def _credentials_by_options(self) -> str:
        has_key = self._options.get("key") or self._options.get("client_kwargs", {}).get("aws_access_key_id")
        return super()._credentials_by_options() if self.spec.anon or has_key else ""

    def known_credentials(self) -> str:
        with suppress(Exception):  # the error with them is already being described
            return self._credentials(self._client())
        return ""

    def login_advice(self) -> str:
        with suppress(Exception):  # as above
            if not self._credentials_by_options():
                client = self._client()
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
        if problem.words & {"SecondLevelDomainForbidden", "PathStyleDomainForbidden", "VirtualHostDomainRequired"}:
            return problem.denied(
                f"the bucket must be in the host's name ({problem.detail})",
                "pass --storage-option config_kwargs.s3.addressing_style=virtual",
            )
        if any(word.startswith("KMS.") for word in problem.words):
            return problem.denied(f"its key cannot be used ({problem.detail})", "check the KMS key of the object")
        failed = failed_credentials(problem.chain)
        if failed and not problem.is_busy(failed[0]):
            words, advice = source_of(failed[1]).words, mend(failed[1], self._options) or self.login
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

    def _has_renewed_credentials(self, since: float, refusal: RemoteDenied) -> bool:
        """Look for credentials anew, as in a new process. Returns whether that was done after `since` (monotonic).

        The library renews them only shortly before their announced expiry, and the store may refuse them earlier.
        """
        if self.spec.anon or self._options.get("key"):
            return False  # there are no others
        with self._lock:
            if self._renewal.is_due(since, refusal):
                if client := self.__dict__.get("_plain_client"):
                    with suppress(Exception):  # problems with them are reported where they are looked for
                        forget_credentials(client, since, refusal)
                self._forget_client()
                self._renewal.note()
            return self._forgot_at >= since

    def _has_found_region(self, since: float) -> bool:
        """Whether it was found after `since` (monotonic) that the bucket's region is not the one signed for.

        The store is asked after it has refused a request (docs.aws.amazon.com: API_HeadBucket).
        """
        with self._region_lock:
            if self._region_tries < REGION_TRIES_MAX:
                self._region_tries += 1
                with suppress(RemoteError), self.translating():
                    self._follow_region()
            return self._forgot_at >= since

    def _follow_region(self) -> None:
        meta = self._client().boto.meta
        region = self.region_in(self.head(f"{meta.endpoint_url}/{self._bucket}"))
        if region:
            self._region_tries = REGION_TRIES_MAX
        if region not in (None, meta.region_name):
            client_kwargs = self._options.get("client_kwargs", {}) | {"region_name": region}
            self._options = self._options | {"client_kwargs": client_kwargs}
            self._forget_client()

    def _forget_client(self) -> None:
        with self._lock:
            for name in ("_plain_client", "_shared"):  # each has a session, which has read the credentials
                self.__dict__.pop(name, None)
            self._signer = None
            self._forgot_at = time.monotonic()

    @contextmanager
    def _signing(self) -> Iterator[None]:
        """Raises FallBack; RemoteUnavailable if credentials cannot be obtained: the library has no others."""
        try:
            yield
        except (FallBack, GrowfsError):
            raise
        except Exception as error:
            translated = self.translated(error)
            if isinstance(translated, RemoteUnavailable):
                raise translated from None
            raise FallBack("cannot be signed") from error

    def _fresh_signer(self) -> Signer:
        with self._lock:
            if self._signer and self._signer.is_fresh:
                return self._signer
            if time.monotonic() < self._refused_at + REFUSED_S:
                raise RemoteDenied(self._refusal)
            try:
                with self._signing():
                    self._signer = self._new_signer()
            except RemoteUnavailable as error:
                if self._signer is None:
                    if isinstance(error, RemoteDenied):
                        self._refusal, self._refused_at = str(error), time.monotonic()
                    raise
                self._signer.keep()  # valid until the store refuses it: credentials are renewed in advance
            return self._signer

    def _new_signer(self) -> Signer:
        settings = self._static_settings
        return signer_with(settings) if settings else signer_by_library(self._client(), self._bucket)

    @property
    def _static_settings(self) -> StaticSettings | None:
        """As the options, the environment and the files say now."""
        return static_settings(self._options, self._bucket_in_url)

    def _client(self) -> Client:
        with self._lock:
            return self._plain_client or library_client(self.fs, self._bucket)

    @cached_property
    def _plain_client(self) -> Client | None:
        return plain_client(self._options)

    def _trusted(self) -> ssl.SSLContext:
        """As in botocore: the option `verify`, else AWS_CA_BUNDLE, ca_bundle in ~/.aws/config, or the system's."""
        verify = self._options.get("client_kwargs", {}).get("verify")
        if verify is None and (settings := self._static_settings):
            verify = settings.ca_bundle
        elif verify is None:
            verify = self._client().session.get_config_variable("ca_bundle")
        if isinstance(verify, str):
            folder = os.path.isdir(verify)
            return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
        context = super()._trusted()
        if verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    @property
    def _bucket_in_url(self) -> str:
        """The bucket, or the beginning of an ARN."""
        return self.spec.url.partition("://")[2].partition("/")[0]

    @property
    def _bucket(self) -> str:
        return self._bucket_and_prefix[0]

    @property
    def _prefix(self) -> str:
        """The prefix of all keys: empty, or with a slash at the end."""
        return self._bucket_and_prefix[1]

    @cached_property
    def _bucket_and_prefix(self) -> tuple[str, str]:
        bucket, _, key = self.spec.url.rstrip("/").partition("://")[2].partition("/")
        if ":" in bucket or "?" in key:  # an ARN, or what may be a version
            bucket, key, _ = self.fs.split_path(self.spec.url.rstrip("/"))
        return bucket, f"{key}/" if key else ""

    def _call(self, path: str, method: str, **arguments: Any) -> dict[str, Any]:
        with self.translating(path):
            reply: dict[str, Any] = self.fs.call_s3(method, **{"Bucket": self._bucket, **arguments})
            return reply


def _response(error: BaseException) -> dict[str, Any] | None:
    """Botocore's parsed response, from its exceptions."""
    response = getattr(error, "response", None)
    return {"ResponseMetadata": {}, **response} if isinstance(response, dict) else None
