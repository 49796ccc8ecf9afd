"""What growfs does beyond mounts: each extension is a folder here, and a line in ALL if it has a command.

`command.py` in the folder has the command, a function of click with the extension's name. An extension imports only the
core, no other extension; of the core, only the command line knows of them, by ALL.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in growfs/__init__.py
if TYPE_CHECKING:
    import click

ALL = {
    "top": "Mount",
    "report": "Mount",
    "doctor": "Plan and check",
    "plan": "Plan and check",
    "verify": "Plan and check",
    "csi": "Kubernetes",
}
"""The section of `growfs --help` for the command of each extension, in the order there."""


def command(extension: str) -> click.Command:
    """The command of an extension, which is imported for it."""
    found: click.Command = getattr(import_module(f"growfs.extensions.{extension}.command"), extension)
    return found
