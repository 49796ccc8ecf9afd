"""The client of S3 that signs requests: botocore's own, or that of s3fs for options that only s3fs knows.

Both find credentials, the region and the server as boto3 does. botocore's own is imported in half the time, because
s3fs brings aiobotocore and aiohttp; it sends no request for S3 itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_KEYS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_PLAIN = {*_KEYS, "anon", "client_kwargs", "config_kwargs", "requester_pays"}
"""Options of s3fs that are passed on to botocore as they are."""
_loader: Any = None  # of preload: what it has read, botocore's JSON descriptions, is used by all sessions


@dataclass(frozen=True, slots=True)
class Client:
    """boto: the client of botocore or aiobotocore, with its session. call: calls one of their methods for its result.

    complete: adds the parameters that the options ask for; takes a method of the client, and parameters for it.
    """

    session: Any
    boto: Any
    call: Callable[..., Any]
    complete: Callable[[Any, dict[str, Any]], dict[str, Any]]


def preload() -> None:
    """Import botocore and read its descriptions of S3 once, for a process that forks afterwards."""
    global _loader
    if _loader is not None:
        return
    with suppress(Exception):  # a wrong configuration is reported where a client is needed
        session = _new_session()
        # This client is made for what it imports and reads; the keys keep it from asking servers for others.
        session.create_client("s3", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-")
        _loader = session.get_component("data_loader")


def plain_client(options: dict[str, Any]) -> Client | None:
    """The client of botocore for options of s3fs; None if they need s3fs. Raises what botocore raises."""
    if not options.keys() <= _PLAIN:
        return None
    from botocore import UNSIGNED
    from botocore.config import Config

    keys = {_KEYS[name]: options[name] for name in _KEYS.keys() & options.keys() if options[name] is not None}
    more, config = {**keys, **options.get("client_kwargs", {})}, options.get("config_kwargs", {})
    if options.get("anon"):
        more = {name: value for name, value in more.items() if name not in _KEYS.values()}
        config = {**config, "signature_version": UNSIGNED}
    session = _new_session()
    payer = {"RequestPayer": "requester"} if options.get("requester_pays") else {}
    client = session.create_client("s3", config=Config(**config), **more)
    return Client(session, client, _call, lambda _, parameters: payer | parameters)


def library_client(fs: Any, bucket: str) -> Client:
    """The client of s3fs for a bucket. Not to be called from its event loop's thread. Raises what s3fs raises."""
    from fsspec.asyn import sync

    def call(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return sync(fs.loop, function, *args, **more)

    async def find() -> Any:
        await fs.set_session()
        return await fs.get_s3(bucket)

    client = call(find)
    return Client(fs.session, client, call, lambda method, parameters: fs._get_s3_method_kwargs(method, **parameters))


def _new_session() -> Any:
    import botocore.session

    session = botocore.session.Session()
    if _loader is not None:
        session.register_component("data_loader", _loader)
    return session


def _call(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return function(*args, **more)
