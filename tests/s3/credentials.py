"""Services that hand out credentials for a while: the metadata service of a machine (IMDS), STS, and a process."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs

from tests.harness import Growfs
from tests.s3.proxy import Fault, Proxy, Request, none, s3_error
from tests.servers import QuietHandler, serving

ROLE = "growfs-role"
SSO_URL = "https://growfs.test/start"
KINDS = ("imds", "web-identity", "assume-role", "process")
MENDS = {
    "web-identity": "renew that file, or check the role's trust policy",
    "process": "run that command, and fix it",
    "sso": "run 'aws sso login --profile team'",
}
"""What to do when a kind of service refuses."""


NO_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
}


def without_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which no credentials of this machine are found."""
    return {
        name: value for name, value in env.items() if not name.startswith("AWS_") or name == "AWS_CA_BUNDLE"
    } | NO_CREDENTIALS


class Issuer:
    """Issues credentials; those that were revoked, or that it never issued, are refused with ExpiredToken.

    issued: how many. lasts_s: how long new ones last, as they say themselves. Only `revoke` makes the store refuse
    them. refuses: it issues none. refused: how often it was asked for some meanwhile.
    """

    def __init__(self, lasts_s: float = 3600) -> None:
        self.issued = 0
        self.refuses = False
        self.refused = 0
        self.lasts_s = lasts_s
        self._valid: set[str] = set()
        self._lock = threading.Lock()
        self._refuse = s3_error(403, "ExpiredToken")

    def issue(self) -> dict[str, str] | None:
        """New credentials, as IMDS has them; None while it refuses."""
        with self._lock:
            if self.refuses:
                self.refused += 1
                return None
            self.issued += 1
            key = f"ASIA{self.issued:08}"
            self._valid.add(key)
        end = datetime.now(timezone.utc) + timedelta(seconds=self.lasts_s)
        return {
            "Code": "Success",
            "AccessKeyId": key,
            "SecretAccessKey": f"secret-of-{key}",
            "Token": f"token-of-{key}",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def revoke(self) -> None:
        """Have the store refuse all that were issued so far."""
        with self._lock:
            self._valid.clear()

    def choose(self, request: Request) -> Fault | None:
        """For a proxy: refuse a request that is not signed with valid credentials."""
        with self._lock:
            return None if request.scope[:1] and request.scope[0] in self._valid else self._refuse


@contextmanager
def environment(kind: str, issuer: Issuer, folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which the AWS libraries get credentials of the issuer.

    kind: one of KINDS or of MENDS. The service refuses as it does when what it asks for has expired.
    """

    class Handler(QuietHandler):
        def do_PUT(self) -> None:  # a session of IMDSv2
            self.reply("a-session")

        def do_GET(self) -> None:
            if not (self.path.startswith(("/credentials", "/federation")) or self.path.endswith(f"/{ROLE}")):
                self.reply(ROLE)
            elif (new := issuer.issue()) is None:
                self.reply("{}", 401, {"x-amzn-ErrorType": "UnauthorizedException"})
            elif self.path.startswith("/credentials"):
                new["SessionToken"] = new.pop("Token")
                self.reply(json.dumps({"Version": 1, **new}))
            elif self.path.startswith("/federation"):
                names = {"accessKeyId": "AccessKeyId", "secretAccessKey": "SecretAccessKey", "sessionToken": "Token"}
                end = datetime.strptime(new["Expiration"], "%Y-%m-%dT%H:%M:%S%z").timestamp() * 1000
                role = {name: new[field] for name, field in names.items()} | {"expiration": end}
                self.reply(json.dumps({"roleCredentials": role}))
            else:
                self.reply(json.dumps(new))

        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            (action,) = body["Action"]
            if (new := issuer.issue()) is None:
                error = "<Error><Code>ExpiredTokenException</Code><Message>Token expired</Message></Error>"
                self.reply(f"<ErrorResponse>{error}</ErrorResponse>", 400, {"Content-Type": "text/xml"})
                return
            names = {"AccessKeyId", "SecretAccessKey", "Expiration"}
            fields = "".join(f"<{name}>{new[name]}</{name}>" for name in sorted(names))
            self.reply(
                f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
                f"{fields}<SessionToken>{new['Token']}</SessionToken></Credentials></{action}Result></{action}Response>",
                headers={"Content-Type": "text/xml"},
            )

    with serving(Handler) as url:
        config, token, program = (folder / name for name in ("config", "token", "credentials.py"))
        token.write_text("an identity")
        program.write_text(
            f"import sys, urllib.request\ntry: print(urllib.request.urlopen({url + 'credentials'!r}).read().decode())\n"
            "except OSError as error: sys.exit(str(error))"
        )
        source = 'aws_access_key_id = "AKIASOURCE"\naws_secret_access_key = source'
        role = f"role_arn = arn:aws:iam::123456789012:role/{ROLE}"
        lines = {
            "imds": "",
            "web-identity": f"{role}\nweb_identity_token_file = {token}",
            "assume-role": f"{role}\nsource_profile = source\n[profile source]\n{source}",
            "process": f"credential_process = {sys.executable} {program}",
            "sso": "role_arn = arn:aws:iam::123456789012:role/other\nsource_profile = team\n[profile team]\n"
            f"sso_start_url = {SSO_URL}\nsso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = {ROLE}",
        }[kind]
        config.write_text(f"[default]\nregion = us-east-1\n{lines}\n")
        token_file = folder / ".aws/sso/cache" / f"{hashlib.sha1(SSO_URL.encode()).hexdigest()}.json"
        token_file.parent.mkdir(parents=True)
        token_file.write_text(json.dumps({"accessToken": "a token", "expiresAt": "2099-01-01T00:00:00Z"}))
        yield {
            "HOME": str(folder),
            "AWS_ENDPOINT_URL_SSO": url.rstrip("/"),
            "AWS_CONFIG_FILE": str(config),
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
            "AWS_EC2_METADATA_DISABLED": "false" if kind == "imds" else "true",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "AWS_ENDPOINT_URL_STS": url.rstrip("/"),
        }


@contextmanager
def only_credentials_of(issuer: Issuer, kind: str, growfs: Growfs, proxy: Proxy, folder: Path) -> Iterator[None]:
    """In the block, growfs has no others, and the proxy refuses requests that are not signed with valid ones.

    kind: one of KINDS or of MENDS.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        growfs.env.pop(name)
    with environment(kind, issuer, folder) as env:
        growfs.env.update(env)
        proxy.fault = issuer.choose
        yield
        proxy.fault = none
