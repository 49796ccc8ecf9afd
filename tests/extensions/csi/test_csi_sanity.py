"""csi-sanity itself, if it is installed. Its cases for nodes create volumes, so this test has a controller for it."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from growfs.extensions.csi.generated import csi_pb2 as csi
from growfs.extensions.csi.server import DRIVER, handler
from tests.extensions.csi.kubelet import Kubelet
from tests.needs import need_programs

CONTROLLER = csi.PluginCapability(service={"type": csi.PluginCapability.Service.Type.CONTROLLER_SERVICE})
CREATES = csi.ControllerServiceCapability.RPC.Type.CREATE_DELETE_VOLUME


class Controller:
    """Creates nothing: each volume is the same remote."""

    def __init__(self, context: dict[str, str]) -> None:
        self._context = context

    def GetPluginInfo(self, request: object, _: object) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=DRIVER)

    def GetPluginCapabilities(self, request: object, _: object) -> csi.GetPluginCapabilitiesResponse:
        return csi.GetPluginCapabilitiesResponse(capabilities=[CONTROLLER])

    def Probe(self, request: object, _: object) -> csi.ProbeResponse:
        return csi.ProbeResponse()

    def ControllerGetCapabilities(self, request: object, _: object) -> csi.ControllerGetCapabilitiesResponse:
        return csi.ControllerGetCapabilitiesResponse(capabilities=[{"rpc": {"type": CREATES}}])

    def CreateVolume(self, request: csi.CreateVolumeRequest, _: object) -> csi.CreateVolumeResponse:
        return csi.CreateVolumeResponse(volume={"volume_id": request.name, "volume_context": self._context})

    def DeleteVolume(self, request: object, _: object) -> csi.DeleteVolumeResponse:
        return csi.DeleteVolumeResponse()


def test_csi_sanity(kubelet: Kubelet) -> None:
    need_programs("csi-sanity", by="go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@latest")
    controller = Controller({"url": str(kubelet.remote), "csi.storage.k8s.io/ephemeral": "false"})
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([handler(service, controller) for service in ("Controller", "Identity")])
    address = f"unix://{kubelet.folder}/controller.sock"
    server.add_insecure_port(address)
    server.start()
    command = ["csi-sanity", "--csi.endpoint", f"unix://{kubelet.state}/csi.sock", "--csi.controllerendpoint", address]
    command += ["--csi.mountdir", f"{kubelet.folder}/mnt", "--csi.stagingdir", f"{kubelet.folder}/staging"]
    command += ["--ginkgo.skip=Controller Service", "--ginkgo.no-color"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    server.stop(0)
    passed = re.search(r"(\d+) Passed \| 0 Failed", done.stdout)
    if not passed or int(passed[1]) < 10:
        pytest.fail(done.stdout)
    assert kubelet.daemons() == 0
