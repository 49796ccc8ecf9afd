"""Services that hand out credentials for a while: the metadata service of a machine (IMDS), STS, and a process."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

from tests.s3.proxy import Fault, Request, s3_error
from tests.servers import QuietHandler, serving

ROLE = "growfs-role"
KINDS = ("imds", "web-identity", "assume-role", "process")


class Issuer:
    """Issues credentials; those that were revoked, or that it never issued, are refused with ExpiredToken.

    issued: how many. lasts_s: how long new ones last, as they say themselves. Only `revoke` makes the store refuse
    them.
    """

    def __init__(self, lasts_s: float = 3600) -> None:
        self.issued = 0
        self.lasts_s = lasts_s
        self._valid: set[str] = set()
        self._lock = threading.Lock()
        self._refuse = s3_error(403, "ExpiredToken")

    def issue(self) -> dict[str, str]:
        """New credentials, as IMDS has them."""
        with self._lock:
            self.issued += 1
            key = f"ASIA{self.issued:08}"
            self._valid.add(key)
        end = datetime.now(UTC) + timedelta(seconds=self.lasts_s)
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

    kind: one of KINDS.
    """

    class Handler(QuietHandler):
        def do_PUT(self) -> None:  # a session of IMDSv2
            self.reply("a-session")

        def do_GET(self) -> None:
            if self.path.startswith("/credentials"):
                new = issuer.issue()
                new["SessionToken"] = new.pop("Token")
                self.reply(json.dumps({"Version": 1, **new}))
            elif self.path.endswith(f"/{ROLE}"):
                self.reply(json.dumps(issuer.issue()))
            else:
                self.reply(ROLE)

        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            (action,) = body["Action"]
            new = issuer.issue()
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
            f"import urllib.request\nprint(urllib.request.urlopen({url + 'credentials'!r}).read().decode())"
        )
        source = 'aws_access_key_id = "AKIASOURCE"\naws_secret_access_key = source'
        role = f"role_arn = arn:aws:iam::123456789012:role/{ROLE}"
        lines = {
            "imds": "",
            "web-identity": f"{role}\nweb_identity_token_file = {token}",
            "assume-role": f"{role}\nsource_profile = source\n[profile source]\n{source}",
            "process": f"credential_process = {sys.executable} {program}",
        }[kind]
        config.write_text(f"[default]\nregion = us-east-1\n{lines}\n")
        yield {
            "AWS_CONFIG_FILE": str(config),
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
            "AWS_EC2_METADATA_DISABLED": "false" if kind == "imds" else "true",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "AWS_ENDPOINT_URL_STS": url.rstrip("/"),
        }
