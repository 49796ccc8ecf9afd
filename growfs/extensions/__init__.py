"""What growfs does beyond mounts: each extension is a folder here, and a line in ALL if it has a command.

The module `command` in the folder has the command, under the extension's name. The module `mount` has what it adds to
mounts, and `text` what it adds to the text of the status. An extension imports the core, but no other extension. The
core imports none: it knows of them by ALL and MOUNT alone.
"""

ALL = {
    "top": "Mount",
    "report": "Mount",
    "doctor": "Plan and check",
    "plan": "Plan and check",
    "verify": "Plan and check",
    "cache": "Without a mount",
    "csi": "Kubernetes",
}
"""The section of `growfs --help` for the command of each extension, in the order there."""

MOUNT = {
    "fill": (),
    "peers": ("client",),
    "exact": ("division",),
}
"""The extensions that a mount has with the option of their name, or growfs fill, and the modules of each that are
imported before workers are forked. An extension may use what those before it have set."""
