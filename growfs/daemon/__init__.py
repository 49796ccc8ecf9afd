"""The process of one mount: how it is started and controlled, and what it reports.

Owns the composition: only `wiring` constructs the components and connects them. Owns the options, the control socket
and its commands, and the status.

Always: the command line talks to a running daemon over the control socket, never through the mount.

For others: `launch` (start and stop mounts), `running` (find and list them), `control_client.call`, `options.Options`,
`render`.
"""
