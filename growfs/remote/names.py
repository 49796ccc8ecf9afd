"""Names are data from strangers: which of them may become local files, and how a URL is shown without its secrets."""

from __future__ import annotations

import re

COMPONENT_BYTES_MAX = 255  # NAME_MAX of every Linux filesystem
PATH_BYTES_MAX = 4000  # PATH_MAX is 4096, and the cache folder comes in front
FILE_AND_DIRECTORY = "is a file and a directory"
DUPLICATE_NAME = "name comes twice"
RESERVED = ".growfs"  # the mount's own folder

_USERINFO = re.compile(r"(?<!abfs)(?<!abfss)(?<!az)://[^/?#\s]*@", re.IGNORECASE)  # abfs://CONTAINER@account is a name
_SIGNATURE = re.compile(
    r"([?&](?:x-amz-[\w-]+|x-goog-[\w-]+|signature|sig|awsaccesskeyid|googleaccessid|policy|key-pair-id"
    r"|(?!max-keys=)[\w-]*(?:token|key|secret|password|credential|auth)[\w-]*)=)[^&#\s'\"]*",
    re.IGNORECASE,
)


def reason_to_skip(path: str) -> str | None:
    """Why path cannot be a file below a local folder; None if it can. The reasons are few and fixed, to be counted."""
    odd = path[:1] in "./" or path[-1] == "/" or "//" in path or "/." in path or "\0" in path
    if not odd and len(path) <= COMPONENT_BYTES_MAX and path.isascii():
        return None  # as nearly all names are, so this comes first
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
    if components[0] == RESERVED.encode():
        return f"{RESERVED} is reserved"
    return None


def redact(text: str) -> str:
    """text with the user:password@ of each URL in it removed, and the values of signing query parameters masked."""
    return _SIGNATURE.sub(r"\1***", _USERINFO.sub("://", text))


def extension(path: str) -> str:
    """What follows the last dot of the file's name; empty where there is none."""
    name = path.rsplit("/", 1)[-1].lstrip(".")
    return name.rpartition(".")[2] if "." in name else ""


def template_fields(path: str) -> dict[str, str]:
    """What a template may take of a path: the fields of `group_of`, and {suffix}, the extension without its dot."""
    parent, _, name = path.rpartition("/")
    suffix = extension(path)
    bare = name.removesuffix(f".{suffix}") if suffix else name
    return {"stem": f"{parent}/{bare}" if parent else bare, "name": bare, "parent": parent, "suffix": suffix}
