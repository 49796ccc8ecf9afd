"""`Access`: how a store is reached, in words: by which server, and with credentials from where. It holds no secret."""

from __future__ import annotations

import os
from dataclasses import dataclass

SERVERS = {"gs": "https://storage.googleapis.com", "hf": "https://huggingface.co"}
VARIABLES = {
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "hf": ("HF_TOKEN",),
}
"""Environment variables from which the stores' libraries take credentials."""


@dataclass(frozen=True, slots=True)
class Access:
    """server: the URL of the store's server, without a path; empty where it is not known. path: of the bucket there.

    credentials: where they come from, in words; empty if there are none, and they are needed. region: empty if the
    store has none.
    """

    server: str = ""
    credentials: str = ""
    region: str = ""
    path: str = ""


def credentials_of(store: str, has_options: bool, anon: bool) -> str:
    """Where the credentials of a store come from, as far as this can be seen without its library."""
    if anon:
        return "none, because of --anon"
    if has_options:
        return "by --storage-option"
    found = [name for name in VARIABLES.get(store, ()) if os.environ.get(name)]
    if found:
        return f"{found[0]} in the environment"
    return "none" if store in ("http", "webdav") else "left to the store's library"
