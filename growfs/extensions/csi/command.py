"""The command `growfs csi`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from growfs.client.arguments import MountCommand
from growfs.errors import UsageError, pip_install


@click.command(cls=MountCommand)
@click.option("--endpoint", metavar="URL", help="Socket on which kubelet calls the driver. [csi.sock in --state-dir]")
@click.option("--node-id", metavar="NAME", default=socket.gethostname, help="Name of this node. [hostname]")
@click.option(
    "--state-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/plugins/growfs.csi",
    help="Directory for the mounts and the socket. [/var/lib/kubelet/plugins/growfs.csi]",
)
@click.option(
    "--control-groups",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="/sys/fs/cgroup",
    help="Where the node's control groups are mounted. [/sys/fs/cgroup]",
)
def csi(endpoint: str | None, node_id: str, state_dir: Path, control_groups: Path, **given: Any) -> None:
    """Mount volumes for the pods on a Kubernetes node, as its CSI driver growfs.csi.

    The mount options are the defaults for all volumes; the attributes of a volume override them.
    """
    try:
        from growfs.extensions.csi import server
    except ModuleNotFoundError as error:
        raise UsageError(f"csi: {error.name} is missing; install it: {pip_install('growfs[kubernetes]')}") from None
    endpoint = endpoint or f"unix://{state_dir}/csi.sock"
    server.serve(endpoint, node_id, state_dir, control_groups, given)
