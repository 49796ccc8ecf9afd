"""Names from a remote are untrusted: which ones may become local files, and how to show URLs without secrets."""

from __future__ import annotations

import re

COMPONENT_BYTES_MAX = 255  # NAME_MAX of every Linux filesystem
PATH_BYTES_MAX = 4000  # PATH_MAX is 4096, including the path of the cache folder
FOLDERS_MAX = 500  # functions that call themselves for each folder of a path stay below Python's limit of 1000 calls
FILE_AND_DIRECTORY = "is a file and a directory"
DUPLICATE_NAME = "name occurs twice"
SIZE_MAX = 1 << 47  # 128 TiB: more than any store holds in one file, and sums of it fit 64 bits
RESERVED = ".growfs"  # the folder of growfs in a mount

_USERINFO = re.compile(r"(?<!abfs)(?<!abfss)(?<!az)://[^/?#\s]*@", re.IGNORECASE)  # abfs://CONTAINER@account is a name
_SIGNATURE = re.compile(
    r"([?&](?:x-amz-[\w-]+|x-goog-[\w-]+|signature|sig|awsaccesskeyid|googleaccessid|policy|key-pair-id"
    r"|(?!max-keys=)[\w-]*(?:token|key|secret|password|credential|auth)[\w-]*)=)[^&#\s'\"]*",
    re.IGNORECASE,
)


def reason_to_skip(path: str, size: int | None = None) -> str | None:
    """Why path cannot be a file below a local folder; None if it can. The reasons are few and fixed, to be counted.

    size: in bytes, if the remote reports it.
    """
    if size is not None and not 0 <= size <= SIZE_MAX:
        return "size is invalid"
    unusual = path[:1] in "./" or path[-1] == "/" or "//" in path or "/." in path or "\0" in path
    if not unusual and len(path) <= COMPONENT_BYTES_MAX and path.isascii():
        return None  # true for nearly all names, so it is checked first
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "name is not UTF-8"
    components = encoded.split(b"/")
    if b"" in components:
        return "empty path component"
    if b"." in components or b".." in components:
        return "'.' or '..' in path"
    if b"\0" in encoded:
        return "NUL in path"
    if max(map(len, components)) > COMPONENT_BYTES_MAX:
        return f"path component over {COMPONENT_BYTES_MAX} bytes"
    if len(encoded) > PATH_BYTES_MAX:
        return f"path over {PATH_BYTES_MAX} bytes"
    if len(components) > FOLDERS_MAX + 1:
        return f"more than {FOLDERS_MAX} folders deep"
    if components[0] == RESERVED.encode():
        return f"{RESERVED} is reserved"
    return None


def redact(text: str) -> str:
    """The text without user:password@ in its URLs, and with the values of signing query parameters masked."""
    return _SIGNATURE.sub(r"\1***", _USERINFO.sub("://", text))


def extension(path: str) -> str:
    """The part after the last dot of the file name; empty if there is none."""
    name = path.rsplit("/", 1)[-1].lstrip(".")
    return name.rpartition(".")[2] if "." in name else ""


def template_fields(path: str) -> dict[str, str]:
    """The fields that a template may use: {stem}, {name} and {parent} of a path, and {suffix} without its dot."""
    parent, _, name = path.rpartition("/")
    suffix = extension(path)
    bare = name.removesuffix(f".{suffix}") if suffix else name
    return {"stem": f"{parent}/{bare}" if parent else bare, "name": bare, "parent": parent, "suffix": suffix}


DNS_SCHEME = "dns://"
"""Prefix of a name whose DNS addresses are the nodes."""


def join_address(host: str, port: int) -> str:
    """HOST:PORT; an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
