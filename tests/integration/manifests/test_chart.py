"""The Helm chart renders the objects of the kustomizations, and can be installed, upgraded and uninstalled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from lab.controlplane import ControlPlane
from lab.errors import BootError
from lab.programs import run_command
from tests.integration.manifests.kubectl import (
    MANIFESTS,
    NAMESPACE,
    Documents,
    Kubectl,
    KubectlError,
    write_kustomization,
)

pytestmark = pytest.mark.helm
VERSION = "1.2.3"
VALUES_BY_OVERLAY = {
    "default": ((), "1.37.2"),
    "any-scheduler": (("placement=affinity",), "1.37.2"),
    "enforce": (("bandwidth.enforce=true",), "1.37.2"),
    "descheduler": (("descheduler.enabled=true",), "1.37.2"),
    "observe-only": (("placement=none",), "1.34.1"),
    "prometheus-operator": (("prometheusOperator.enabled=true",), "1.37.2"),
}
"""Overlay -> the values and the version of Kubernetes for which the chart renders the same objects."""


class Chart:
    """Helm with the built chart."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder, self._program, self._home = folder / "netaware", program, folder

    async def helm(self, *arguments: str, kubeconfig: Path | None = None) -> str:
        """Run Helm. Raises BootError when it fails."""
        environment = {"HOME": str(self._home), "KUBECONFIG": str(kubeconfig or "")}
        return (await run_command([self._program, *arguments], "helm", 120, env=environment)).decode()

    async def render(self, *values: str, version: str = "1.37.2", namespace: str = NAMESPACE) -> dict[str, Any]:
        """The rendered objects by kind, namespace and name."""
        sets = [word for value in values for word in ("--set", value)]
        options = ("-n", namespace, f"--kube-version={version}", *sets)
        text = await self.helm("template", "netaware", str(self.folder), *options)
        return objects_by_key([document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document])


@pytest.fixture(scope="module")
def chart(helm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    folder = tmp_path_factory.mktemp("chart")
    command = [sys.executable, str(MANIFESTS / "helm" / "generate.py"), f"--version={VERSION}", f"--to={folder}"]
    subprocess.run(command, check=True, cwd=MANIFESTS.parent, timeout=110)
    return Chart(helm_program, folder)


def objects_by_key(documents: Documents) -> dict[str, Any]:
    """Objects by kind, namespace and name, without namespaces."""
    objects = {}
    for document in documents:
        if document["kind"] == "Namespace":
            continue  # Helm needs the namespace before the chart.
        if document["kind"] == "CustomResourceDefinition":
            assert document["metadata"].pop("annotations", {}) in ({}, {"helm.sh/resource-policy": "keep"})
        metadata = document["metadata"]
        objects[f"{document['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"] = document
    return objects


async def build_objects(kustomize: Kubectl, folder: Path) -> dict[str, Any]:
    """A kustomization's objects by key, with the chart's version of the images."""
    text = json.dumps(await kustomize.build(folder))
    return objects_by_key(json.loads(re.sub(r"(netaware-(?:agent|controller)):0\.0\.0", rf"\1:{VERSION}", text)))


async def test_the_chart_gives_the_same_objects_as_the_overlays(chart: Chart, kustomize: Kubectl) -> None:
    for overlay, (values, version) in VALUES_BY_OVERLAY.items():
        expected = await build_objects(kustomize, MANIFESTS / "overlays" / overlay)
        assert await chart.render(*values, version=version) == expected, overlay


async def test_the_chart_gives_the_same_objects_as_the_components(
    chart: Chart, kustomize: Kubectl, tmp_path: Path
) -> None:
    cases: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = [
        (("kubernetes-1.35", "webhook-cert-manager"), "1.35.1", ("webhook.certManager=true",)),
        (("least-privilege",), "1.37.2", ("agent.leastPrivilege=true",)),
        *(((f"kubernetes-1.{minor}",), f"1.{minor}.1", ()) for minor in range(34, 38)),
    ]
    for components, version, values in cases:
        expected = await build_objects(kustomize, write_kustomization("default", *components, folder=tmp_path))
        assert await chart.render(*values, version=version) == expected, components


async def test_values_reach_the_objects(chart: Chart) -> None:
    values = (
        "images.agent.repository=registry.example/agent",
        f"images.agent.digest=sha256:{'0' * 64}",
        "images.controller.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "agent.config.capacityByInstanceType.n2=16G",
        "agent.affinity.nodeAffinity.x=y",
        "agent.podAnnotations.team=net",
        "agent.priorityClassName=ours",
        "agent.leastPrivilege=true",
        "agent.extraArgs[0]=--log-format=json",
        "agent.extraVolumes[0].name=more",
        "agent.extraVolumeMounts[0].name=more",
        "controller.config.topology.probing.intervalS=30",
        "controller.replicas=3",
        "scheduler.extender.extraArgs[0]=--log-level=debug",
        "serviceAccount.create=false",
        "rbac.create=false",
        "dashboards.enabled=true",
    )
    documents = await chart.render(*values, namespace="elsewhere")
    template = documents["DaemonSet/elsewhere/netaware-agent"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"registry.example/agent@sha256:{'0' * 64}"
    assert container["args"][-2:] == ["--bandwidth=off", "--log-format=json"]
    assert (container["securityContext"]["capabilities"]["add"], pod["hostPID"]) == (["SETGID", "SETUID"], False)
    assert [volume for volume in pod["volumes"] if "hostPath" in volume] == []
    assert (container["volumeMounts"][-1]["name"], pod["volumes"][-1]["name"]) == ("more", "more")
    assert (pod["imagePullSecrets"], pod["priorityClassName"]) == ([{"name": "pull"}], "ours")
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert template["metadata"]["annotations"]["team"] == "net"
    controller = documents["Deployment/elsewhere/netaware-controller"]["spec"]
    assert controller["replicas"] == 3
    assert controller["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    scheduler = documents["Deployment/elsewhere/netaware-scheduler"]["spec"]["template"]["spec"]["containers"]
    assert [c["name"] for c in scheduler if "--log-level=debug" in c.get("args", ())] == ["extender"]
    configs = {
        name.split("-")[1]: d["data"] for name, d in documents.items() if "ConfigMap" in name and "-config-" in name
    }
    assert yaml.safe_load(configs["agent"]["config.yaml"])["capacityByInstanceType"] == {"n2": "16G"}
    config = yaml.safe_load(configs["controller"]["config.yaml"])
    assert (config["topology"]["probing"]["intervalS"], config["bootstrap"]["probeSecret"]) == (30, True)
    assert [n for n, d in documents.items() if d["kind"] != "ConfigMap" and NAMESPACE in json.dumps(d)] == []
    rendered_kinds = {document["kind"] for document in documents.values()}
    assert not rendered_kinds & {"ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    assert len([d for d in documents.values() if d["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]) == 5


async def test_an_invalid_value_is_refused_by_name(chart: Chart) -> None:
    mistakes = {"controler.replicas=3": "controler", "controller.replicas=x": "replicas", "placement=both": "placement"}
    for value, named in mistakes.items():
        with pytest.raises(BootError, match=named):
            await chart.render(value)


Run = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture
async def run(chart: Chart, plane: ControlPlane, kubectl: Kubectl) -> AsyncIterator[Run]:
    """Run Helm in the namespace ``by-helm``, which is deleted afterwards."""

    async def helm(*arguments: str) -> str:
        return await chart.helm(*arguments, "-n", "by-helm", kubeconfig=plane.kubeconfig)

    yield helm
    await helm("uninstall", "netaware", "--no-hooks", "--wait", "--ignore-not-found")
    await kubectl("delete", "--ignore-not-found", "crd", "-l", "app.kubernetes.io/part-of=netaware")
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=40s", "namespace", "by-helm")


async def test_helm_installs_upgrades_and_uninstalls(run: Run, chart: Chart, kubectl: Kubectl) -> None:
    label = ("-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")
    rights = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,mutatingadmissionpolicies"
    folder = str(chart.folder)
    await run("install", "netaware", folder, "--create-namespace", "--set", "descheduler.enabled=true")
    assert "clusterrole.rbac.authorization.k8s.io/netaware-descheduler" in await kubectl("get", rights, *label)
    await kubectl("wait", "--for=condition=Established", "--timeout=20s", "crd/appgroups.appgroup.diktyo.x-k8s.io")
    group = (MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text()
    await kubectl("apply", "-n", "default", "-f", "-", stdin=group)
    await run("upgrade", "netaware", folder, "--reset-values", "--set", "controller.replicas=3")
    assert "netaware-descheduler" not in await kubectl("get", rights, *label), "rights go with their values"
    # The documented upgrade keeps values that were set.
    (line,) = re.findall(r"^helm upgrade (.*)", (MANIFESTS.parent / "docs" / "upgrade.md").read_text(), re.MULTILINE)
    documented = [word for word in line.split() if word not in {"--version", "NEW", "-n", NAMESPACE}]
    await run("upgrade", documented[0], folder, *documented[2:])
    replicas = ("-n", "by-helm", "-o", "jsonpath={.spec.replicas}")
    assert await kubectl("get", "deployment", "netaware-controller", *replicas) == "3"
    await run("uninstall", "netaware", "--wait")
    assert await kubectl("get", f"{rights},daemonsets,deployments,services", *label) == ""
    await kubectl("get", "appgroup", "online-boutique", "-n", "default")


async def test_the_cleanup_job_has_the_rights_for_its_commands_and_no_others(
    run: Run, chart: Chart, plane: ControlPlane, kubectl: Kubectl
) -> None:
    """kubectl runs the job's commands with the job's token. Without kubelets, rollouts do not end."""
    await run("install", "netaware", str(chart.folder), "--create-namespace")
    documents = await chart.render("cleanupBeforeUninstall.enabled=true", namespace="by-helm")
    hooks = [d for d in documents.values() if "helm.sh/hook" in d["metadata"].get("annotations", {})]
    rights = [d for d in hooks if d["kind"] != "Job"]
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    job = Kubectl(kubectl.binary, await plane.write_token_kubeconfig("by-helm", "netaware-cleanup"))
    pod = next(d for d in hooks if d["kind"] == "Job")["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        words = [re.sub(r"--timeout=.*", "--timeout=1s", word) for word in container["args"]]
        try:
            await job(*words)
        except KubectlError as error:
            assert words[0] == "rollout", words
            assert "forbidden" not in str(error).lower(), words  # noqa: PT017
    agent = await kubectl("-n", "by-helm", "get", "daemonset", "netaware-agent", "-o", "jsonpath={..args}")
    assert "--cleanup" in agent
    assert await kubectl("get", "mutatingadmissionpolicybindings", "-o", "name") == ""
    with pytest.raises(KubectlError, match="forbidden"):
        await job("-n", "by-helm", "delete", "daemonset", "netaware-agent")
    await kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(rights))


def test_documents_name_the_registry_of_the_release() -> None:
    (pushed,) = re.findall(r'push \S+ "oci://\$\(REGISTRY\)(\S*)"', (MANIFESTS.parent / "release.mk").read_text())
    named = re.findall(r"oci://REGISTRY(\S+)", (MANIFESTS.parent / "docs" / "upgrade.md").read_text())
    assert named == [f"{pushed}/netaware"]
