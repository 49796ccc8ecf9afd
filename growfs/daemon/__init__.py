"""One mount's process, and how it is started, controlled and described.

Owns the composition: `wiring` alone constructs the components and connects them. Owns the options, the control socket
and its commands, and the text and figures that people read.

Always: the command line reaches a running daemon through the control socket only, never through the mount.

For others: `launch` (start, stop, find and list mounts), `control.call`, `options.Options`, `render`.
"""
