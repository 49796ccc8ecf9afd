"""The gRPC services that kubelet and its sidecar containers call, over a Unix socket.

Their errors have the codes of the specification (github.com/container-storage-interface/spec), on which kubelet acts.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message_factory import GetMessageClass

from growfs.daemon.options import Options
from growfs.errors import GrowfsError, UsageError
from growfs.extensions.csi.generated import csi_pb2 as csi
from growfs.extensions.csi.node import NodeMounts, NotPublished, VolumeBusy
from growfs.extensions.csi.volumes import Volume
from growfs.fuse.mounting import IGNORED, check_fuse
from growfs.syscalls import check_kernel
from growfs.version import __version__

DRIVER = "growfs.csi"

log = logging.getLogger(__name__)
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")


def answers(
    method: Callable[[Servicer, Request], Response],
) -> Callable[[Servicer, Request, grpc.ServicerContext], Response]:
    """A method of a service, whose errors become status codes."""

    @wraps(method)
    def answer(self: Servicer, request: Request, context: grpc.ServicerContext) -> Response:
        try:
            return method(self, request)
        except UsageError as error:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except VolumeBusy as error:
            code, text = grpc.StatusCode.ABORTED, str(error)
        except NotPublished as error:
            code, text = grpc.StatusCode.NOT_FOUND, str(error)
        except GrowfsError as error:
            code, text = grpc.StatusCode.INTERNAL, str(error)
        except OSError as error:
            code, text = grpc.StatusCode.INTERNAL, f"{error.filename or DRIVER}: {error.strerror or error}"
        log.warning("%s: %s: %s", method.__name__, code.name, text)
        context.abort(code, text)
        raise AssertionError("abort() raises")

    return answer


def _required(request: Any, *names: str) -> None:
    """Raise UsageError if one of these fields is missing."""
    present = {field.name for field, _ in request.ListFields()}
    for name in names:
        if name not in present:
            raise UsageError(f"the request lacks {name}, which kubelet always sends")


class IdentityService:
    """What this driver is."""

    @answers
    def GetPluginInfo(self, request: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=DRIVER, vendor_version=__version__)

    @answers
    def GetPluginCapabilities(self, request: csi.GetPluginCapabilitiesRequest) -> csi.GetPluginCapabilitiesResponse:
        return csi.GetPluginCapabilitiesResponse()  # there is no controller: nothing is provisioned or attached

    @answers
    def Probe(self, request: csi.ProbeRequest) -> csi.ProbeResponse:
        return csi.ProbeResponse(ready={"value": True})


class NodeService:
    """Mounts and unmounts. defaults: options of all volumes by field name."""

    def __init__(self, node_id: str, mounts: NodeMounts, defaults: Mapping[str, Any]) -> None:
        self._node_id = node_id
        self._mounts = mounts
        self._defaults = defaults

    @answers
    def NodePublishVolume(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        _required(request, "volume_id", "target_path", "volume_capability")
        if request.volume_capability.HasField("block"):
            raise UsageError("growfs provides files, not a block device; set volumeMode: Filesystem")
        for flag in request.volume_capability.mount.mount_flags:
            if not IGNORED.fullmatch(flag):
                raise UsageError(f"{flag}: put the options of growfs in volumeAttributes, not in mountOptions")
        volume = Volume.parse(request.volume_context, request.secrets, self._defaults, self._mounts.key)
        self._mounts.publish(volume, Path(request.target_path))
        return csi.NodePublishVolumeResponse()

    @answers
    def NodeUnpublishVolume(self, request: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        _required(request, "volume_id", "target_path")
        self._mounts.unpublish(Path(request.target_path))
        return csi.NodeUnpublishVolumeResponse()

    @answers
    def NodeGetVolumeStats(self, request: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        _required(request, "volume_id", "volume_path")
        status, trouble = self._mounts.status(Path(request.volume_path))
        unit = csi.VolumeUsage.Unit
        total, cached = (status.remote, status.cache) if status else (None, None)
        return csi.NodeGetVolumeStatsResponse(
            usage=[
                _usage(unit.BYTES, total.bytes if total else 0, cached.content_bytes if cached else 0),
                _usage(unit.INODES, total.files if total else 0, cached.files if cached else 0),
            ],
            volume_condition=csi.VolumeCondition(abnormal=bool(trouble), message=trouble or "mounted"),
        )

    @answers
    def NodeGetCapabilities(self, request: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        rpc = csi.NodeServiceCapability.RPC
        types = (rpc.GET_VOLUME_STATS, rpc.VOLUME_CONDITION)
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[csi.NodeServiceCapability(rpc=rpc(type=type)) for type in types]
        )

    @answers
    def NodeGetInfo(self, request: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        return csi.NodeGetInfoResponse(node_id=self._node_id)


def _usage(unit: csi.VolumeUsage.Unit, total: int, cached: int) -> csi.VolumeUsage:
    """used: what is cached of the total."""
    return csi.VolumeUsage(unit=unit, total=total, used=cached, available=max(0, total - cached))


def handler(name: str, service: object) -> grpc.GenericRpcHandler:
    """Calls the methods of an object for a service of csi.proto. Those that it lacks are UNIMPLEMENTED for clients."""
    descriptor = csi.DESCRIPTOR.services_by_name[name]
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(service, method.name),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
        for method in descriptor.methods
        if hasattr(service, method.name)
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def serve(endpoint: str, node_id: str, folder: Path, control_groups: Path, defaults: Mapping[str, Any]) -> None:
    """Serve until SIGTERM; the mounts stay. folder, control_groups: as for NodeMounts. Raises GrowfsError."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    Options.parse(dict(defaults))
    check_kernel()
    check_fuse(allow_other=True)
    if not control_groups.is_dir():
        raise UsageError(f"--control-groups {control_groups}: is not a folder; pass the node's: /sys/fs/cgroup")
    os.umask(0o077)  # also for the socket
    try:
        mounts = NodeMounts(folder, control_groups)
    except OSError as error:
        raise GrowfsError(
            f"{error.filename or folder}: {error.strerror}; choose a folder that root can write to: --state-dir"
        ) from None
    # More threads than a node has pods: each mount occupies one until training can start.
    server = grpc.server(ThreadPoolExecutor(256, thread_name_prefix="request"))
    node = NodeService(node_id, mounts, defaults)
    server.add_generic_rpc_handlers([handler("Identity", IdentityService()), handler("Node", node)])
    try:
        server.add_insecure_port(endpoint)
    except RuntimeError:
        raise GrowfsError(
            f"{endpoint}: cannot listen there; pass a socket in a folder that exists: --endpoint"
        ) from None
    server.start()
    log.info("%s %s serves %s on %s", DRIVER, __version__, node_id, endpoint)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=2.0))
    # Each minute, mounts without pods are looked for. If the driver was killed while it mounted, kubelet repeats the
    # request before that.
    while server.wait_for_termination(60.0):
        try:
            mounts.sweep()
        except (GrowfsError, OSError) as error:
            log.warning("mounts without pods could not be unmounted: %s", error)
    os._exit(0)  # a mount that takes longer than the grace goes on without the driver
