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
HELM_NAMESPACE = "by-helm"
OUR_OBJECTS = ("-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")
RIGHTS = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,mutatingadmissionpolicies"
RBAC_KINDS = {"ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
Words = tuple[str, ...]
RunHelm = Callable[..., Awaitable[str]]


class Chart:
    """Helm with the built chart."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder, self._program, self._home = folder / "netaware", program, folder

    async def run_helm(self, *arguments: str, kubeconfig: Path | None = None) -> str:
        """Run Helm. Raises BootError when it fails."""
        environment = {"HOME": str(self._home), "KUBECONFIG": str(kubeconfig or "")}
        return (await run_command([self._program, *arguments], "helm", 120, env=environment)).decode()

    async def render(self, *values: str, version: str = "1.37.2", namespace: str = NAMESPACE) -> dict[str, Any]:
        """The rendered objects by key, see `key_objects`."""
        set_options = [word for value in values for word in ("--set", value)]
        options = ("-n", namespace, f"--kube-version={version}", *set_options)
        manifest = await self.run_helm("template", "netaware", str(self.folder), *options)
        return key_objects([document for document in yaml.load_all(manifest, Loader=yaml.CSafeLoader) if document])


@pytest.fixture(scope="module")
def chart(helm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    folder = tmp_path_factory.mktemp("chart")
    command = [sys.executable, str(MANIFESTS / "helm" / "generate.py"), f"--version={VERSION}", f"--to={folder}"]
    subprocess.run(command, check=True, cwd=MANIFESTS.parent, timeout=110)
    return Chart(helm_program, folder)


@pytest_asyncio.fixture
async def helm(chart: Chart, plane: ControlPlane, kubectl: Kubectl) -> AsyncIterator[RunHelm]:
    """``await helm(*arguments)`` runs Helm in the namespace ``by-helm``, which is deleted afterwards."""

    async def run(*arguments: str) -> str:
        return await chart.run_helm(*arguments, "-n", HELM_NAMESPACE, kubeconfig=plane.kubeconfig)

    yield run
    await run("uninstall", "netaware", "--no-hooks", "--wait", "--ignore-not-found")
    await kubectl("delete", "--ignore-not-found", "crd", "-l", "app.kubernetes.io/part-of=netaware")
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=40s", "namespace", HELM_NAMESPACE)


def key_objects(documents: Documents) -> dict[str, Any]:
    """Objects by ``kind/namespace/name``; leaves out Namespaces, because Helm needs them before the chart."""
    objects = {}
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":
            assert document["metadata"].pop("annotations", {}) in ({}, {"helm.sh/resource-policy": "keep"})
        metadata = document["metadata"]
        objects[f"{document['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"] = document
    return {key: document for key, document in objects.items() if document["kind"] != "Namespace"}


async def build_objects(kustomize: Kubectl, folder: Path) -> dict[str, Any]:
    """A kustomization's objects by key, with the chart's version of the images."""
    documents = json.dumps(await kustomize.build_kustomization(folder))
    return key_objects(json.loads(re.sub(r"(netaware-(?:agent|controller)):0\.0\.0", rf"\1:{VERSION}", documents)))


def read_config(objects: dict[str, Any], program: str) -> dict[str, Any]:
    """The configuration of a program, whose ConfigMap's name ends with a hash."""
    (config_map,) = (o for key, o in objects.items() if re.match(rf"ConfigMap/.*/netaware-{program}-config-", key))
    config: dict[str, Any] = yaml.safe_load(config_map["data"]["config.yaml"])
    return config


async def read_error(kubectl: Kubectl, *words: str) -> str:
    """The error of a command; empty if it succeeds."""
    try:
        await kubectl(*words)
    except KubectlError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("overlay", "components", "version", "values"),
    [
        ("default", (), "1.37.2", ()),
        ("any-scheduler", (), "1.37.2", ("placement=affinity",)),
        ("enforce", (), "1.37.2", ("bandwidth.enforce=true",)),
        ("descheduler", (), "1.37.2", ("descheduler.enabled=true",)),
        ("observe-only", (), "1.34.1", ("placement=none",)),
        ("prometheus-operator", (), "1.37.2", ("prometheusOperator.enabled=true",)),
        ("default", ("kubernetes-1.35", "webhook-cert-manager"), "1.35.1", ("webhook.certManager=true",)),
        ("default", ("least-privilege",), "1.37.2", ("agent.leastPrivilege=true",)),
        *(("default", (f"kubernetes-1.{minor}",), f"1.{minor}.1", ()) for minor in range(34, 38)),
    ],
)
async def test_the_chart_renders_the_objects_of_an_overlay_with_components(
    chart: Chart, kustomize: Kubectl, tmp_path: Path, overlay: str, components: Words, version: str, values: Words
) -> None:
    objects = await build_objects(kustomize, write_kustomization(overlay, *components, folder=tmp_path))
    assert await chart.render(*values, version=version) == objects


async def test_values_of_the_agent_reach_its_daemonset_and_configuration(chart: Chart) -> None:
    objects = await chart.render(
        "images.agent.repository=registry.example/agent",
        f"images.agent.digest=sha256:{'0' * 64}",
        "imagePullSecrets[0].name=pull",
        "agent.config.capacityByInstanceType.n2=16G",
        "agent.affinity.nodeAffinity.x=y",
        "agent.podAnnotations.team=net",
        "agent.priorityClassName=ours",
        "agent.extraArgs[0]=--log-format=json",
        "agent.extraVolumes[0].name=more",
        "agent.extraVolumeMounts[0].name=more",
    )
    template = objects[f"DaemonSet/{NAMESPACE}/netaware-agent"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"registry.example/agent@sha256:{'0' * 64}"
    assert container["args"][-1] == "--log-format=json"
    assert container["volumeMounts"][-1]["name"] == "more"
    assert pod["volumes"][-1]["name"] == "more"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["priorityClassName"] == "ours"
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert template["metadata"]["annotations"]["team"] == "net"
    assert read_config(objects, "agent")["capacityByInstanceType"] == {"n2": "16G"}


async def test_the_agent_with_least_privilege_sees_no_files_or_processes_of_its_node(chart: Chart) -> None:
    objects = await chart.render("agent.leastPrivilege=true", "agent.extraArgs[0]=--log-format=json")
    pod = objects[f"DaemonSet/{NAMESPACE}/netaware-agent"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--bandwidth=off", "--log-format=json"]
    assert container["securityContext"]["capabilities"]["add"] == ["SETGID", "SETUID"]
    assert pod["hostPID"] is False
    assert [volume for volume in pod["volumes"] if "hostPath" in volume] == []


async def test_values_of_controller_and_scheduler_reach_their_objects(chart: Chart) -> None:
    objects = await chart.render(
        "images.controller.pullPolicy=Always",
        "controller.config.topology.probing.intervalS=30",
        "controller.replicas=3",
        "scheduler.extender.extraArgs[0]=--log-level=debug",
    )
    controller = objects[f"Deployment/{NAMESPACE}/netaware-controller"]["spec"]
    assert controller["replicas"] == 3
    assert controller["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    scheduler = objects[f"Deployment/{NAMESPACE}/netaware-scheduler"]["spec"]["template"]["spec"]["containers"]
    assert [c["name"] for c in scheduler if "--log-level=debug" in c.get("args", ())] == ["extender"]
    config = read_config(objects, "controller")
    assert config["topology"]["probing"]["intervalS"] == 30
    assert config["bootstrap"]["probeSecret"] is True, "other settings keep their defaults"


async def test_the_namespace_and_switches_decide_which_objects_are_rendered(chart: Chart) -> None:
    switches = ("serviceAccount.create=false", "rbac.create=false", "dashboards.enabled=true")
    objects = await chart.render(*switches, namespace="elsewhere")
    with_our_namespace = [key for key, body in objects.items() if NAMESPACE in json.dumps(body)]
    assert [key for key in with_our_namespace if not key.startswith("ConfigMap/")] == []
    assert not {body["kind"] for body in objects.values()} & RBAC_KINDS
    all_labels = [body["metadata"].get("labels", {}) for body in objects.values()]
    dashboards = list((MANIFESTS / "grafana").glob("*.json"))
    assert len([labels for labels in all_labels if labels.get("grafana_dashboard") == "1"]) == len(dashboards)


@pytest.mark.parametrize(
    ("value", "named"),
    [("controler.replicas=3", "controler"), ("controller.replicas=x", "replicas"), ("placement=both", "placement")],
)
async def test_an_invalid_value_is_refused_by_name(chart: Chart, value: str, named: str) -> None:
    with pytest.raises(BootError, match=named):
        await chart.render(value)


async def test_an_upgrade_revokes_rights_of_removed_values_and_the_documented_one_keeps_values(
    helm: RunHelm, chart: Chart, kubectl: Kubectl
) -> None:
    await helm("install", "netaware", str(chart.folder), "--create-namespace", "--set", "descheduler.enabled=true")
    assert "clusterrole.rbac.authorization.k8s.io/netaware-descheduler" in await kubectl("get", RIGHTS, *OUR_OBJECTS)
    await helm("upgrade", "netaware", str(chart.folder), "--reset-values", "--set", "controller.replicas=3")
    assert "netaware-descheduler" not in await kubectl("get", RIGHTS, *OUR_OBJECTS)

    (line,) = re.findall(r"^helm upgrade (.*)", (MANIFESTS.parent / "docs" / "upgrade.md").read_text(), re.MULTILINE)
    name, _, *options = (word for word in line.split() if word not in {"--version", "NEW", "-n", NAMESPACE})
    await helm("upgrade", name, str(chart.folder), *options)
    replicas = ("-n", HELM_NAMESPACE, "-o", "jsonpath={.spec.replicas}")
    assert await kubectl("get", "deployment", "netaware-controller", *replicas) == "3"


async def test_an_uninstallation_removes_all_objects_but_appgroups(
    helm: RunHelm, chart: Chart, kubectl: Kubectl
) -> None:
    await helm("install", "netaware", str(chart.folder), "--create-namespace")
    await kubectl("wait", "--for=condition=Established", "--timeout=20s", "crd/appgroups.appgroup.diktyo.x-k8s.io")
    group = (MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text()
    await kubectl("apply", "-n", "default", "-f", "-", stdin=group)
    await helm("uninstall", "netaware", "--wait")
    bindings = "validatingadmissionpolicybindings,mutatingadmissionpolicybindings"
    namespaced = "daemonsets,deployments,services,serviceaccounts,configmaps,secrets"
    assert await kubectl("get", f"{RIGHTS},{bindings},{namespaced}", *OUR_OBJECTS) == ""
    await kubectl("get", "appgroup", "online-boutique", "-n", "default")


async def test_the_cleanup_job_has_the_rights_for_its_commands_and_no_others(
    helm: RunHelm, chart: Chart, plane: ControlPlane, kubectl: Kubectl
) -> None:
    """kubectl runs the job's commands with the job's token. Without kubelets, a rollout may not end."""
    await helm("install", "netaware", str(chart.folder), "--create-namespace")
    objects = await chart.render("cleanupBeforeUninstall.enabled=true", namespace=HELM_NAMESPACE)
    hooks = [body for body in objects.values() if "helm.sh/hook" in body["metadata"].get("annotations", {})]
    rights = yaml.safe_dump_all([hook for hook in hooks if hook["kind"] != "Job"])
    await kubectl("apply", "-f", "-", stdin=rights)
    kubectl_of_job = Kubectl(kubectl.binary, await plane.write_token_kubeconfig(HELM_NAMESPACE, "netaware-cleanup"))

    (job,) = (hook for hook in hooks if hook["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        words = [re.sub(r"--timeout=.*", "--timeout=1s", word) for word in container["args"]]
        error = await read_error(kubectl_of_job, *words)
        assert error == "" or (words[0] == "rollout" and "forbidden" not in error.lower()), words

    agent_arguments = ("get", "daemonset", "netaware-agent", "-o", "jsonpath={..args}")
    assert "--cleanup" in await kubectl("-n", HELM_NAMESPACE, *agent_arguments)
    assert await kubectl("get", "mutatingadmissionpolicybindings", "-o", "name") == ""
    with pytest.raises(KubectlError, match="forbidden"):
        await kubectl_of_job("-n", HELM_NAMESPACE, "delete", "daemonset", "netaware-agent")
    await kubectl("delete", "-f", "-", stdin=rights)
