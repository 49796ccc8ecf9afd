"""The cases of csi-sanity for a driver without a controller: the tests of pkg/sanity in kubernetes-csi/csi-test."""

from __future__ import annotations

import re
from functools import partial

import grpc

from growfs.extensions.csi.generated import csi_pb2 as csi
from growfs.extensions.csi.server import DRIVER
from tests.extensions.csi.kubelet import Kubelet, code_of

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
CAPABILITY = csi.VolumeCapability(mount={}, access_mode={"mode": 1})


def test_identity_service(kubelet: Kubelet) -> None:
    """GetPluginCapabilities, Probe and GetPluginInfo should return appropriate information."""
    assert list(kubelet.identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest()).capabilities) == []
    assert kubelet.identity.Probe(csi.ProbeRequest()).ready.value
    info = kubelet.identity.GetPluginInfo(csi.GetPluginInfoRequest())
    assert info.name == DRIVER
    assert re.fullmatch(r"[a-zA-Z][A-Za-z0-9.-]{0,61}[a-zA-Z]", info.name)
    node = kubelet.node.NodeGetInfo(csi.NodeGetInfoRequest())
    assert (node.node_id, node.max_volumes_per_node) == ("node-1", 0)
    capabilities = kubelet.node.NodeGetCapabilities(csi.NodeGetCapabilitiesRequest()).capabilities
    rpc = csi.NodeServiceCapability.RPC
    assert {capability.rpc.type for capability in capabilities} == {rpc.GET_VOLUME_STATS, rpc.VOLUME_CONDITION}


def test_node_service_arguments(kubelet: Kubelet) -> None:
    """Each call should fail when no volume id, no path or no capability is provided, or the volume is not found."""
    node, path = kubelet.node, str(kubelet.target("x"))
    publish, unpublish, stats = (
        csi.NodePublishVolumeRequest,
        csi.NodeUnpublishVolumeRequest,
        csi.NodeGetVolumeStatsRequest,
    )
    for call, request, code in (
        (node.NodePublishVolume, publish(), INVALID),
        (node.NodePublishVolume, publish(volume_id="x"), INVALID),
        (node.NodePublishVolume, publish(volume_id="x", target_path=path), INVALID),
        (node.NodePublishVolume, publish(volume_id="x", target_path=path, volume_capability=CAPABILITY), INVALID),
        (node.NodeUnpublishVolume, unpublish(), INVALID),
        (node.NodeUnpublishVolume, unpublish(volume_id="x"), INVALID),
        (node.NodeGetVolumeStats, stats(volume_path="some/path"), INVALID),
        (node.NodeGetVolumeStats, stats(volume_id="x"), INVALID),
        (node.NodeGetVolumeStats, stats(volume_id="x", volume_path="some/path"), NOT_FOUND),
        (node.NodeStageVolume, csi.NodeStageVolumeRequest(), grpc.StatusCode.UNIMPLEMENTED),
        (node.NodeExpandVolume, csi.NodeExpandVolumeRequest(), grpc.StatusCode.UNIMPLEMENTED),
    ):
        assert code_of(partial(call, request))[0] == code, request
    assert not kubelet.target("x").exists()
