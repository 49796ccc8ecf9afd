"""How files are requested by plain GETs from stores whose library has no signed URLs, or cannot sign without a key."""

from __future__ import annotations

import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from growfs.remote.http.connection import FallBack, HttpRequest

SIGNED_S = 3600
AZURE_VERSION = "2021-12-02"  # the oldest of these has strong ETags, and the MD5 of the whole file beside a range
AZURE_SCOPE = "https://storage.azure.com/.default"
TOKEN_LEFT_S_MIN = 300


def google(fs: Any, key: str) -> HttpRequest:
    """The default credentials of a machine cannot sign a URL, and have a token."""
    headers: dict[str, str] = {}
    fs.credentials.apply(headers)  # a new token, if it is about to expire
    server = fs.url(key).partition("/download/")[0]
    return HttpRequest(f"{server}/{quote(key)}", headers)


def azure(fs: Any, key: str) -> HttpRequest:
    """By an account key, else a token of Microsoft Entra ID, else a shared access signature, else by nothing."""
    headers = {"x-ms-version": AZURE_VERSION}
    if fs.account_key or "accountkey=" in (fs.connection_string or "").lower():
        return HttpRequest(fs.sign(key, expiration=SIGNED_S), headers)
    if fs.sync_credential is not None:
        headers["Authorization"] = f"Bearer {_azure_token(fs.sync_credential)}"
    container, name, _ = fs.split_path(key)
    return HttpRequest(fs.service_client.get_blob_client(container, name).url, headers)


def webdav(fs: Any, key: str) -> HttpRequest:
    """With a name and a password, if there are any."""
    http, auth = fs.client.http, fs.storage_options.get("auth")
    is_plain = auth is None or isinstance(auth, (list, tuple))
    if fs.storage_options.keys() - {"base_url", "auth", "timeout"} or not is_plain:
        raise FallBack("an option that only the library knows")
    headers = {}
    if auth:
        headers["Authorization"] = f"Basic {b64encode(':'.join(auth).encode()).decode()}"
    return HttpRequest(f"{str(http.base_url).rstrip('/')}/{quote(key)}", headers)


PLAIN_GETS: dict[str, Callable[[Any, str], HttpRequest]] = {"gs": google, "az": azure, "webdav": webdav}
"""By store: a function that makes a GET, given the library's filesystem and the file's name there."""

_azure_lock = threading.Lock()
_azure_tokens: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _azure_token(credential: Any) -> str:
    """The token of a credential. Some run a program for each that they are asked for, so it is kept."""
    with _azure_lock:
        token = _azure_tokens.get(credential)
        if token is None or token.expires_on - time.time() < TOKEN_LEFT_S_MIN:
            token = _azure_tokens[credential] = credential.get_token(AZURE_SCOPE)
        return str(token.token)
