"""The client of S3 that signs requests: botocore's own, or that of s3fs for options that only s3fs knows.

Both find credentials, the region and the server as boto3 does. botocore's own is imported in half the time, because
s3fs imports aiobotocore and aiohttp; it sends no S3 requests itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from growfs.errors import RemoteDenied
from growfs.remote.stores.s3.credentials import Renewal, SharedCredentials
from growfs.remote.stores.s3.static_settings import OPTION_KEYS, keys_in

_PLAIN = {*OPTION_KEYS, "anon", "client_kwargs", "config_kwargs", "profile", "requester_pays"}
"""Options of s3fs that are passed on to botocore unchanged."""
REFUSED_S = 1.0
"""How long credentials that could not be obtained are not requested again. An outage lasts longer."""
_loader: Any = None  # from preload: botocore's JSON descriptions, shared by all sessions
_shared_credentials: SharedCredentials | None = None  # from preload: shared with the processes forked later
_shared_renewal = Renewal()  # of the above: a remote that is opened anew does not ask for others at once


class Client(NamedTuple):
    """boto: the client of botocore or aiobotocore, with its session. call: calls one of their methods for its result.

    complete: adds the parameters that the options require; takes a method of the client, and parameters for it.
    """

    session: Any
    boto: Any
    call: Callable[..., Any]
    complete: Callable[[Any, dict[str, Any]], dict[str, Any]]


def share_credentials() -> None:
    """Make the processes that this one forks share credentials."""
    global _shared_credentials
    _shared_credentials = _shared_credentials or SharedCredentials(REFUSED_S)


def preload() -> None:
    """Import botocore and read its descriptions of S3 once, in a process that forks afterwards."""
    global _loader
    if _loader is not None:
        return
    with suppress(Exception):  # a wrong configuration is reported when a client is needed
        session = new_session()
        # Created for its imports and reads only; the keys keep it from asking servers for credentials.
        session.create_client("s3", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-")
        _loader = session.get_component("data_loader")


def plain_client(options: dict[str, Any]) -> Client | None:
    """The botocore client for options of s3fs; None if they need s3fs. Raises botocore's errors."""
    if not options.keys() <= _PLAIN:
        return None
    from botocore import UNSIGNED
    from botocore.config import Config

    more, config = {**keys_in(options), **options.get("client_kwargs", {})}, options.get("config_kwargs", {})
    if options.get("anon"):
        more = {name: value for name, value in more.items() if name not in OPTION_KEYS.values()}
        config = {**config, "signature_version": UNSIGNED}
    session = new_session(options.get("profile"))
    if _shared_credentials:
        _shared_credentials.of_session(session)
    payer = {"RequestPayer": "requester"} if options.get("requester_pays") else {}
    accept_tenants(session)
    client = session.create_client("s3", config=Config(**config), **more)
    return Client(session, client, _call, lambda _, parameters: payer | parameters)


def library_client(fs: Any, bucket: str) -> Client:
    """The s3fs client for a bucket. Not to be called from its event loop's thread. Raises errors of s3fs."""
    from fsspec.asyn import sync

    def call(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return sync(fs.loop, function, *args, **more)

    async def find() -> Any:
        await fs.set_session()
        return await fs.get_s3(bucket)

    client = call(find)
    return Client(fs.session, client, call, lambda method, parameters: fs._get_s3_method_kwargs(method, **parameters))


def accept_tenants(session: Any) -> None:
    """Let a name be tenant:bucket, as in Ceph (docs.ceph.com/en/latest/radosgw/multitenancy); botocore refuses it."""
    from botocore.handlers import validate_bucket_name

    session.unregister("before-parameter-build.s3", validate_bucket_name)


def forget_credentials(client: Client, since: float, refusal: RemoteDenied) -> None:
    """Make all processes of the mount look for other credentials than this client's, unless that was tried just now.

    A store refused a request that was made with them at `since` (monotonic).
    """
    if not _shared_credentials or not _shared_renewal.is_due(since, refusal):
        return
    if refused := client.call(client.session.get_credentials):
        _shared_credentials.forget(refused.access_key)
        _shared_renewal.note()


def note_served(renewal: Renewal, at: float, was_refused: bool = False) -> None:
    """Note that a request of a client was served, as in Renewal.note_served. renewal: of that client."""
    for each in (renewal, _shared_renewal):
        each.note_served(at, was_refused)


def new_session(profile: str | None = None) -> Any:
    """A session of botocore. profile: by default, the one that the environment names."""
    import botocore.session

    session = botocore.session.Session(profile=profile)
    if _loader is not None:
        session.register_component("data_loader", _loader)
    return session


def _call(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return function(*args, **more)
