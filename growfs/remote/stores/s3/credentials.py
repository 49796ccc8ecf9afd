"""Credentials that expire, or that the store refuses earlier: when they are renewed, and by which process.

A program that prints credentials may take seconds, and a service that provides them refuses clients that ask too often.
So `Renewal` asks ever more rarely if new ones do not help, and with `SharedCredentials` the processes of a mount renew
them once, for all.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from growfs.errors import CredentialsRefused, RemoteDenied
from growfs.syscalls import memfd_create

FRESH_S = 900
"""Credentials that are valid for longer need no renewal: botocore begins to renew them this long before expiry."""
PAUSE_S, PAUSE_S_MAX = 30.0, 3600.0
"""How long to wait between two renewals; doubled each time until a refused request is served with new credentials.
There is no wait if the last ones were served, and are now refused themselves."""
_HEAD = struct.Struct("dQ")  # when they could not be obtained; the length of the text of existing ones


class SharedCredentials:
    """Owns memory and a lock that a process shares with those it forks. The memory holds secrets; no file does."""

    def __init__(self, pause_s: float) -> None:
        """pause_s: how long credentials are not requested after they could not be obtained."""
        self._pause_s = pause_s
        self._page = mmap.mmap(-1, 64 << 10)  # tokens take a few hundred bytes; services announce no limit
        self._between_processes = memfd_create("growfs-credentials")
        self._between_threads = threading.Lock()

    def of_session(self, session: Any) -> None:
        """Make a session of botocore find its credentials here. So far, only the calling thread may have used it."""
        resolver = session.get_component("credential_provider")
        session.register_component("credential_provider", _Provider(resolver, self, session.profile or ""))

    def forget(self, access_key: str) -> None:
        """Forget credentials that a store has refused."""
        with self._locked():
            if self._read().get("access_key") == access_key:
                self._write(0.0, {})

    def get(self, profile: str, find: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
        """Credentials that expire; found if none are known. None if those that are found do not expire.

        They are a dict from which botocore renews its own, with the name of their provider as "method", and the
        profile. Raises the errors of find.
        """
        with self._locked():
            if (found := self._read()) and found["profile"] == profile:
                return found
            failed_at, _ = _HEAD.unpack_from(self._page)
            time.sleep(min(self._pause_s, max(0.0, failed_at + self._pause_s - time.monotonic())))
            try:
                new = find()
            except BaseException:
                self._write(time.monotonic(), {})
                raise
            self._write(0.0, new or {})
            return new

    def _read(self) -> dict[str, str]:
        _, length = _HEAD.unpack_from(self._page)
        try:
            found = json.loads(self._page[_HEAD.size : _HEAD.size + length] or b"{}")
        except ValueError:  # a process was killed while it wrote
            return {}
        fresh_until = datetime.now(timezone.utc) + timedelta(seconds=FRESH_S)
        return found if found and datetime.fromisoformat(found["expiry_time"]) > fresh_until else {}

    def _write(self, failed_at: float, found: dict[str, str]) -> None:
        text = json.dumps(found).encode()
        if len(text) > len(self._page) - _HEAD.size:
            text = b""
        _HEAD.pack_into(self._page, 0, failed_at, len(text))
        self._page[_HEAD.size : _HEAD.size + len(text)] = text

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time. If it dies, the kernel lets the next one in."""
        with self._between_threads:
            fcntl.lockf(self._between_processes, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._between_processes, fcntl.LOCK_UN)


class Renewal:
    """Owns when credentials were renewed, and when requests were served with them. Times are monotonic."""

    def __init__(self) -> None:
        self._at = self._served_at = -math.inf
        self._pause_s = PAUSE_S

    def note_served(self, at: float, was_refused: bool = False) -> None:
        """Note that a request made at this time was served. was_refused: with the credentials before."""
        self._served_at = max(self._served_at, at)
        if was_refused:
            self._pause_s = PAUSE_S

    def served_also(self, at: float) -> bool:
        """Whether the credentials of a request made at this time have served a later one."""
        return self._served_at > at > self._at

    def is_due(self, since: float, refusal: RemoteDenied) -> bool:
        """Whether to renew the credentials, with which a request made at `since` was refused."""
        have_expired = isinstance(refusal, CredentialsRefused) and self._served_at > self._at
        pause_s = 0.0 if have_expired else self._pause_s
        return since > self._at and time.monotonic() > self._at + pause_s

    def note(self) -> None:
        """Note that they were renewed now."""
        self._at = time.monotonic()
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


class _Provider:
    """Replaces botocore's resolver in a session, and asks it if no process has asked before."""

    def __init__(self, resolver: Any, shared: SharedCredentials, profile: str) -> None:
        self._resolver, self._shared, self._profile = resolver, shared, profile
        self._own: Any = None

    def load_credentials(self) -> Any:
        """As the resolver: credentials of botocore, or None."""
        from botocore.credentials import RefreshableCredentials

        if found := self._shared.get(self._profile, self._find):
            return RefreshableCredentials.create_from_metadata(found, self._renew, found["method"])
        return self._own

    def _renew(self) -> dict[str, str]:
        return self._shared.get(self._profile, self._find) or {}  # for which botocore raises an error

    def _find(self) -> dict[str, str] | None:
        self._own = self._own or self._resolver.load_credentials()
        if not hasattr(self._own, "refresh_needed"):
            return None
        keys = self._own.get_frozen_credentials()  # renews them, if need be
        if self._own._expiry_time is None:
            return None
        return {
            "access_key": keys.access_key,
            "secret_key": keys.secret_key,
            "token": keys.token,
            "expiry_time": self._own._expiry_time.isoformat(),
            "method": self._own.method,
            "profile": self._profile,
        }
