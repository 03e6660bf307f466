"""Requests with stolen tokens are refused by the shipped rights and policies; test_rights.py finds unused rights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kubekit.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from lab.polling import poll_until
from tests.integration.manifests.attacks import Json, Schemas, dry_run, find_patchable_fields
from tests.integration.manifests.conftest import TokenFor
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl
from tests.integration.manifests.named_attacks import ATTACKS, NODE_A, NODE_B, RESULTS, SHIPPED_CONFIG, TOPOLOGY, Attack
from tests.integration.manifests.victims import FOREIGN_ANNOTATION, GROUP_POD, SYSTEM_POD, UNRELATED_POD, make_object

pytestmark = pytest.mark.usefixtures("victims")

CORE = "io.k8s.api.core.v1"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
PODS_PATH = "/api/v1/namespaces/with-appgroup/pods"
NODE = {"": f"{CORE}.Node", "metadata": META, "spec": f"{CORE}.NodeSpec", "status": f"{CORE}.NodeStatus"}
POD = {"": f"{CORE}.Pod", "metadata": META, "spec": f"{CORE}.PodSpec", "status": f"{CORE}.PodStatus"}
CONFIGMAP = {"": f"{CORE}.ConfigMap", "metadata": META}
VOLUME = {"metadata": META, "spec": f"{CORE}.PersistentVolumeSpec"}
MUTABLE_FIELDS: tuple[tuple[str, str, dict[str, str], set[str]], ...] = (
    ("agent", NODE_A, NODE, set()),
    ("agent", NODE_B, NODE, set()),
    ("agent", RESULTS, CONFIGMAP, set()),
    ("agent", SHIPPED_CONFIG, CONFIGMAP, set()),
    ("controller", NODE_A, NODE, set()),
    ("controller", SYSTEM_POD, POD, set()),
    ("controller", UNRELATED_POD, POD, set()),
    ("controller", GROUP_POD, POD, set()),
    ("controller", RESULTS, CONFIGMAP, set()),
    ("controller", SHIPPED_CONFIG, CONFIGMAP, set()),
    ("scheduler", SYSTEM_POD, POD, {"status.nominatedNodeName", "status.extendedResourceClaimStatus"}),
    ("scheduler", NODE_A, NODE, set()),
    ("scheduler", "/api/v1/persistentvolumes/victim", VOLUME, {"metadata.annotations", "spec.claimRef"}),
)
"""Program, object, its types by section, and the fields that the policies let the program change."""
HOT_TAINT = {"key": "netaware.io/hot", "effect": "PreferNoSchedule"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
OTHER_PODS: tuple[Json, ...] = (
    {"node_name": "node-b"},
    {"has_our_affinity": False},
    {"owners": [{**OWNER, "controller": False}]},
    {"owners": [{**OWNER, "apiVersion": "batch/v1", "kind": "Job"}]},
    {"owners": []},
)
"""Arguments of `make_stale_pod` for pods that the controller may not delete."""


async def read_object(admin: Client, path: str) -> Json:
    body: Json = msgspec.json.decode(await admin.request("GET", path))
    return body


def choose_patch_type(path: str, body: Any) -> str:
    if isinstance(body, list):
        return JSON_PATCH
    return MERGE_PATCH if path == TOPOLOGY else STRATEGIC_PATCH  # custom resources have no strategic patch


def make_taint_patch(**fields: str) -> list[Json]:
    """A JSON patch that adds the taint of hot nodes, with other ``fields``."""
    return [{"op": "add", "path": "/spec/taints/-", "value": {**HOT_TAINT, **fields}}]


def make_stale_pod(
    name: str, *, owners: Sequence[Json] = (OWNER,), has_our_affinity: bool = True, node_name: str = ""
) -> Json:
    """A pod that the controller may delete: pending, with an owner and a node affinity narrowed by the controller."""
    body = make_object("Pod", name, spec={"containers": [{"name": "c", "image": "good"}]})
    annotations = {"netaware.io/narrowed": "{}"} if has_our_affinity else {}
    body["metadata"] |= {"ownerReferences": owners, "annotations": annotations}
    # The finalizer keeps pods that the garbage collector deletes, because their owners do not exist.
    body["metadata"]["finalizers"] = ["tests.netaware.io/kept"]
    body["spec"] |= {"schedulerName": "none", "nodeName": node_name, "terminationGracePeriodSeconds": 0}
    return body


REFUSED_NODE_PATCHES: tuple[Any, ...] = (
    make_taint_patch(effect="NoSchedule"),
    make_taint_patch(effect="NoExecute"),
    make_taint_patch(key="any/other"),
    make_taint_patch(value="x"),
    [{"op": "remove", "path": "/spec/taints/0"}],  # another writer's
    {"spec": {"taints": [HOT_TAINT]}},
    {"spec": {"taints": None}},
    {"spec": {"unschedulable": True}},
    {"metadata": {"labels": {"zone": "evil"}}},
    FOREIGN_ANNOTATION,
)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "path", "types", "mutable_fields"), MUTABLE_FIELDS)
async def test_only_expected_fields_can_be_changed(
    stolen: dict[str, Client], admin: Client, program: str, path: str, types: dict[str, str], mutable_fields: set[str]
) -> None:
    """Fields are those of the API server's types, so that fields of new versions are tried too."""
    schemas = await Schemas.read(admin, "/api/v1")
    before = await read_object(admin, path)
    subresources = ("", "/status") if "status" in types else ("",)
    for subresource in subresources:
        changed_fields = await find_patchable_fields(stolen[program], path + subresource, before, schemas, types)
        assert changed_fields <= mutable_fields, f"{program} {path}{subresource}"
    # The administrator may change more, so the search finds fields.
    fields_of_admin = await find_patchable_fields(admin, path + subresources[-1], before, schemas, types)
    assert len(fields_of_admin) > len(mutable_fields) + 1


async def test_attacks_are_refused_and_the_work_of_programs_is_allowed(
    stolen: dict[str, Client], admin: Client, token_for: TokenFor
) -> None:
    unexpected = []
    async with Client(await token_for("netaware-agent", "")) as unbound:
        clients = {**stolen, "unbound": unbound, "admin": admin}
        for method, attacks in ATTACKS.items():
            for attack in map(Attack._make, attacks):
                content_type = choose_patch_type(attack.path, attack.body)
                refusal, _ = await dry_run(clients[attack.program], method, attack.path, attack.body, content_type)
                if not re.search(attack.refusal, refusal):
                    unexpected.append((method, attack, refusal))
    assert unexpected == []


async def test_the_right_to_taint_nodes_allows_only_our_soft_taint(stolen: dict[str, Client], admin: Client) -> None:
    foreign_taint = {"spec": {"taints": [{"key": "foreign.example/taint", "effect": "NoSchedule"}]}}
    await admin.request("PATCH", NODE_A, body=foreign_taint, content_type=MERGE_PATCH)

    async def find_refusal(patch: Any) -> str:
        patch_type = JSON_PATCH if isinstance(patch, list) else MERGE_PATCH
        refusal, _ = await dry_run(stolen["controller"], "PATCH", NODE_A, patch, patch_type)
        return refusal

    assert await find_refusal(make_taint_patch()) == ""
    assert [patch for patch in REFUSED_NODE_PATCHES if not await find_refusal(patch)] == []
    schemas, node = await Schemas.read(admin, "/api/v1"), await read_object(admin, NODE_A)
    assert await find_patchable_fields(stolen["controller"], NODE_A, node, schemas, NODE) == set()

    await admin.request("PATCH", NODE_A, body=make_taint_patch(), content_type=JSON_PATCH)
    taint_keys = [taint["key"] for taint in (await read_object(admin, NODE_A))["spec"]["taints"]]
    removal = [{"op": "remove", "path": f"/spec/taints/{taint_keys.index(HOT_TAINT['key'])}"}]
    assert await find_refusal(removal) == "", "the controller may remove its own taint"


async def test_the_right_to_delete_pods_allows_only_unschedulable_pods_with_an_owner(
    stolen: dict[str, Client], admin: Client, kubectl: Kubectl
) -> None:
    pods = [make_stale_pod(f"stale-{number}", **fields) for number, fields in enumerate(({}, *OTHER_PODS))]
    for pod in pods:
        await admin.request("POST", PODS_PATH, body=pod)
    paths = [f"{PODS_PATH}/{pod['metadata']['name']}" for pod in pods]

    async def is_deletable(path: str = paths[0]) -> bool:
        refusal, _ = await dry_run(stolen["controller"], "DELETE", path)
        return not refusal

    rights = str(MANIFESTS / "components" / "replace-pending" / "rbac.yaml")
    await kubectl("apply", "--server-side", "-f", rights)
    try:
        await poll_until(is_deletable)
        assert [path for path in paths if await is_deletable(path)] == paths[:1]
    finally:
        await kubectl("delete", "-f", rights)
        for path in paths:
            await admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


async def test_policies_have_no_type_errors(kubectl: Kubectl) -> None:
    """The controller manager type-checks the expressions."""
    policies = ("get", "validatingadmissionpolicies", "-o")

    async def are_checked() -> bool:
        path = "jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {end}"
        generations = [pair.split("=") for pair in (await kubectl(*policies, path)).split()]
        return all(generation == observed for generation, observed in generations)

    await poll_until(are_checked)
    warnings = await kubectl(*policies, "jsonpath={range .items[*]}{.status.typeChecking}{end}")
    assert warnings.replace("{}", "") == ""
