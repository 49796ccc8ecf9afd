"""The process of one mount: how it is started and controlled, and its reports.

Owns the composition: only `wiring`, and the features that it loads, construct components and connect them. Owns the
options, the control socket and its commands, and the status.

Invariant: the command line talks to a running daemon over the control socket, never through the mount.

Public modules: `launch` (start and stop mounts), `running` (find and list them), `control_client.call`,
`options.Options`, `render`.
"""
