"""The client of S3 that signs requests: botocore's own, or that of s3fs for options that only s3fs knows.

Both find credentials, the region and the server as boto3 does. botocore's own is imported in half the time, because
s3fs imports aiobotocore and aiohttp; it sends no S3 requests itself.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from growfs.errors import RemoteDenied
from growfs.remote.stores.s3.credentials import Renewal, SharedCredentials
from growfs.remote.stores.s3.static_settings import OPTION_KEYS

_PLAIN = {*OPTION_KEYS, "anon", "client_kwargs", "config_kwargs", "profile", "requester_pays"}
"""Options of s3fs that are passed on to botocore unchanged."""
_FINDS_CREDENTIALS = frozenset(
    f"{package}.{module}" for package in ("botocore", "aiobotocore") for module in ("credentials", "tokens")
)
"""The modules that find and renew credentials."""
for _name in _FINDS_CREDENTIALS:  # they would log each failure with a traceback; it is raised if it matters
    logging.getLogger(_name).setLevel(logging.CRITICAL)
REFUSED_S = 1.0
"""How long credentials that could not be obtained are not requested again. An outage lasts longer."""
_loader: Any = None  # from preload: botocore's JSON descriptions, shared by all sessions
_shared_credentials: SharedCredentials | None = None  # from preload: shared with the processes forked later
_shared_renewal = Renewal()  # of the above: a remote that is opened anew does not ask for others at once


class CredentialSource(NamedTuple):
    """A place where botocore finds credentials. words: its description. mend: what to do if it has no valid ones."""

    words: str
    mend: str = ""


CREDENTIAL_SOURCES = {
    "env": CredentialSource("AWS_ACCESS_KEY_ID in the environment"),
    "custom-process": CredentialSource("the credential_process of ~/.aws/config", "run that command, and fix it"),
    "sso": CredentialSource("the single sign-on of ~/.aws/config", "run 'aws sso login{profile}'"),
    "login": CredentialSource("aws login", "run 'aws login{profile}'"),
    "assume-role": CredentialSource(
        "a role that ~/.aws/config assumes", "check the role's trust policy and its source profile"
    ),
    "assume-role-with-web-identity": CredentialSource(
        "a role by web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", "renew that file, or check the role's trust policy"
    ),
    "container-role": CredentialSource("the role of the container", "check the role and its agent"),
    "iam-role": CredentialSource(
        "the role of the machine, from its metadata service (IMDS)", "check the role, and that IMDS answers"
    ),
}
"""By the names of botocore's providers."""


def mend(provider: str, options: dict[str, Any]) -> str:
    """What to do about credentials of a provider of botocore; empty if unknown. options: of s3fs."""
    advice = CREDENTIAL_SOURCES[provider].mend if provider in CREDENTIAL_SOURCES else ""
    return advice.format(profile=_login_profile(options.get("profile"))) if "{" in advice else advice


def _login_profile(name: str | None) -> str:
    """The option of the AWS CLI that names the profile to log in to: the end of a chain of source profiles."""
    session = _new_session()
    profiles, seen = session.full_config.get("profiles", {}), set[str]()
    name = name or session.profile or "default"
    while name not in seen:
        seen.add(name)
        name = profiles.get(name, {}).get("source_profile", name)
    return "" if name == "default" else f" --profile {shlex.quote(name)}"


def failed_credentials(errors: Iterable[BaseException]) -> tuple[BaseException, str] | None:
    """The first of the errors that was raised while finding or renewing credentials, and the provider.

    This is determined from where it was raised: each service that provides credentials has its own classes and codes.
    """
    for error in errors:
        frames = [
            frame
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") in _FINDS_CREDENTIALS
        ]
        if frames:  # the last provider failed: a role may be assumed with the credentials of another
            owners = [frame.f_locals.get("self") for frame in frames]
            names = [getattr(owner, "METHOD", None) or getattr(owner, "method", None) for owner in owners]
            return error, next((str(name) for name in reversed(names) if name), "")
    return None


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
        session = _new_session()
        # Created for its imports and reads only; the keys keep it from asking servers for credentials.
        session.create_client("s3", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-")
        _loader = session.get_component("data_loader")


def plain_client(options: dict[str, Any]) -> Client | None:
    """The botocore client for options of s3fs; None if they need s3fs. Raises botocore's errors."""
    if not options.keys() <= _PLAIN:
        return None
    from botocore import UNSIGNED
    from botocore.config import Config

    keys = {OPTION_KEYS[name]: options[name] for name in OPTION_KEYS if options.get(name) is not None}
    more, config = {**keys, **options.get("client_kwargs", {})}, options.get("config_kwargs", {})
    if options.get("anon"):
        more = {name: value for name, value in more.items() if name not in OPTION_KEYS.values()}
        config = {**config, "signature_version": UNSIGNED}
    session = _new_session(options.get("profile"))
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


def _new_session(profile: str | None = None) -> Any:
    import botocore.session

    session = botocore.session.Session(profile=profile)
    if _loader is not None:
        session.register_component("data_loader", _loader)
    return session


def _call(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return function(*args, **more)
