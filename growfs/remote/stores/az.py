"""`AzureRemote`: a container of Azure Blob Storage, or a folder of it, by adlfs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any
from urllib.parse import unquote

from growfs.errors import GrowfsError, UsageError
from growfs.remote.errors import Problem
from growfs.remote.http.connection import Headers, HttpRequest
from growfs.remote.interface import RemoteFile
from growfs.remote.metadata import file_from_headers
from growfs.remote.stores.fsspec import PAGE_READ_S, SIGNED_S, FsspecRemote


class AzureRemote(FsspecRemote):
    """A container; its storage account is in the URL or in ACCOUNT."""

    name = "az"
    schemes = ("az", "abfs", "abfss")
    takes_endpoint = True
    package = "adlfs"
    usual_server = "https://account.blob.core.windows.net"
    credential_variables = (
        *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        "AZURE_STORAGE_CLIENT_ID",
    )
    address_variables = frozenset({"AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"})
    secret_variables = address_variables.union(
        credential_variables, {"AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"}
    )
    login = (
        "set AZURE_STORAGE_ACCOUNT_NAME, and run 'az login' or set AZURE_STORAGE_ACCOUNT_KEY,"
        " or pass --anon for a public container"
    )
    no_credentials = frozenset({"CredentialUnavailableError"})
    wrong_credentials = frozenset({"AuthenticationFailed", "AzureSigningError"})
    refused = frozenset({"ClientAuthenticationError"})
    unreachable = frozenset({"IncompleteReadError", "ServiceRequestError", "ServiceResponseError"})
    sends_as_stored = True

    def _library_options(self) -> dict[str, Any]:
        options, url = super()._library_options(), self.spec.endpoint_url
        if url:
            if not url.startswith("https://"):
                raise UsageError(
                    "--endpoint-url for az:// must begin with https://; otherwise use the option connection_string"
                )
            options["account_host"] = url[len("https://") :].rstrip("/")
        options.setdefault("read_timeout", PAGE_READ_S)
        if self.spec.anon:
            options["anon"] = True
        return options

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        named = any(
            options.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}")
            for name in ("account_name", "connection_string")
        )
        if not named and ".core.windows.net" not in self.spec.url:
            raise UsageError(
                f"{self.safe_url()}: names no storage account;"
                " set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"
            )
        fs, root = super()._open_library(options)
        fs.service_client._config.retry_policy.total_retries = 0
        for policy in fs.service_client._pipeline._impl_policies:
            if hasattr(policy, "_response_callback"):  # it is there for the option raw_response_hook
                policy._response_callback = self._check_response
        return fs, root

    def _check_response(self, response: Any) -> None:
        """Raise an error for a page of a listing that is not one: the SDK takes it for an empty last page."""
        request, answer = response.http_request, response.http_response
        if request.query.get("comp") != "list" or answer.status_code != 200:
            return
        root = self._parsed_listing(answer.body(), "EnumerationResults", "NextMarker")
        if (marker := root.findtext("NextMarker")) and marker == unquote(request.query.get("marker", "")):
            raise self.listing_without_end()

    def _get(self, key: str) -> HttpRequest:
        """Authorized by an account key, else a token of Microsoft Entra ID, a shared access signature, or nothing."""
        fs = self._shared[0]
        headers = {"x-ms-version": "2021-12-02"}  # has strong ETags, and the whole file's MD5 with a range
        if fs.account_key or "accountkey=" in (fs.connection_string or "").lower():
            return HttpRequest(fs.sign(key, expiration=SIGNED_S), headers)
        if fs.sync_credential is not None:
            headers["Authorization"] = f"Bearer {_token(fs.sync_credential)}"
        container, name, _ = fs.split_path(key)
        return HttpRequest(fs.service_client.get_blob_client(container, name).url, headers)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        return file_from_headers(file.path, size, headers)

    @property
    def server_option(self) -> str:
        return super().server_option if self.spec.endpoint_url else "--endpoint-url or the connection string"

    def own_error(self, problem: Problem) -> GrowfsError | None:
        if "ClientAuthenticationError" in problem.words and not problem.status:  # it asked all possible sources
            return problem.without_credentials()
        return None

    def code_of(self, error: BaseException) -> str:
        code = getattr(error, "error_code", None)
        return str(getattr(code, "value", code) or "")  # codes are members of an enumeration

    def text_of(self, error: BaseException) -> str:
        return str(error).partition("\nRequestId:")[0]  # numbers follow


_lock = threading.Lock()
_tokens: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _token(credential: Any) -> str:
    """The token of a credential. Kept, because some credentials run a program for each token."""
    with _lock:
        token = _tokens.get(credential)
        if token is None or token.expires_on - time.time() < 300:  # it expires within five minutes
            token = _tokens[credential] = credential.get_token("https://storage.azure.com/.default")
        return str(token.token)
