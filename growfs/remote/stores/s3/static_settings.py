"""`StaticSettings`: the keys and the address of a bucket, found without botocore if they are simple.

botocore decides where a bucket is, and which credentials a request gets. But importing it, and reading its description
of S3, takes as long as everything else before the first request. So the simplest case is decided here: keys that do not
expire, from the options, the environment or the files of `aws configure`, for AWS or for another server. Everything
else is botocore's: an option, a variable or a setting that is not named here leaves the decision to it. A test compares
the two.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from growfs.remote.http.connection import TIMEOUTS

CONFIG = {
    "connect_timeout": TIMEOUTS.connect_s,
    "read_timeout": TIMEOUTS.read_s,
    "signature_version": "s3v4",  # botocore's default for a signed URL is v2
    "retries": {"total_max_attempts": 1},  # botocore's own
}
"""The configuration of botocore unless options change it."""
DEFAULT_REGION = "us-east-1"

_VARIABLES = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_DEFAULT_OUTPUT", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_PAGER"),
}
OPTION_KEYS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_KEYS = set(OPTION_KEYS.values())
_OPTIONS = {"anon", "client_kwargs", "config_kwargs", *OPTION_KEYS}
_SETTINGS = _KEYS | {"region", "output", "cli_pager"}
_BUCKET = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""No dots, which move the bucket into the path, and no suffix of a special kind of bucket."""
_REGION = re.compile(r"(af|ap|ca|eu|il|me|mx|sa|us)-(north|south|central|(north|south)?(east|west))-\d")
"""The regions of AWS that share its usual domain."""
_SERVER = re.compile(r"https?://(?!.*amazonaws)[\w.-]+(:\d+)?(/[\w./-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StaticSettings:
    """What requests to a bucket need."""

    base: str
    """The URL of the bucket, with a slash at the end."""
    region: str
    access_key: str | None
    """None if requests are not signed."""
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    ca_bundle: str | None
    """The path of the certificates to trust."""


def static_settings(options: Mapping[str, Any], bucket: str) -> StaticSettings | None:
    """The settings for a bucket; None if only botocore knows them. options: of s3fs."""
    client = options.get("client_kwargs", {})
    is_known = options.keys() <= _OPTIONS and client.keys() <= {"endpoint_url", "region_name"}
    if not is_known or options.get("config_kwargs", CONFIG) != CONFIG or not _BUCKET.fullmatch(bucket):
        return None
    variables = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "BOTO_"))}
    if not (variables.keys() <= _VARIABLES and all(variables.values())):
        return None
    files = _read_files(variables)
    if files is None:
        return None
    found = {name.lower(): value for name, value in variables.items() if name.lower() in _KEYS}
    keys = next((each for each in (keys_in(options), found, *files) if each.keys() & _KEYS), {})
    if options.get("anon"):
        keys = {}
    elif not (keys.get("aws_access_key_id") and keys.get("aws_secret_access_key")):
        return None
    configured = next((file["region"] for file in files if "region" in file), DEFAULT_REGION)
    region = client.get("region_name") or variables.get("AWS_DEFAULT_REGION") or configured
    server = server_in(client)
    if not _REGION.fullmatch(region) or (server and not _SERVER.fullmatch(server)):
        return None
    return StaticSettings(
        f"{server.rstrip('/')}/{bucket}/" if server else in_region(f"https://{bucket}.s3.amazonaws.com/", region),
        region,
        keys.get("aws_access_key_id"),
        keys.get("aws_secret_access_key", ""),
        keys.get("aws_session_token"),
        variables.get("AWS_CA_BUNDLE"),
    )


def keys_in(options: Mapping[str, Any]) -> dict[str, str]:
    """The credentials among the options of s3fs, under the names that botocore has for them."""
    return {OPTION_KEYS[name]: options[name] for name in OPTION_KEYS if options.get(name) is not None}


def server_in(client_options: Mapping[str, Any]) -> str | None:
    """The URL of the server, if the options of a client of botocore or the environment give one."""
    variables = map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    return client_options.get("endpoint_url") or next(filter(None, variables), None)


def in_region(url: str, region: str) -> str:
    """The URL of a bucket, at the server of its region if it is at the one of all regions.

    That one refuses buckets of regions that were opened after March 2019 (docs.aws.amazon.com: VirtualHosting).
    """
    is_global = region in (DEFAULT_REGION, "aws-global")
    return url if is_global else url.replace(".s3.amazonaws.com/", f".s3.{region}.amazonaws.com/", 1)


def _read_files(variables: Mapping[str, str]) -> list[Mapping[str, str]] | None:
    """The default profile in the file with credentials, and in the one with settings; None if it has others than these.

    In this order, as that is also botocore's (boto3.amazonaws.com: guide/credentials).
    """
    paths = (
        variables.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        variables.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    profiles: list[Mapping[str, str]] = []
    for path in paths:
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.path.expanduser(os.path.expandvars(path)), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            return None
        profile = dict(parser["default"]) if parser.has_section("default") else {}
        if parser.defaults() or not profile.keys() <= _SETTINGS or not all(profile.values()):
            return None
        if any(section.split() == ["profile", "default"] for section in parser.sections()):
            return None
        profiles.append(profile)
    return profiles
