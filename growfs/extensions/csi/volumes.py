"""What a pod asks for: a URL, options and credentials, from a CSI volume. No I/O.

Whoever may create pods writes inline volumes, and their daemon runs as root on the node. So an inline volume can
neither name files of the node nor run code there, and one that names a server gets nothing that the driver could give
away to it. Only an administrator can create a PersistentVolume.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from growfs.client.mount_command import config_text
from growfs.daemon.options import Options, all_rows, flag_name
from growfs.errors import UsageError
from growfs.remote.names import redact
from growfs.remote.stores.fsspec import scheme_of
from growfs.remote.stores.local import LocalRemote
from growfs.remote.stores.registry import STORES, store_class
from growfs.remote.stores.web import HttpRemote

IS_INLINE = "csi.storage.k8s.io/ephemeral"
"""Set by kubelet, if the CSIDriver has podInfoOnMount: "false" for a PersistentVolume. A pod cannot override it."""
REMOTE_SCHEMES = frozenset(scheme for store in STORES if store is not LocalRemote for scheme in store.schemes)
CREDENTIALS = frozenset[str]().union(*(store.secret_variables for store in STORES))
"""The keys that a secret may have. Others could run code, as LD_PRELOAD does, and AWS_CONFIG_FILE."""


@dataclass(frozen=True)
class Volume:
    """A volume. config: its options, in the form of a file for --config. credentials: environment variables.

    is_isolated: its pod has chosen the server, so no credentials of the driver may reach the process that mounts.
    """

    id: str
    url: str
    config: str = field(repr=False)
    credentials: Mapping[str, str] = field(repr=False)
    is_isolated: bool = False

    @classmethod
    def parse(
        cls,
        attributes: Mapping[str, str],
        secrets: Mapping[str, str],
        defaults: Mapping[str, Any],
        key: bytes,
    ) -> Volume:
        """defaults: options by field name, of all volumes. key: keeps the id from revealing the secrets.

        Volumes have the same id if and only if they have the same URL, options and secrets. Each id has a cache of its
        own, so that nobody reads what was fetched with other credentials. Raises UsageError.
        """
        own = "k8s.io/", "kubernetes.io/"  # attributes of Kubernetes itself
        given = {name: text for name, text in attributes.items() if not any(part in name for part in own)}
        url = given.pop("url", "")
        if not url:
            raise UsageError("the volume has no url; set one in its volumeAttributes, such as s3://bucket/train")
        options = options_of(given)
        if wrong := sorted(set(secrets) - CREDENTIALS):
            raise UsageError(
                f"the secret contains the key {wrong[0]}; the allowed keys are {', '.join(sorted(CREDENTIALS))}"
            )
        is_isolated = False
        if attributes.get(IS_INLINE) != "false":
            _check_inline(url, options)
            is_isolated = _chooses_server(url, options, secrets)
        # The driver's storage options may hold its credentials.
        inherited = {name: value for name, value in defaults.items() if not (is_isolated and name == "storage_option")}
        options = {**inherited, **options}
        content = json.dumps([url, options, dict(secrets)], sort_keys=True, default=str)
        id = hmac.new(key, content.encode(), hashlib.sha256).hexdigest()[:16]
        options["cache_dir"] = str(Options.parse(options).cache_dir / id)
        return cls(id, url, config_text(options), dict(secrets), is_isolated)


def options_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Options by field name, from text by flag without its dashes. Raises UsageError.

    A flag is "true" or "false". Several values are written on several lines.
    """
    rows = {flag_name(name)[2:]: row for name, row in all_rows().items()}
    options: dict[str, Any] = {}
    for name, text in given.items():
        if name not in rows:
            near = get_close_matches(name, ["url", *rows], 1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"{name}: no such option of a volume; {guess}growfs mount --help lists the options")
        row = rows[name]
        if row.default is False:
            options[row.name] = {"true": True, "false": False}.get(text, text)
        else:
            options[row.name] = text.splitlines() if row.metadata.get("repeatable") else text
    return options


def _check_inline(url: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if a pod may not ask for this."""
    remedy = "so a pod may not request it; an administrator can create a PersistentVolume for it"
    if scheme_of(url) not in REMOTE_SCHEMES or "::" in url:  # fsspec's chained URLs may lead anywhere
        raise UsageError(f"{redact(url)}: may be on the node itself, {remedy}")
    for name in sorted(name for name in options if all_rows()[name].metadata["affects_node"]):
        if name != "members" or ":" in options[name]:  # growfs's own functions are named without a module
            raise UsageError(f"{flag_name(name)[2:]}: affects the node itself, {remedy}")


def _chooses_server(url: str, options: Mapping[str, Any], secrets: Mapping[str, str]) -> bool:
    """Whether a pod chooses the server. Raises UsageError if growfs would then look for credentials on the node."""
    store = store_class(url)
    if issubclass(store, HttpRemote):  # its credentials are in the URL
        return True
    chosen = [*(["endpoint-url"] if "endpoint_url" in options else []), *sorted(store.address_variables & set(secrets))]
    if not chosen:
        return False
    own = [name for name in store.credential_variables if name in store.secret_variables]
    if options.get("anon") is not True and not any(secrets.get(name, "").strip() for name in own):
        secret = f"a nodePublishSecretRef with {' or '.join(own)}, or " if own else ""
        raise UsageError(
            f"{chosen[0]}: chooses the server, but the node's credentials are not for that server; the volume needs"
            f' {secret}anon: "true"'
        )
    return True
