"""The places where botocore finds credentials, in words, and which one has failed.

It is not imported here: the modules that find credentials are known by name.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

from growfs.remote.stores.s3.client import new_session

_FINDS_CREDENTIALS = frozenset(
    f"{package}.{module}" for package in ("botocore", "aiobotocore") for module in ("credentials", "tokens")
)
"""The modules that find and renew credentials."""
for _name in _FINDS_CREDENTIALS:  # they would log each failure with a traceback; it is raised if it matters
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class CredentialSource(NamedTuple):
    """A place where botocore finds credentials. words: its description. mend: what to do if it has no valid ones.

    errors: the classes of its errors that do not name it, and the operations that its service refuses.
    """

    words: str
    mend: str = ""
    errors: tuple[str, ...] = ()


CREDENTIAL_SOURCES = {
    "env": CredentialSource("AWS_ACCESS_KEY_ID in the environment"),
    "custom-process": CredentialSource("the credential_process of ~/.aws/config", "run that command, and fix it"),
    "sso": CredentialSource(
        "the single sign-on of ~/.aws/config",
        "run 'aws sso login{profile}'",
        ("SSOError", "TokenRetrievalError", "GetRoleCredentials"),
    ),
    "login": CredentialSource("aws login", "run 'aws login{profile}'", ("LoginError",)),
    "assume-role": CredentialSource(
        "a role that ~/.aws/config assumes",
        "check the role's trust policy and its source profile",
        ("AssumeRole",),
    ),
    "assume-role-with-web-identity": CredentialSource(
        "a role by web identity (AWS_WEB_IDENTITY_TOKEN_FILE)",
        "renew that file, or check the role's trust policy",
        ("AssumeRoleWithWebIdentity",),
    ),
    "container-role": CredentialSource("the role of the container", "check the role and its agent"),
    "iam-role": CredentialSource(
        "the role of the machine, from its metadata service (IMDS)", "check the role, and that IMDS answers"
    ),
}
"""By the names of botocore's providers."""


def source_of(provider: str) -> CredentialSource:
    """The source that a provider of botocore finds. provider: empty if unknown."""
    return CREDENTIAL_SOURCES.get(provider, CredentialSource(provider or "botocore"))


def mend(provider: str, options: dict[str, Any]) -> str:
    """What to do about credentials of a provider of botocore; empty if unknown. options: of s3fs."""
    advice = source_of(provider).mend
    return advice.format(profile=_login_profile(options.get("profile"))) if "{" in advice else advice


def _login_profile(name: str | None) -> str:
    """The option of the AWS CLI that names the profile to log in to: the end of a chain of source profiles."""
    session = new_session()
    profiles, seen = session.full_config.get("profiles", {}), set[str]()
    name = name or session.profile or "default"
    while name not in seen:
        seen.add(name)
        name = profiles.get(name, {}).get("source_profile", name)
    return "" if name == "default" else f" --profile {shlex.quote(name)}"


def failed_credentials(errors: Iterable[BaseException]) -> tuple[BaseException, str] | None:
    """The first of the errors that was raised while finding or renewing credentials, and the provider if it is known.

    This is determined from the modules that it passed through: each service that provides credentials has its own
    classes and codes.
    """
    for error in errors:
        frames = traceback.walk_tb(error.__traceback__)
        if any(frame.f_globals.get("__name__") in _FINDS_CREDENTIALS for frame, _ in frames):
            names = {
                getattr(error, "kwargs", {}).get("provider"),
                getattr(error, "operation_name", ""),
                *(base.__name__ for base in type(error).__mro__),
            }
            found = (each for each, source in CREDENTIAL_SOURCES.items() if names & {each, *source.errors})
            return error, next(found, "")
    return None
