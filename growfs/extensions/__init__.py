"""What growfs does beyond mounts: each extension is a folder here, and a line in ALL if it has a command.

The module `command` in the folder has the command, under the extension's name. The module `mount` has what it adds to
mounts, `options` its options, and `text` what it adds to the text of the status. An extension imports the core, but no
other extension. The core imports none: it knows of them by ALL and MOUNT alone.
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
    "metrics": (),
    "history": (),
}
"""The extensions of mounts, and the modules of each that are imported before workers are forked. One whose name is an
option is there if that is given, fill with growfs fill, and the others always. Each may use what those before it have
set."""
