"""What growfs does beyond mounts: each extension is a folder here, and a line in ALL if it has a command.

The module `command` in the folder has the commands, under their names. The module `mount` has what it adds to mounts,
`options` its options, `layer` what changes the files of a remote, `text` what it adds to the text of the status, and
`front_end` finds the daemon of a folder that is not a mount. An extension imports the core, but no other extension. The
core imports none: it knows of them by this registry alone.
"""

ALL = {
    "top": ("Mount", "top"),
    "report": ("Mount", "report"),
    "doctor": ("Plan and check", "doctor"),
    "plan": ("Plan and check", "plan"),
    "verify": ("Plan and check", "verify"),
    "fill": ("Without a mount", "fill"),
    "stop": ("Without a mount", "fill"),
    "cache": ("Without a mount", "cache"),
    "csi": ("Kubernetes", "csi"),
}
"""The section of `growfs --help` for each command of an extension, in the order there, and the extension."""

MOUNT = {
    "peers": ("client",),
    "exact": ("division",),
    "metrics": (),
    "history": (),
}
"""The extensions of mounts, and the modules of each that are imported before workers are forked. One whose name is an
option is there if that is given, the others always. Each may use what those before it have set."""

REMOTE = [
    "manifests",
    "members",
    "producers",
]
"""The extensions that change the files of a remote, from the store on: see FeatureOptions.remote and Layer."""

FRONT_ENDS = [
    "fill",
]
"""The extensions that show files in a folder instead of a mount, by the command of their name: see FrontEnd. Such a
daemon has the front end first, and then those of MOUNT."""
