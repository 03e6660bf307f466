"""Every kustomization builds, validates strictly against old and new schemas, and keeps what the manifests promise."""

from __future__ import annotations

import copy
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import NAMESPACES, PODS, Object
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Documents, Kubectl, pod_templates

OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
EXAMPLES = sorted(path for path in (MANIFESTS / "examples").rglob("*.yaml") if path.name != "kustomization.yaml")
# Kinds of other projects, whose schemas are their definitions'.
FOREIGN_GROUPS = (
    "kind.x-k8s.io",
    "appgroup.diktyo.x-k8s.io",
    "networktopology.diktyo.x-k8s.io",
    "monitoring.coreos.com",
)
# Overlays for clusters that have no MutatingAdmissionPolicy.
OLD = ("kubernetes-1.30", "observe-only", "upstream-scheduler")


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Path:
    return MANIFESTS / "overlays" / str(request.param)


def validate(documents: Documents, version: str) -> None:
    for document in documents:
        if document["apiVersion"].partition("/")[0] in FOREIGN_GROUPS:
            continue
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(part) for part in error.path)
            pytest.fail(f"{document['kind']} {document['metadata']['name']}: {where}: {error.message}")


def newest() -> str:
    return str(kubernetes_validate.latest_version())


async def distinct(kustomize: Kubectl, overlays: Sequence[str]) -> Documents:
    """The objects of these overlays, each once: validating is slow and most overlays share most objects."""
    found: Documents = []
    for name in overlays:
        documents = await kustomize.build(MANIFESTS / "overlays" / name)
        assert len(documents) > 15
        found += [document for document in documents if document not in found]
    return found


@pytest.mark.parametrize("version", ["1.36", newest()])
async def test_overlays_validate_strictly(kustomize: Kubectl, version: str) -> None:
    validate(await distinct(kustomize, OVERLAYS), version)


async def test_overlays_for_old_clusters_validate_strictly_against_1_30(kustomize: Kubectl) -> None:
    documents = await distinct(kustomize, OLD)
    assert not [document["kind"] for document in documents if document["kind"].startswith("Mutating")]
    validate(documents, "1.30")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_example_validates_strictly(path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    assert documents
    for version in ("1.30", "1.36", newest()):
        validate(documents, version)


async def test_nothing_is_defined_twice(kustomize: Kubectl, overlay: Path) -> None:
    documents = await kustomize.build(overlay)
    names = Counter((d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents)
    assert [name for name, count in names.items() if count > 1] == []
    by_hand: Counter[str] = Counter()
    for path in MANIFESTS.rglob("*.yaml"):
        if path.name == "kustomization.yaml" or {"examples", "helm"} & set(path.parts):
            continue
        for document in yaml.safe_load_all(path.read_text()):
            if document and "metadata" in document:
                metadata = document["metadata"]
                by_hand[f"{document['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"] += 1
    assert [name for name, count in by_hand.items() if count > 1] == []


async def test_everything_is_labelled_as_part_of_netaware(kustomize: Kubectl, overlay: Path) -> None:
    documents = await kustomize.build(overlay)
    bare = [
        f"{d['kind']}/{d['metadata']['name']}"
        for d in documents
        if d["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") != "netaware"
    ]
    assert bare == []
    for name, template in pod_templates(documents).items():
        assert template["metadata"]["labels"]["app.kubernetes.io/part-of"] == "netaware", name


async def test_images_carry_the_version_of_the_project(kustomize: Kubectl, overlay: Path) -> None:
    version = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]["version"]
    images = {
        container["image"]
        for template in pod_templates(await kustomize.build(overlay)).values()
        for container in template["spec"]["containers"]
    }
    ours = {image for image in images if image.startswith("netaware-")}
    assert ours == {f"netaware-agent:{version}", f"netaware-controller:{version}"}
    assert all(":" in image and not image.endswith(":latest") for image in images)


async def test_selectors_find_the_pods_they_mean(kustomize: Kubectl, overlay: Path) -> None:
    documents = await kustomize.build(overlay)
    labels = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]: template
        for template in pod_templates(documents).values()
    }
    for document in documents:
        spec = document.get("spec", {})
        selector = {
            "Service": spec.get("selector"),
            "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
            "PodMonitor": spec.get("selector", {}).get("matchLabels"),
        }.get(document["kind"])
        if selector is None:
            continue
        template = labels[selector["app.kubernetes.io/name"]]
        assert selector.items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for container in template["spec"]["containers"] for port in container.get("ports", ())}
        for port in spec.get("ports", ()):
            assert port.get("targetPort") in ports


async def test_pods_keep_to_their_level_of_pod_security(kustomize: Kubectl, admin: Client) -> None:
    """The API server's own Pod Security admission judges: the controller and the scheduler are "restricted"."""
    levels = {"DaemonSet/netaware-agent": "privileged"}
    templates = pod_templates(await kustomize.build(MANIFESTS / "overlays" / "descheduler"))
    assert set(templates) == {
        "DaemonSet/netaware-agent",
        "Deployment/netaware-controller",
        "Deployment/netaware-gate-opener",
        "Deployment/netaware-scheduler",
    }
    for name, template in templates.items():
        for level in ("restricted", "baseline", "privileged"):
            refusal = await _admit(admin, template, level)
            wanted = levels.get(name, "restricted")
            if level == wanted or level == "privileged":
                assert refusal == "", f"{name} as {level}"
            elif wanted == "privileged":
                assert "violates PodSecurity" in refusal, f"{name} needs no privileges: lower its level"


@pytest.mark.parametrize("example", ["online-boutique", "redis-cluster"])
async def test_example_pods_are_restricted(kustomize: Kubectl, admin: Client, example: str) -> None:
    for name, template in pod_templates(await kustomize.build(MANIFESTS / "examples" / example)).items():
        assert await _admit(admin, template, "restricted") == "", name


async def _admit(admin: Client, template: dict[str, Any], level: str) -> str:
    """Dry-run the pod in a namespace of that level; the empty text, or why it is refused."""
    namespace = f"level-{level}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    await admin.apply(NAMESPACES, namespace, body, Object, field_manager="tests")
    spec = copy.deepcopy(template["spec"])
    for field in ("serviceAccountName", "priorityClassName", "automountServiceAccountToken"):
        spec.pop(field, None)
    spec["automountServiceAccountToken"] = False
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": namespace}, "spec": spec}
    path = f"{PODS.path(namespace)}?dryRun=All"
    for _ in range(200):
        try:
            await admin.request("POST", path, body=pod)
        except ApiError as error:
            if "service account" in error.message:
                continue  # the namespace is a moment old
            return error.message
        return ""
    pytest.fail("the namespace got no service account")


async def test_privileges_are_those_that_are_explained(kustomize: Kubectl) -> None:
    templates = pod_templates(await kustomize.build(MANIFESTS / "overlays" / "default"))
    for name, template in templates.items():
        spec = template["spec"]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            added = context["capabilities"].get("add", [])
            assert added == (["NET_ADMIN", "SETGID", "SETUID"] if name == "DaemonSet/netaware-agent" else [])
            assert "memory" in container["resources"]["limits"]
            assert "cpu" not in container["resources"]["limits"], "a throttled prober measures its own throttling"
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert spec.get("hostNetwork", False) is (name == "DaemonSet/netaware-agent")


async def test_no_role_grants_wildcards_or_reads_secrets(kustomize: Kubectl, overlay: Path) -> None:
    for document in await kustomize.build(overlay):
        if document["kind"] not in {"Role", "ClusterRole"}:
            continue
        for rule in document["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"], "the passphrase is mounted by the kubelet, never read"


async def test_observe_only_can_neither_place_nor_evict_nor_enforce(kustomize: Kubectl) -> None:
    documents = await kustomize.build(MANIFESTS / "overlays" / "observe-only")
    kinds = {f"{d['kind']}/{d['metadata']['name']}" for d in documents}
    assert "Deployment/netaware-scheduler" not in kinds
    assert not [kind for kind in kinds if kind.startswith("Mutating")]
    rules = [rule for d in documents if d["kind"] in {"Role", "ClusterRole"} for rule in d["rules"]]
    assert not [rule for rule in rules if "pods/eviction" in rule["resources"]]
    arguments = pod_templates(documents)["DaemonSet/netaware-agent"]["spec"]["containers"][0]["args"]
    assert not [argument for argument in arguments if argument.startswith("--bandwidth")]


async def test_enforce_differs_from_the_default_by_its_purpose_only(kustomize: Kubectl) -> None:
    default, enforce = [await kustomize.build(MANIFESTS / "overlays" / name) for name in ("default", "enforce")]
    extra = pod_templates(enforce)["DaemonSet/netaware-agent"]["spec"]["containers"][0]["args"]
    plain = pod_templates(default)["DaemonSet/netaware-agent"]["spec"]["containers"][0]["args"]
    assert extra == [*plain, "--bandwidth=enforce"]
    added = {d["kind"] for d in enforce} - {d["kind"] for d in default}
    assert added <= {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}


async def test_components_of_traffic_add_one_flag_and_one_right(kustomize: Kubectl, tmp_path: Path) -> None:
    up = Path(*[".."] * len(tmp_path.resolve().parts[1:]))
    parts = [str(up / (MANIFESTS / "components" / name).relative_to("/")) for name in ("traffic", "measured-weights")]
    overlay = str(up / (MANIFESTS / "overlays" / "default").relative_to("/"))
    body = {"kind": "Kustomization", "resources": [overlay], "components": parts}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(body))
    default, more = await kustomize.build(MANIFESTS / "overlays" / "default"), await kustomize.build(tmp_path)
    plain, extra = (
        pod_templates(documents)["DaemonSet/netaware-agent"]["spec"]["containers"][0]["args"]
        for documents in (default, more)
    )
    assert extra == [*plain, "--traffic=conntrack"]
    added = [d for d in more if d["metadata"]["name"] not in {one["metadata"]["name"] for one in default}]
    assert {d["kind"] for d in added} == {"ClusterRole", "ClusterRoleBinding"}
    (role,) = (d for d in added if d["kind"] == "ClusterRole")
    wanted = {"apiGroups": ["appgroup.diktyo.x-k8s.io"], "resources": ["appgroups"], "verbs": ["patch"]}
    assert role["rules"] == [wanted]


async def test_namespace_of_every_object_is_ours(kustomize: Kubectl, overlay: Path) -> None:
    elsewhere = {
        f"{d['kind']}/{d['metadata']['namespace']}"
        for d in await kustomize.build(overlay)
        if d["metadata"].get("namespace", NAMESPACE) != NAMESPACE
    }
    assert elsewhere == set()


async def test_any_namespace_is_one_line_of_a_kustomization(kustomize: Kubectl, overlay: Path, tmp_path: Path) -> None:
    """``namespace:`` moves every object and every subject; policies tell our accounts by name and know their namespace."""
    up = Path(*[".."] * len(tmp_path.resolve().parts[1:]))
    body = {"kind": "Kustomization", "namespace": "elsewhere", "resources": [str(up / overlay.relative_to("/"))]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(body))
    documents = await kustomize.build(tmp_path)
    namespaces = {d["metadata"]["namespace"] for d in documents if "namespace" in d["metadata"]}
    assert namespaces == {"elsewhere"}
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "Namespace"] == ["elsewhere"]
    for document in documents:
        # kube-scheduler's file names the namespace of its Lease, and a flag of the Deployment goes before it; the
        # descheduler's excludes ours, and the policy for evictions does so wherever we are.
        if document["kind"] != "ConfigMap":
            assert NAMESPACE not in yaml.safe_dump(document), document["metadata"]["name"]


async def test_rights_to_write_pods_and_nodes_come_from_components(kustomize: Kubectl) -> None:
    """What an overlay does not do its tokens cannot do."""
    given: dict[str, set[str]] = {}
    for name in OVERLAYS:
        roles = [
            d for d in await kustomize.build(MANIFESTS / "overlays" / name) if d["kind"] in {"Role", "ClusterRole"}
        ]
        given[name] = {
            f"{verb} {resource}"
            for role in roles
            if role["metadata"]["name"] not in {"netaware-agent", "netaware-scheduler"}
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if resource.startswith(("pods", "nodes")) and verb not in {"get", "list", "watch"}
        }
    places = {"patch pods"}
    assert given.pop("descheduler") == places | {"create pods/eviction", "patch nodes/status"}
    assert given.pop("observe-only") == given.pop("upstream-scheduler") == set()
    assert set(map(frozenset, given.values())) == {frozenset(places)}


def test_deschedulers_configuration_is_the_bases_and_one_section_more() -> None:
    base = yaml.safe_load((MANIFESTS / "base" / "controller" / "config.yaml").read_text())
    extended = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    assert extended.pop("descheduler")["dryRun"] is True
    assert extended == base


async def test_descheduler_overlay_hands_its_configuration_to_the_controller(kustomize: Kubectl) -> None:
    documents = await kustomize.build(MANIFESTS / "overlays" / "descheduler")
    config = next(d for d in documents if d["metadata"]["name"].startswith("netaware-controller-config"))
    assert yaml.safe_load(config["data"]["config.yaml"])["descheduler"]["enabled"] is True
    volumes = pod_templates(documents)["Deployment/netaware-controller"]["spec"]["volumes"]
    assert config["metadata"]["name"] in [volume.get("configMap", {}).get("name") for volume in volumes]


async def test_prometheus_operator_overlay_watches_every_program(kustomize: Kubectl) -> None:
    documents = await kustomize.build(MANIFESTS / "overlays" / "prometheus-operator")
    monitored = {
        d["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for d in documents
        if d["kind"] in {"PodMonitor", "ServiceMonitor"}
    }
    assert monitored == {"netaware-agent", "netaware-controller", "netaware-scheduler"}
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "PrometheusRule"] == ["netaware"]


@pytest.mark.parametrize("folder", ["crds", "policies"])
def test_no_manifest_is_forgotten(folder: str) -> None:
    there = {path.name for path in (MANIFESTS / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert set(yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["resources"]) == there
