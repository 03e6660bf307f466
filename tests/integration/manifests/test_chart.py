"""The Helm chart, judged by Helm itself: it gives what the kustomizations give, and installs, upgrades and uninstalls."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubekit.client import Client
from kubekit.wire import NAMESPACES, Object
from lab.controlplane import ControlPlane
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Documents, Kubectl
from tests.support.tools.builds import HELM, find_or_build_tool

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helm_program")]

CHART = MANIFESTS / "helm" / "netaware"
# Overlay -> values and version of Kubernetes that give the same.
SAME = {
    "default": ((), "1.36.3"),
    "enforce": (("bandwidth.enforce=true",), "1.36.3"),
    "descheduler": (("descheduler.enabled=true",), "1.36.3"),
    "observe-only": (("scheduler.enabled=false",), "1.36.3"),
    "upstream-scheduler": (("scheduler.enabled=false",), "1.33.13"),
    "prometheus-operator": (("prometheusOperator.enabled=true",), "1.36.3"),
}
RELEASE = "netaware"


class HelmError(Exception):
    """Helm ended with an error."""


async def helm(*arguments: str, kubeconfig: Path | None = None, home: Path) -> str:
    binary = await asyncio.to_thread(find_or_build_tool, HELM)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)} | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(str(binary), *arguments, stdout=pipe, stderr=pipe, env=environment)
    output, errors = await asyncio.wait_for(process.communicate(), 120)
    if process.returncode:
        raise HelmError(errors.decode() + output.decode())
    return output.decode()


async def rendered(home: Path, *values: str, version: str = "1.36.3", namespace: str = NAMESPACE) -> Documents:
    sets = [word for value in values for word in ("--set", value)]
    text = await helm("template", RELEASE, str(CHART), "-n", namespace, f"--kube-version={version}", *sets, home=home)
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def by_name(documents: Documents) -> dict[str, Any]:
    found = {}
    for document in documents:
        if document["kind"] == "Namespace":
            continue  # Helm needs it before the chart
        if document["kind"] == "CustomResourceDefinition":
            notes = document["metadata"].pop("annotations", {})
            assert notes in ({}, {"helm.sh/resource-policy": "keep"})
        found[f"{document['kind']}/{document['metadata'].get('namespace', '')}/{document['metadata']['name']}"] = (
            document
        )
    return found


def test_chart_is_current() -> None:
    command = [sys.executable, str(MANIFESTS / "helm" / "generate.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=MANIFESTS.parent, timeout=110)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("overlay", sorted(SAME))
async def test_chart_gives_the_same_objects_as_the_overlay(kustomize: Kubectl, tmp_path: Path, overlay: str) -> None:
    values, version = SAME[overlay]
    from_chart = by_name(await rendered(tmp_path, *values, version=version))
    from_overlay = by_name(await kustomize.build(MANIFESTS / "overlays" / overlay))
    assert from_chart.keys() == from_overlay.keys()
    for name, document in from_overlay.items():
        assert from_chart[name] == document, name


def with_component(folder: Path, component: str) -> Path:
    """An overlay of the default and one component."""
    overlay = folder / "overlay"
    overlay.mkdir()
    up = Path(*[".."] * len(overlay.resolve().parts[1:]))
    manifests = MANIFESTS.relative_to("/")
    body = {
        "kind": "Kustomization",
        "resources": [str(up / manifests / "overlays" / "default")],
        "components": [str(up / manifests / "components" / component)],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return overlay


async def test_chart_locks_the_page_as_the_component_does(kustomize: Kubectl, tmp_path: Path) -> None:
    from_overlay = by_name(await kustomize.build(with_component(tmp_path, "page-auth")))
    assert by_name(await rendered(tmp_path, "pageAuth.enabled=true")) == from_overlay
    controller = from_overlay[f"Deployment/{NAMESPACE}/netaware-controller"]["spec"]["template"]["spec"]
    assert controller["containers"][0]["args"][-1] == "--page-auth=token"


@pytest.mark.parametrize("minor", range(30, 37))
async def test_chart_knows_what_differs_between_kubernetes_versions(
    kustomize: Kubectl, tmp_path: Path, minor: int
) -> None:
    """As the components do: put on top of the default overlay, they give the same scheduler and the same policies."""
    from_overlay = by_name(await kustomize.build(with_component(tmp_path, f"kubernetes-1.{minor}")))
    from_chart = by_name(await rendered(tmp_path, version=f"1.{minor}.1"))
    for found in (from_overlay, from_chart):
        assert bool([name for name in found if name.startswith("MutatingAdmissionPolicy")]) == (minor >= 36)
        assert bool([name for name in found if name.endswith("/netaware-webhook")]) == (minor < 36)
    assert from_chart == from_overlay
    scheduler = f"Deployment/{NAMESPACE}/netaware-scheduler"
    image = from_chart[scheduler]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith(f"registry.k8s.io/kube-scheduler:v1.{minor}.")


async def test_values_reach_the_programs(tmp_path: Path) -> None:
    documents = by_name(
        await rendered(
            tmp_path,
            "images.agent.repository=registry.example/agent",
            f"images.agent.digest=sha256:{'0' * 64}",
            "imagePullSecrets[0].name=pull",
            "controller.config.topology.probing.intervalS=30",
            "controller.replicas=3",
            namespace="elsewhere",
        )
    )
    agent = documents["DaemonSet/elsewhere/netaware-agent"]["spec"]["template"]["spec"]
    assert agent["containers"][0]["image"] == f"registry.example/agent@sha256:{'0' * 64}"
    assert agent["imagePullSecrets"] == [{"name": "pull"}]
    controller = documents["Deployment/elsewhere/netaware-controller"]["spec"]
    assert controller["replicas"] == 3
    name = next(v["configMap"]["name"] for v in controller["template"]["spec"]["volumes"] if "configMap" in v)
    config = yaml.safe_load(documents[f"ConfigMap/elsewhere/{name}"]["data"]["config.yaml"])
    assert config["topology"]["probing"]["intervalS"] == 30
    assert config["bootstrap"]["probeSecret"] is True
    elsewhere = [name for name, d in documents.items() if d["kind"] != "ConfigMap" and NAMESPACE in json.dumps(d)]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("controler.replicas=3", "controler"),
        ("controller.replicas=three", "replicas"),
        ("images.agent.digest=latest", "digest"),
        ("bandwidth.enforce=maybe", "enforce"),
    ],
)
async def test_mistaken_values_are_refused_by_name(tmp_path: Path, value: str, said: str) -> None:
    with pytest.raises(HelmError, match=said):
        await rendered(tmp_path, value)


async def test_documented_upgrade_takes_a_chart_that_has_more_values_and_keeps_ones_own(
    plane: ControlPlane, kubectl: Kubectl, tmp_path: Path
) -> None:
    (line,) = re.findall(r"^helm upgrade .*", (MANIFESTS.parent / "docs" / "upgrade.md").read_text(), re.MULTILINE)
    here = [word for word in line.split()[1:] if word not in {"--version", "NEW", "-n", NAMESPACE}]
    here[2] = str(CHART)
    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    (older / "templates" / "heat-taint.yaml").unlink()
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values["heatTaint"]
    (older / "values.yaml").write_text(yaml.safe_dump(values))

    async def run(*arguments: str) -> str:
        return await helm(*arguments, "-n", "by-helm", kubeconfig=plane.kubeconfig, home=tmp_path)

    try:
        await run("install", RELEASE, str(older), "--create-namespace", "--set", "controller.replicas=3")
        await run(*here)
        replicas = ("-n", "by-helm", "-o", "jsonpath={.spec.replicas}")
        assert await kubectl("get", "deployment", "netaware-controller", *replicas) == "3", "what somebody set stays"
    finally:
        await run("uninstall", RELEASE, "--wait", "--ignore-not-found")
        await kubectl("delete", "--ignore-not-found", "crd", "-l", "app.kubernetes.io/part-of=netaware")
        await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=40s", "namespace", "by-helm")


def test_documents_name_the_chart_where_a_release_pushes_it() -> None:
    (pushed,) = re.findall(r'push \S+ "oci://\$\(REGISTRY\)(\S*)"', (MANIFESTS.parent / "release.mk").read_text())
    named = re.findall(r"oci://REGISTRY(\S+)", (MANIFESTS.parent / "docs" / "upgrade.md").read_text())
    assert named == [f"{pushed}/{CHART.name}"]


async def test_helm_installs_upgrades_and_uninstalls(
    plane: ControlPlane, kubectl: Kubectl, admin: Client, tmp_path: Path
) -> None:
    async def run(*arguments: str) -> str:
        return await helm(*arguments, "-n", "by-helm", kubeconfig=plane.kubeconfig, home=tmp_path)

    label = ("-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")
    rights = "clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,mutatingadmissionpolicies"
    try:
        await run("install", RELEASE, str(CHART), "--create-namespace", "--set", "descheduler.enabled=true")
        assert "clusterrole.rbac.authorization.k8s.io/netaware-descheduler" in await kubectl("get", rights, *label)
        await kubectl("wait", "--for=condition=Established", "--timeout=20s", "crd/appgroups.appgroup.diktyo.x-k8s.io")
        group = (MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text()
        await kubectl("apply", "-n", "default", "-f", "-", stdin=group)
        await run("upgrade", RELEASE, str(CHART), "--reset-values")
        assert "netaware-descheduler" not in await kubectl("get", rights, *label), "rights go with their values"
        await run("uninstall", RELEASE, "--wait")
        assert await kubectl("get", f"{rights},daemonsets,deployments,services,priorityclasses", *label) == ""
        assert "appgroups.appgroup" in await kubectl("get", "crd", *label), "definitions stay, and objects with them"
        await kubectl("get", "appgroup", "online-boutique", "-n", "default")
    finally:
        await kubectl("delete", "--ignore-not-found", "crd", *label[1:3])
        await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=40s", "namespace", "by-helm")
    assert [n.metadata.name for n in await admin.list(NAMESPACES, Object) if n.metadata.name == "by-helm"] == []
