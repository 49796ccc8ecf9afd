"""`MembersLayer`: what a mount with --members sends to its workers. It imports little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from growfs.errors import UsageError
from growfs.remote.interface import Layer, Remote, RemoteSpec
from growfs.remote.user_functions import Function


@dataclass(frozen=True, slots=True)
class MembersLayer(Layer):
    """Lists the members of the files, which are archives. function: finds the members of one."""

    function: Function

    def open(self, open_source: Callable[[RemoteSpec], Remote], spec: RemoteSpec) -> Remote:
        """See Layer."""
        from growfs.extensions.members.members import ArchiveRemote

        assert spec.cache
        return ArchiveRemote(open_source(spec), self.function, spec.cache)

    def check(self) -> None:
        """Raise UsageError if a worker could not import the function; tried in a separate process, as in workers."""
        # Without warnings: runpy has one for a module of a package, and the last line is to be the error.
        command = [
            sys.executable,
            "-Wignore",
            "-m",
            "growfs.remote.user_functions",
            str(self.function),
            self.function.folder,
        ]
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise UsageError(
                lines[-1] if lines else f"{self.function}: importing it made Python exit ({done.returncode})"
            )

    def container(self, version: str) -> str:
        """See Layer."""
        from growfs.extensions.members.members import MemberLocation

        return MemberLocation.parse(version).archive
