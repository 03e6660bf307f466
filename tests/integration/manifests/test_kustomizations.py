"""Kustomizations build, and have the documented properties; test_installation.py applies them."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from kubekit.client import Client
from kubekit.wire import NAMESPACES, Object
from tests.integration.manifests.attacks import dry_run_pod
from tests.integration.manifests.kubectl import (
    MANIFESTS,
    NAMESPACE,
    Documents,
    Kubectl,
    find_pod_templates,
    write_kustomization,
)

OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
RBAC = ("Role", "ClusterRole")


async def build_overlays(kustomize: Kubectl) -> dict[str, Documents]:
    return {name: await kustomize.build_kustomization(MANIFESTS / "overlays" / name) for name in OVERLAYS}


def read_arguments(documents: Documents, workload: str) -> list[str]:
    container = find_pod_templates(documents)[workload]["spec"]["containers"][0]
    return [str(argument) for argument in container["args"]]


def is_labelled(document: dict[str, Any]) -> bool:
    """Whether the object, or its pods if it has a template, are labelled as part of netaware."""
    metadata = {**document["metadata"], **document.get("spec", {}).get("template", {}).get("metadata", {})}
    return bool(metadata.get("labels", {}).get("app.kubernetes.io/part-of") == "netaware")


async def find_refusal(admin: Client, template: dict[str, Any], level: str) -> str:
    """Dry-run a pod in a namespace of this Pod Security level; returns the refusal, empty if it is admitted."""
    namespace = f"level-{level}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    await admin.apply(NAMESPACES, namespace, body, Object, field_manager="tests")
    spec = copy.deepcopy(template["spec"])
    for field in ("serviceAccountName", "priorityClassName", "automountServiceAccountToken"):
        spec.pop(field, None)
    spec["automountServiceAccountToken"] = False
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": namespace}, "spec": spec}
    return (await dry_run_pod(admin, namespace, pod))[0]


async def test_objects_are_defined_once_labelled_in_our_namespace_and_run_our_images(kustomize: Kubectl) -> None:
    for overlay, documents in (await build_overlays(kustomize)).items():
        names = Counter((d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents)
        assert [name for name, count in names.items() if count > 1] == [], overlay
        assert {namespace for _, namespace, _ in names} == {"", NAMESPACE}, overlay
        assert [d["metadata"]["name"] for d in documents if not is_labelled(d)] == [], overlay
        templates = find_pod_templates(documents).values()
        images = {c["image"] for template in templates for c in template["spec"]["containers"]}
        our_images = {image for image in images if not image.startswith("registry.k8s.io/kube-scheduler:v1.")}
        assert our_images == {"netaware-agent:0.0.0", "netaware-controller:0.0.0"}, overlay


async def test_selectors_match_the_intended_pods(kustomize: Kubectl) -> None:
    for documents in (await build_overlays(kustomize)).values():
        templates = find_pod_templates(documents).values()
        template_by_name = {t["metadata"]["labels"]["app.kubernetes.io/name"]: t for t in templates}
        for document in documents:
            spec = document.get("spec", {})
            selector = {
                "Service": spec.get("selector"),
                "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
                "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
                "PodMonitor": spec.get("selector", {}).get("matchLabels"),
            }.get(document["kind"])
            if selector:
                template = template_by_name[selector["app.kubernetes.io/name"]]
                assert selector.items() <= template["metadata"]["labels"].items()
                ports = {p["name"] for c in template["spec"]["containers"] for p in c.get("ports", ())}
                assert {port.get("targetPort") for port in spec.get("ports", ())} <= ports


async def test_pods_meet_their_level_of_pod_security(kustomize: Kubectl, admin: Client) -> None:
    """The API server's Pod Security admission decides; the controller and the scheduler are "restricted"."""
    templates = dict(find_pod_templates(await kustomize.build_kustomization(MANIFESTS / "overlays" / "descheduler")))
    assert len(templates) == 4
    agent = templates.pop("DaemonSet/netaware-agent")
    assert "violates PodSecurity" in await find_refusal(admin, agent, "baseline")
    assert await find_refusal(admin, agent, "privileged") == ""
    for example in ("online-boutique", "redis-cluster"):
        templates |= find_pod_templates(await kustomize.build_kustomization(MANIFESTS / "examples" / example))
    refusals = {name: await find_refusal(admin, template, "restricted") for name, template in templates.items()}
    assert {name: refusal for name, refusal in refusals.items() if refusal} == {}


async def test_only_the_agent_has_privileges_and_it_has_only_those_that_it_needs(kustomize: Kubectl) -> None:
    for name, template in find_pod_templates(
        await kustomize.build_kustomization(MANIFESTS / "overlays" / "default")
    ).items():
        spec, is_agent = template["spec"], name == "DaemonSet/netaware-agent"
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            added = {"add": ["NET_ADMIN", "SETGID", "SETUID"]} if is_agent else {}
            assert context["capabilities"] == {"drop": ["ALL"], **added}, name
            assert set(container["resources"]["limits"]) == {"memory"}, "a throttled prober measures its throttling"
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        assert spec.get("hostNetwork", False) is is_agent
        assert spec["priorityClassName"].startswith("system-"), "a class of our own would be open to every tenant"
        if is_agent:
            ports = {(port["containerPort"], port["protocol"]) for c in spec["containers"] for port in c["ports"]}
            assert ports == {(9850, "TCP"), (12865, "TCP"), (12866, "TCP"), (12867, "UDP")}


async def test_network_policies_allow_only_prometheus_to_read_metrics(kustomize: Kubectl) -> None:
    for documents in (await build_overlays(kustomize)).values():
        for policy in (d["spec"] for d in documents if d["kind"] == "NetworkPolicy"):
            senders = [rule["from"] for rule in policy["ingress"]]
            assert senders == [[{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]]


async def test_roles_grant_no_wildcards_and_no_rights_for_disabled_features(kustomize: Kubectl) -> None:
    rights_to_place = {"patch pods"}
    expected = dict.fromkeys(OVERLAYS, rights_to_place) | {
        "any-scheduler": rights_to_place | {"delete pods"},
        "descheduler": rights_to_place | {"create pods/eviction", "patch nodes"},
        "observe-only": set(),
    }
    granted: dict[str, set[str]] = {}
    for overlay, documents in (await build_overlays(kustomize)).items():
        rules = [(d["metadata"]["name"], rule) for d in documents if d["kind"] in RBAC for rule in d["rules"]]
        for name, rule in rules:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], name
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"], "the kubelet mounts the passphrase; nobody reads it"
        granted[overlay] = {
            f"{verb} {resource}"
            for name, rule in rules
            if name != "netaware-agent"
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if resource.startswith(("pods", "nodes")) and verb not in {"get", "list", "watch"}
        }
    assert granted == expected


async def test_overlays_differ_from_the_default_only_by_their_purpose(kustomize: Kubectl, tmp_path: Path) -> None:
    overlays = await build_overlays(kustomize)
    names = {overlay: {f"{d['kind']}/{d['metadata']['name']}" for d in overlays[overlay]} for overlay in OVERLAYS}
    flags_by_overlay = {overlay: read_arguments(overlays[overlay], "DaemonSet/netaware-agent") for overlay in OVERLAYS}
    default = flags_by_overlay.pop("default")
    assert flags_by_overlay.pop("enforce") == [*default, "--bandwidth=enforce"]
    assert [overlay for overlay, flags in flags_by_overlay.items() if flags != default] == []
    assert {name.partition("/")[0] for name in names["enforce"] - names["default"]} == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    }
    assert not [name for name in names["observe-only"] if name.startswith("Mutating")]
    for overlay in ("observe-only", "any-scheduler"):
        assert not [name for name in names[overlay] if "scheduler" in name and not name.startswith("Validating")]
    config = next(d for d in overlays["descheduler"] if d["metadata"]["name"].startswith("netaware-controller-config"))
    extended = yaml.safe_load(config["data"]["config.yaml"])
    section = extended.pop("descheduler")
    assert section["enabled"] is True
    assert section["dryRun"] is True
    assert extended == yaml.safe_load((MANIFESTS / "base" / "controller" / "config.yaml").read_text())
    monitors = [d for d in overlays["prometheus-operator"] if d["kind"] in {"PodMonitor", "ServiceMonitor"}]
    watched = {monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] for monitor in monitors}
    assert watched == {"netaware-agent", "netaware-controller", "netaware-scheduler"}
    documents = await kustomize.build_kustomization(
        write_kustomization("default", "traffic", "measured-weights", folder=tmp_path)
    )
    assert read_arguments(documents, "DaemonSet/netaware-agent") == [*default, "--traffic=conntrack"]
    (role,) = (
        d
        for d in documents
        if d["kind"] == "ClusterRole" and f"ClusterRole/{d['metadata']['name']}" not in names["default"]
    )
    expected_rule = {"apiGroups": ["appgroup.diktyo.x-k8s.io"], "resources": ["appgroups"], "verbs": ["patch"]}
    assert role["rules"] == [expected_rule]


async def test_one_line_of_a_kustomization_sets_the_namespace(kustomize: Kubectl, tmp_path: Path) -> None:
    """``namespace:`` moves all objects and subjects; policies read the namespace of our accounts."""
    for overlay in OVERLAYS:
        documents = await kustomize.build_kustomization(
            write_kustomization(overlay, folder=tmp_path, namespace="elsewhere")
        )
        assert {d["metadata"]["namespace"] for d in documents if "namespace" in d["metadata"]} == {"elsewhere"}
        assert [d["metadata"]["name"] for d in documents if d["kind"] == "Namespace"] == ["elsewhere"]
        # Files in ConfigMaps keep the default: a flag overrides kube-scheduler's namespace of the Lease, and a policy
        # refuses evictions in the namespace of the controller.
        names = [
            d["metadata"]["name"] for d in documents if d["kind"] != "ConfigMap" and NAMESPACE in yaml.safe_dump(d)
        ]
        assert names == [], overlay


def test_every_manifest_is_part_of_a_kustomization() -> None:
    for folder in ("crds", "policies"):
        existing = {path.name for path in (MANIFESTS / folder).glob("*.yaml")} - {"kustomization.yaml"}
        listed = yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["resources"]
        assert set(listed) == existing
