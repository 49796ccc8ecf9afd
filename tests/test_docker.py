"""The files in docker/ agree with the rules and schemas of those who read them, with each other, and with growfs.

What only a run can show is in docker/test_containers.py, which docker/check runs.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import compose_spec
import kubernetes_validate
import promql_parser
import pytest
import yaml

from growfs.cli import main
from growfs.daemon.options import Options, all_rows
from growfs.extensions.csi.server import DRIVER
from growfs.extensions.csi.volumes import IS_INLINE, Volume
from growfs.status_and_metrics import METRICS as OTHERS
from growfs.status_and_metrics import MountState, status_fields

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
MONITORING = DOCKER / "monitoring"
KUBERNETES = DOCKER / "kubernetes"
KUBERNETES_VERSION = "1.33"
HADOLINT = Path(sys.executable).with_name("hadolint")
METRICS = {field.metric for field in status_fields() if field.metric} | {metric.name for metric in OTHERS}
VARIABLES = {f"GROWFS_{name.upper()}" for name in all_rows()}

Yaml = dict[str, Any]


def documents(path: Path) -> list[Yaml]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


def compose() -> Yaml:
    """compose.yaml with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DOCKER / "compose.yaml").read_text())
    compose_spec.PyCompose.from_yaml(text)  # raises ValueError
    return dict(yaml.safe_load(text))


def manifests(folder: Path) -> Iterator[Yaml]:
    """What `kubectl apply -k` of a folder sends, without the transformations."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    for name in kustomization.get("resources", []) + kustomization.get("components", []):
        path = (folder / name).resolve()
        yield from manifests(path) if path.is_dir() else documents(path)
    for generator in kustomization.get("configMapGenerator", []):
        files = [line.partition("=")[2] for line in generator.get("files", [])]
        envs = [folder / name for name in generator.get("envs", [])]
        data = {name: (folder / name).read_text() for name in files}
        for env in envs:
            data |= dict(line.split("=", 1) for line in env.read_text().splitlines() if line[:1] not in ("#", ""))
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


OVERLAYS = {
    path.parent.name: list(manifests(path.parent))
    for path in KUBERNETES.glob("*/kustomization.yaml")
    if path.parent.name != "base"
}
EXAMPLES = {
    "trainer": documents(KUBERNETES / "node/trainer.yaml"),
    "inline": documents(KUBERNETES / "csi/inline.yaml"),
    "persistent": documents(KUBERNETES / "csi/persistent.yaml"),
}
OF_KUBERNETES = "registry.k8s.io/"
"""The beginning of the images of containers that only talk to the driver."""


def pod_of(manifest: Yaml) -> Yaml | None:
    spec = manifest.get("spec", {})
    pod: Yaml | None = spec if manifest["kind"] == "Pod" else spec.get("template", {}).get("spec")
    return pod


def containers_of(pod: Yaml) -> list[Yaml]:
    return [*pod.get("initContainers", []), *pod["containers"]]


PODS = [
    pytest.param(pod, manifests, id=name)
    for name, manifests in (OVERLAYS | EXAMPLES).items()
    for manifest in manifests
    if (pod := pod_of(manifest)) and name not in ("monitored", "peers")  # they have that of node
]


def test_the_dockerfile_follows_the_rules_of_hadolint() -> None:
    done = subprocess.run([HADOLINT, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_image_gets_what_it_copies() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in (DOCKER / "Dockerfile").read_text().splitlines() if line[:5] == "COPY "]
    assert let_in == {source for sources in copies for source in sources if not source.startswith(("-", "/"))}
    assert all((ROOT / name).exists() for name in let_in)


def test_compose_refers_to_what_there_is() -> None:
    file = compose()
    for service in file["services"].values():
        assert set(service.get("depends_on", {})) <= set(file["services"])
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).is_file(), source
            else:
                assert source.startswith("/") or source in file["volumes"]


@pytest.mark.parametrize("name", [*OVERLAYS, *EXAMPLES])
def test_manifests_follow_the_schemas_of_kubernetes(name: str) -> None:
    for manifest in (OVERLAYS | EXAMPLES)[name]:
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):  # the Prometheus operator's
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize(("pod", "manifests"), PODS)
def test_pods_refer_to_what_there_is_and_share_a_mount_as_kubernetes_allows(pod: Yaml, manifests: list[Yaml]) -> None:
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    assert "serviceAccountName" not in pod or ("ServiceAccount", pod["serviceAccountName"]) in names
    for container in containers_of(pod):
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
        for source in container.get("envFrom", []):
            assert "secretRef" in source or ("ConfigMap", source["configMapRef"]["name"]) in names
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
        assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= ports
        # A mount is shared from a privileged container only (ValidateVolumeMounts in Kubernetes); its readers follow
        # what comes and goes.
        shared = [mount["mountPropagation"] for mount in container["volumeMounts"] if "mountPropagation" in mount]
        is_privileged = container.get("securityContext", {}).get("privileged", False)
        assert is_privileged == ("Bidirectional" in shared)
        if container["image"] != "growfs" and not container["image"].startswith(OF_KUBERNETES):
            assert shared == ["HostToContainer"]
    if any(volume["name"] == "cache" and "emptyDir" in volume for volume in pod["volumes"]):
        # Its mode is 777, and growfs refuses a cache whose folder other users can replace.
        words = [*pod["initContainers"][0]["command"], *pod["initContainers"][0].get("args", [])]
        assert "chmod +t /cache" in " ".join(words), "the folder of the cache has no sticky bit"


def growfs_commands() -> Iterator[list[str]]:
    yaml_texts = [json.dumps(pod.values[0]) for pod in PODS] + [json.dumps(compose()["services"])]
    for text in [*yaml_texts, (DOCKER / "Dockerfile").read_text(), (DOCKER / "README.md").read_text()]:
        plain = re.sub(r'", "', " ", text.replace("\\\n", " ")).replace('\\"', "'")
        for command in re.findall(r"\bgrowfs (?:csi|mount|wait|status|umount)\b[^\"\n;&|#]*", plain):
            yield shlex.split(command)


def parsed(name: str, arguments: list[str]) -> click.Context:
    """The arguments of a command of growfs. Raises UsageError."""
    command = main.get_command(click.Context(main), name)
    assert command
    return command.make_context(name, list(arguments), **main.context_settings)


def test_the_commands_are_those_of_growfs() -> None:
    commands = list(growfs_commands())
    assert {words[1] for words in commands} >= {"mount", "wait", "status"}
    for _, name, *arguments in commands:
        parsed(name, arguments)  # raises UsageError


def test_the_environment_has_options_of_growfs() -> None:
    (config,) = (manifest for manifest in OVERLAYS["node"] if manifest["kind"] == "ConfigMap")
    environment = compose()["services"]["growfs"]["environment"]
    given = {name for name in [*config["data"], *environment] if name.startswith("GROWFS_")}
    assert given
    assert given <= VARIABLES


def test_kubelet_finds_the_driver() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in OVERLAYS["csi"]}
    driver, pod = by_kind["CSIDriver"], by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert driver["metadata"]["name"] == DRIVER
    assert driver["spec"]["podInfoOnMount"]
    growfs, registrar, probe = pod["containers"]
    parameters = parsed("csi", growfs["args"]).params
    socket = f"{parameters['state_dir']}/csi.sock"
    assert f"--kubelet-registration-path={socket}" in registrar["args"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    for container in (registrar, probe):
        (mounted,) = (mount for mount in container["volumeMounts"] if mount["name"] == "plugin")
        assert f"--csi-address={mounted['mountPath']}/{Path(socket).name}" in container["args"]
        assert paths["plugin"] == str(Path(socket).parent)
    assert {mount["mountPath"]: paths[mount["name"]] for mount in growfs["volumeMounts"]} == {
        "/var/lib/kubelet": "/var/lib/kubelet",
        str(parameters["control_groups"]): str(parameters["control_groups"]),
        str(Path(parameters["cache_dir"]).parent): paths["cache"],
    }
    (port,) = growfs["ports"]
    assert f"--http-endpoint=127.0.0.1:{port['containerPort']}" in probe["args"]


def test_volumes_have_options_of_growfs() -> None:
    (pod,), (volume, *_) = EXAMPLES["inline"], EXAMPLES["persistent"]
    (inline,) = (volume["csi"] for volume in pod["spec"]["volumes"])
    for source, is_inline in ((inline, "true"), (volume["spec"]["csi"], "false")):
        assert source["driver"] == DRIVER
        Volume.parse(source["volumeAttributes"] | {IS_INLINE: is_inline}, {}, {}, b"")  # raises UsageError


def expressions() -> Iterator[str]:
    """The PromQL of the alerts, of their tests and of the dashboard."""
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for test in yaml.safe_load((MONITORING / "alerts.test.yaml").read_text())["tests"]:
        for series in test["input_series"]:
            yield series["series"]
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_alerts_and_dashboard_name_metrics_of_growfs(expression: str) -> None:
    selectors: list[Any] = []

    def collect(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)

    promql_parser.walk(promql_parser.parse(expression), pre_visit=collect)
    assert selectors
    for selector in selectors:
        assert selector.name in METRICS | {"up"}
        states = re.findall(r'\bstate=~?"([\w|]+)"', str(selector))
        assert {word for words in states for word in words.split("|")} <= {state.value for state in MountState}


def test_the_nodes_find_one_another_by_a_headless_service() -> None:
    (service,) = documents(KUBERNETES / "peers/service.yaml")
    (daemonset,) = (manifest for manifest in OVERLAYS["peers"] if manifest["kind"] == "DaemonSet")
    (patch,) = documents(KUBERNETES / "peers/daemonset.yaml")
    assert patch["metadata"]["name"] == daemonset["metadata"]["name"]
    assert service["spec"]["selector"].items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    pod = patch["spec"]["template"]["spec"]
    (container,), (changed,) = pod_of(daemonset)["containers"], pod["containers"]  # type: ignore[index]
    assert changed["name"] == container["name"]
    environment = {variable["name"]: variable.get("value", "") for variable in changed["env"]}
    given = {name for name in environment if name.startswith("GROWFS_")}
    assert given <= VARIABLES
    (port,), (listening,) = service["spec"]["ports"], changed["ports"]
    assert (port["targetPort"], port["port"]) == (listening["name"], listening["containerPort"])
    name = service["metadata"]["name"]
    assert Options.parse({"peers": environment["GROWFS_PEERS"]}).by_name()["peers"] == (f"dns://{name}:{port['port']}",)
    assert environment["GROWFS_PEER_ADDR"] == f"$(POD_IP):{port['port']}"
    (mount,), (volume,) = changed["volumeMounts"], pod["volumes"]
    assert environment["GROWFS_PEER_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    assert mount["name"] == volume["name"]


def test_every_alert_has_a_test_and_the_operator_gets_the_same_ones() -> None:
    (alerts,) = documents(MONITORING / "alerts.yaml")
    fired = re.findall(r'alertname="(\w+)"', (MONITORING / "alerts.test.yaml").read_text())
    assert [rule["alert"] for rule in alerts["groups"][0]["rules"]] == fired
    (rule,) = documents(MONITORING / "prometheusrule.yaml")
    assert rule["spec"] == alerts


def test_the_metrics_are_scraped_where_they_are_served() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in OVERLAYS["monitored"]}
    service, monitor, pod = by_kind["Service"], by_kind["ServiceMonitor"], by_kind["DaemonSet"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (served,) = pod["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    assert port["targetPort"] == served["name"]
    (prometheus,) = documents(MONITORING / "prometheus.yaml")
    addresses = {compose()["services"]["growfs"]["environment"]["GROWFS_METRICS_ADDR"]}
    addresses |= {m["data"]["GROWFS_METRICS_ADDR"] for m in OVERLAYS["node"] if m["kind"] == "ConfigMap"}
    assert addresses == {f"0.0.0.0:{served['containerPort']}"}
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"growfs:{served['containerPort']}"]
