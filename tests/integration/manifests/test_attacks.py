"""Requests with stolen tokens are refused by the shipped rights and policies; test_rights.py tests that no right is unused."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from kubekit.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from netperf.measurement import Measurement
from netperf.results import encode_samples, sample_key
from netperf.sample import NodeLocation, Sample
from tests.integration.manifests.attacks import Json, Schemas, dry_run, find_patchable_fields
from tests.integration.manifests.conftest import TokenFor
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl
from tests.integration.manifests.named_attacks import ATTACKS, NODE_A, NODE_B, RESULTS, SHIPPED, TOPOLOGY, Attack
from tests.integration.manifests.victims import (
    FOREIGN_ANNOTATION,
    GROUP_POD,
    SYSTEM_POD,
    UNRELATED_POD,
    installed_with_victims,
    object_of,
    stolen_tokens,
)

CORE = "io.k8s.api.core.v1"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
PODS_PATH = "/api/v1/namespaces/with-appgroup/pods"
pytestmark = pytest.mark.usefixtures("victims")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def victims(plane: ControlPlane) -> AsyncIterator[None]:
    async with installed_with_victims(plane):
        yield


@pytest_asyncio.fixture
async def stolen(victims: None, token_for: TokenFor) -> AsyncIterator[dict[str, Client]]:
    """A client with each program's token."""
    async with stolen_tokens(token_for) as clients:
        yield clients


async def read(admin: Client, path: str) -> Json:
    body: Json = msgspec.json.decode(await admin.request("GET", path))
    return body


NODE = {"": f"{CORE}.Node", "metadata": META, "spec": f"{CORE}.NodeSpec", "status": f"{CORE}.NodeStatus"}
POD = {"": f"{CORE}.Pod", "metadata": META, "spec": f"{CORE}.PodSpec", "status": f"{CORE}.PodStatus"}
CONFIGMAP = {"": f"{CORE}.ConfigMap", "metadata": META}
VOLUME = {"metadata": META, "spec": f"{CORE}.PersistentVolumeSpec"}
# Program, object, its types by section, and the fields that the policies let the program change.
MUTABLE_FIELDS: tuple[tuple[str, str, dict[str, str], set[str]], ...] = (
    ("agent", NODE_A, NODE, set()),
    ("agent", NODE_B, NODE, set()),
    ("agent", RESULTS, CONFIGMAP, set()),
    ("agent", SHIPPED, CONFIGMAP, set()),
    ("controller", NODE_A, NODE, set()),
    ("controller", SYSTEM_POD, POD, set()),
    ("controller", UNRELATED_POD, POD, set()),
    ("controller", GROUP_POD, POD, set()),
    ("controller", RESULTS, CONFIGMAP, set()),
    ("controller", SHIPPED, CONFIGMAP, set()),
    ("scheduler", SYSTEM_POD, POD, {"status.nominatedNodeName", "status.extendedResourceClaimStatus"}),
    ("scheduler", NODE_A, NODE, set()),
    ("scheduler", "/api/v1/persistentvolumes/victim", VOLUME, {"metadata.annotations", "spec.claimRef"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "path", "types", "mutable_fields"), MUTABLE_FIELDS)
async def test_only_expected_fields_can_be_changed(
    stolen: dict[str, Client], admin: Client, program: str, path: str, types: dict[str, str], mutable_fields: set[str]
) -> None:
    """Fields are those of the API server's types, so that fields of new versions are tried too."""
    schemas = await Schemas.read(admin, "/api/v1")
    before = await read(admin, path)
    subresources = ("", "/status") if "status" in types else ("",)
    for subresource in subresources:
        changed = await find_patchable_fields(stolen[program], path + subresource, before, schemas, types)
        assert changed <= mutable_fields, f"{program} {path}{subresource}"
    # The administrator may change more, so the search finds fields.
    admins_fields = await find_patchable_fields(admin, path + subresources[-1], before, schemas, types)
    assert len(admins_fields) > len(mutable_fields) + 1


def patch_type(path: str, body: Any) -> str:
    if isinstance(body, list):
        return JSON_PATCH
    return MERGE_PATCH if path == TOPOLOGY else STRATEGIC_PATCH  # custom resources have no strategic patch


async def test_attacks_are_refused_and_the_work_of_programs_is_allowed(
    stolen: dict[str, Client], admin: Client, token_for: TokenFor
) -> None:
    unexpected = []
    async with Client(await token_for("netaware-agent", "")) as unbound:
        clients = {**stolen, "unbound": unbound, "admin": admin}
        for method, attacks in ATTACKS.items():
            for attack in map(Attack._make, attacks):
                content_type = patch_type(attack.path, attack.body)
                refusal, _ = await dry_run(clients[attack.program], method, attack.path, attack.body, content_type)
                if not re.search(attack.refusal, refusal):
                    unexpected.append((method, attack, refusal))
    assert unexpected == []


HOT = {"key": "netaware.io/hot", "effect": "PreferNoSchedule"}


def add_taint(**fields: str) -> list[Json]:
    """A JSON patch that adds the taint of hot nodes, with other ``fields``."""
    return [{"op": "add", "path": "/spec/taints/-", "value": {**HOT, **fields}}]


REFUSED_NODE_PATCHES: tuple[Any, ...] = (
    *(add_taint(effect="NoSchedule"), add_taint(effect="NoExecute"), add_taint(key="any/other"), add_taint(value="x")),
    [{"op": "remove", "path": "/spec/taints/0"}],  # another writer's
    {"spec": {"taints": [HOT]}},
    {"spec": {"taints": None}},
    {"spec": {"unschedulable": True}},
    {"metadata": {"labels": {"zone": "evil"}}},
    FOREIGN_ANNOTATION,
)


async def test_the_right_to_taint_nodes_allows_only_our_soft_taint(stolen: dict[str, Client], admin: Client) -> None:
    foreign = {"spec": {"taints": [{"key": "foreign.example/taint", "effect": "NoSchedule"}]}}
    await admin.request("PATCH", NODE_A, body=foreign, content_type=MERGE_PATCH)

    async def refusal(body: Any) -> str:
        content = JSON_PATCH if isinstance(body, list) else MERGE_PATCH
        return (await dry_run(stolen["controller"], "PATCH", NODE_A, body, content))[0]

    assert await refusal(add_taint()) == ""
    assert [body for body in REFUSED_NODE_PATCHES if not await refusal(body)] == []
    schemas = await Schemas.read(admin, "/api/v1")
    assert await find_patchable_fields(stolen["controller"], NODE_A, await read(admin, NODE_A), schemas, NODE) == set()
    # The controller may remove its own taint.
    await admin.request("PATCH", NODE_A, body=add_taint(), content_type=JSON_PATCH)
    index = [taint["key"] for taint in (await read(admin, NODE_A))["spec"]["taints"]].index(HOT["key"])
    assert await refusal([{"op": "remove", "path": f"/spec/taints/{index}"}]) == ""


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}


def stale_pod(name: str, *, owners: Sequence[Json] = (OWNER,), has_our_affinity: bool = True, node: str = "") -> Json:
    """A pod that the controller may delete: pending, with an owner, and with an affinity that the controller has narrowed."""
    body = object_of("Pod", name, spec={"containers": [{"name": "c", "image": "good"}]})
    annotations = {"netaware.io/narrowed": "{}"} if has_our_affinity else {}
    body["metadata"] |= {"ownerReferences": owners, "annotations": annotations}
    # The finalizer keeps pods that the garbage collector deletes, because their owners do not exist.
    body["metadata"]["finalizers"] = ["tests.netaware.io/kept"]
    body["spec"] |= {"schedulerName": "none", "nodeName": node, "terminationGracePeriodSeconds": 0}
    return body


OTHER_PODS: tuple[Json, ...] = (
    {"node": "node-b"},
    {"has_our_affinity": False},
    {"owners": [{**OWNER, "controller": False}]},
    {"owners": [{**OWNER, "apiVersion": "batch/v1", "kind": "Job"}]},
    {"owners": []},
)
"""Arguments of `stale_pod` for pods that the controller may not delete."""


async def test_the_right_to_delete_pods_allows_only_unschedulable_pods_with_an_owner(
    stolen: dict[str, Client], admin: Client, kubectl: Kubectl
) -> None:
    pods = [stale_pod(f"stale-{number}", **fields) for number, fields in enumerate(({}, *OTHER_PODS))]
    for pod in pods:
        await admin.request("POST", PODS_PATH, body=pod)
    paths = [f"{PODS_PATH}/{pod['metadata']['name']}" for pod in pods]

    async def is_allowed(path: str = paths[0]) -> bool:
        return not (await dry_run(stolen["controller"], "DELETE", path))[0]

    rights = str(MANIFESTS / "components" / "replace-pending" / "rbac.yaml")
    await kubectl("apply", "--server-side", "-f", rights)
    try:
        await poll_until(is_allowed)
        assert [path for path in paths if await is_allowed(path)] == paths[:1]
    finally:
        await kubectl("delete", "-f", rights)
        for path in paths:
            await admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def sample(origin: str, destination: str, sequence: int = 0) -> Sample:
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=500.0, p90_us=700.0, p99_us=900.0)
    ends = NodeLocation(origin, "zone-a", "r"), NodeLocation(destination, "zone-b", "r")
    return Sample(origin=ends[0], destination=ends[1], measurement=measurement, sequence=sequence)


async def write_result(client: Client, patch: Any) -> dict[str, str]:
    answer = await client.request("PATCH", RESULTS, body=patch, content_type=MERGE_PATCH)
    data: dict[str, str] = msgspec.json.decode(answer).get("data", {})
    data.pop("a", "")
    return data


async def test_an_agent_writes_replaces_and_removes_the_results_of_its_own_probes(
    stolen: dict[str, Client], admin: Client
) -> None:
    agent = stolen["agent"]
    first = encode_samples([sample("node-a", "node-b")], ["p50", "p90", "p99"])
    await write_result(agent, {"data": first})
    second = encode_samples([sample("node-a", "node-b", sequence=1), sample("node-a", "node-c")])
    assert set(first) | set(second) == set(await write_result(agent, {"data": second}))
    assert set(await write_result(agent, {"data": dict.fromkeys(first)})) == set(second) - set(first)
    await write_result(agent, {"data": dict.fromkeys(second)})
    mine = encode_samples([sample("node-a", "node-b")], ["p90"])
    for squatted in ("{half", '{"origin":{"node":"node-b","zone":"zone-b"}}', ""):
        await write_result(admin, {"data": dict.fromkeys(mine, squatted)})
        assert await write_result(agent, {"data": mine}) == mine
        await write_result(agent, {"data": dict.fromkeys(mine)})
    # 990 pairs in both formats, the most a shard holds: the policy stays within the API server's cost limit.
    full: dict[str, str | None] = {}
    for index in range(990):
        full |= encode_samples([sample("node-b", f"node-{index}")], ["p50", "p90", "p99"])
    await write_result(admin, {"data": full})
    assert len(await write_result(agent, {"data": mine})) == len(full) + 2
    await write_result(admin, {"data": dict.fromkeys([*full, *mine])})


async def test_an_agent_cannot_write_results_of_other_nodes(stolen: dict[str, Client], admin: Client) -> None:
    agent = stolen["agent"]
    others = encode_samples([sample("node-b", "node-a")], ["p90"])
    await write_result(admin, {"data": others})
    patches: list[Any] = [{"data": encode_samples([sample("node-b", "node-c")], ["p90"])}]
    for key in others:
        patches += [{"data": dict.fromkeys([key])}, {"data": {key: "7"}}]
    for origin, value in (
        ("node-b", '{"origin":{"node":"node-a","node":"node-b","zone":"zone-b"}}'),
        ("node-b", '{"origin":{"node":"node-a","zone":"zone-a"}}'),
        ("node-a.example.com", "{}"),
        ("node-a-2", "{}"),
        ("node-a", "x" * 5000),  # its own key, but no sample takes so much
    ):
        key = sample_key(NodeLocation(origin, "zone-b"), NodeLocation("node-a2", "zone-a"), "TCP_RR")
        patches += [{"data": {key: value}}, {"data": {f"{key}.failed": value}}]
    refusals = [(await dry_run(agent, "PATCH", RESULTS, patch))[0] for patch in patches]
    assert [text for text in refusals if not re.search("^403 .*an agent on node-a", text)] == []
    own = {"data": encode_samples([sample("node-a", "node-b")])}
    assert set(others) < set(await write_result(agent, own)), "its own key beside the other's is fine"


def foreign_managed_fields(fields: Json, version: str = "v1") -> Json:
    """managedFields of another writer."""
    entry = {"apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": "x", "operation": "Update"}
    return {"metadata": {"managedFields": [entry]}}


LONG = [f"{i:05d}{'x' * 180}" for i in range(3000)]
FILLERS = {
    "names": {"data": {f"netaware.v1.node-a_{name}": "" for name in LONG}},
    "upstream": {"data": {f"netperf.p90.latency.milliseconds.origin.node-a.destination.{name}": "1" for name in LONG}},
    # Four bytes each, and one character to a policy that does not count bytes.
    "wide": {"data": {f"netaware.v1.node-a_{i}": "\U0001f600" * 2000 for i in range(120)}},
    "managed": foreign_managed_fields({"f:data": {f"f:{name}": {} for name in LONG}}),
    "managed-deep": foreign_managed_fields({"f:data": {"f:x": {f"f:{name}": {} for name in LONG}}}),
    "managed-other": foreign_managed_fields({f"f:{name}": {} for name in LONG}),
    "managed-version": foreign_managed_fields({"f:data": {"f:x": {}}}, version="x" * 600_000),
}


async def test_an_agent_cannot_fill_the_results_configmap(stolen: dict[str, Client], admin: Client) -> None:
    for name, patch in FILLERS.items():
        with suppress(ApiError):
            await write_result(stolen["agent"], patch)
        assert len(await admin.request("GET", RESULTS)) < 500_000, name


async def test_policies_have_no_type_errors(kubectl: Kubectl) -> None:
    """The controller manager type-checks the expressions."""
    policies = ("get", "validatingadmissionpolicies", "-o")

    async def are_checked() -> bool:
        path = "jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {end}"
        pairs = (await kubectl(*policies, path)).split()
        return all(pair.split("=")[0] == pair.split("=")[1] for pair in pairs)

    await poll_until(are_checked)
    warnings = await kubectl(*policies, "jsonpath={range .items[*]}{.status.typeChecking}{end}")
    assert warnings.replace("{}", "") == ""
