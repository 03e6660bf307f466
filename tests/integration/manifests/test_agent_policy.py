"""An agent's token is worth its own node and no other: held by the real API server, with the shipped rights and policies."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from kubekit.client import JSON_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, EVENTS, NODES, SECRETS, ConfigMap, Node, Object, Secret, format_time
from lab.controlplane import ControlPlane
from netperf.results import encode_samples, merge_patch, removal_patch, sample_key
from netperf.sample import Measurement, Place, Sample
from tests.integration.conftest import eventually
from tests.integration.manifests.conftest import TokenFor
from tests.integration.manifests.kubectl import NAMESPACE, Kubectl

RESULTS = "netperf-metrics"
CAPACITY = [{"op": "add", "path": "/status/capacity", "value": {"network.aware.com/bandwidth": "1000000000"}}]
pytestmark = pytest.mark.usefixtures("agent_installed")


@pytest_asyncio.fixture
async def agent(agent_installed: None, token_for: TokenFor, admin: Client) -> AsyncIterator[Client]:
    """The agent on node-a, once the policies are in force; the results are there, as the controller makes them."""
    await admin.create(CONFIGMAPS, config_map(RESULTS, {}), ConfigMap, namespace=NAMESPACE)
    async with Client(await token_for("netaware-agent", "node-a")) as client:

        async def policies_hold() -> bool:
            try:
                await client.patch(NODES, "node-b", {"metadata": {"annotations": {"netaware.io/x": None}}}, Node)
            except ApiError as error:
                return "netaware-agent-own-node" in error.message
            return False

        await eventually(policies_hold)
        yield client
    await admin.delete(CONFIGMAPS, RESULTS, namespace=NAMESPACE)


@pytest_asyncio.fixture
async def unbound(token_for: TokenFor) -> AsyncIterator[Client]:
    """The agent's service account with a token of no pod, as anybody could ask for who may create tokens."""
    async with Client(await token_for("netaware-agent", "")) as client:
        yield client


def sample(origin: str, destination: str, sequence: int = 0) -> Sample:
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=500.0, p90_us=700.0, p99_us=900.0)
    return Sample(
        origin=Place(origin, "zone-a", "r"),
        destination=Place(destination, "zone-b", "r"),
        measurement=measurement,
        sequence=sequence,
    )


def config_map(name: str, data: dict[str, str | None]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def event(kind: str, name: str, instance: str) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": "default"},
        "eventTime": format_time(time.time(), micro=True),
        "reportingController": "netaware-agent",
        "reportingInstance": instance,
        "action": "Publish",
        "reason": "CapacityPublished",
        "regarding": {
            "apiVersion": "v1",
            "kind": kind,
            "name": name,
            "namespace": "" if kind == "Node" else "default",
        },
        "note": "1 Gbit/s",
        "type": "Normal",
    }


async def test_agent_publishes_capacity_of_its_own_node(agent: Client) -> None:
    node = await agent.patch(NODES, "node-a", CAPACITY, Node, kind=JSON_PATCH, subresource="status")
    assert (node.status.capacity or {})["network.aware.com/bandwidth"] == "1G"
    note = {"metadata": {"annotations": {"netaware.io/agent": "{}"}}}
    assert (await agent.patch(NODES, "node-a", note, Node)).metadata.annotation("netaware.io/agent") == "{}"
    state = {"type": "NetawareBandwidth", "status": "True", "reason": "Hardware", "message": "eth0"}
    known = {"status": {"conditions": [state]}}
    node = await agent.patch(NODES, "node-a", known, Node, kind=STRATEGIC_PATCH, subresource="status")
    assert "NetawareBandwidth" in [condition.type for condition in node.status.conditions or ()]
    back = [{"op": "remove", "path": "/status/capacity/network.aware.com~1bandwidth"}]
    node = await agent.patch(NODES, "node-a", back, Node, kind=JSON_PATCH, subresource="status")
    assert "network.aware.com/bandwidth" not in (node.status.capacity or {})


async def test_agent_is_refused_for_another_node(agent: Client) -> None:
    with pytest.raises(ApiError, match="issued for node node-a, the request is for node-b") as refused:
        await agent.patch(NODES, "node-b", CAPACITY, Node, kind=JSON_PATCH, subresource="status")
    assert refused.value.forbidden
    with pytest.raises(ApiError, match="issued for node node-a, the request is for node-b"):
        await agent.patch(NODES, "node-b", {"metadata": {"annotations": {"netaware.io/agent": "{}"}}}, Node)


@pytest.mark.parametrize(
    ("change", "subresource", "said"),
    [
        ({"status": {"capacity": {"cpu": "64"}}}, "status", "no capacity but network.aware.com/bandwidth"),
        ({"status": {"allocatable": {"cpu": "64"}}}, "status", "no capacity but network.aware.com/bandwidth"),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            "status",
            "nothing else in a node's status",
        ),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}}, "status", "nothing else"),
        ({"status": {"nodeInfo": {"kernelVersion": "9"}}}, "status", "nothing else"),
        ({"metadata": {"annotations": {"example.com/x": "1"}}}, None, "no node annotations but netaware.io/agent"),
        ({"metadata": {"annotations": {"netaware.io/agent": "x" * 513}}}, None, "of 512 bytes at most"),
        ({"metadata": {"annotations": {"example.com/x": "1"}}}, "status", "no node annotations but netaware.io/agent"),
        ({"metadata": {"annotations": {"netaware.io/bandwidth-capacity": "1T"}}}, None, "no node annotations but"),
        ({"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}, None, "neither labels"),
        ({"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}, "status", "neither labels"),
        ({"metadata": {"finalizers": ["example.com/x"]}}, None, "neither labels, finalizers"),
        ({"spec": {"unschedulable": True}}, None, "nor the spec"),
        ({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, None, "nor the spec"),
    ],
)
async def test_agent_changes_nothing_else_of_its_node(
    agent: Client, change: dict[str, Any], subresource: str | None, said: str
) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        await agent.patch(NODES, "node-a", change, Node, subresource=subresource)
    assert refused.value.forbidden


async def test_token_that_is_bound_to_no_pod_writes_nothing(unbound: Client, agent: Client) -> None:
    with pytest.raises(ApiError, match=r"issued for node \(none\)"):
        await unbound.patch(NODES, "node-a", CAPACITY, Node, kind=JSON_PATCH, subresource="status")
    with pytest.raises(ApiError, match="writes only the results"):
        await unbound.patch(CONFIGMAPS, RESULTS, {"data": {"x": "y"}}, ConfigMap, namespace=NAMESPACE)
    with pytest.raises(ApiError, match="signs its events"):
        await unbound.create(EVENTS, event("Node", "node-a", "node-a"), Object, namespace="default")


async def test_agent_writes_results_of_its_own_probes(agent: Client) -> None:
    first = encode_samples([sample("node-a", "node-b")], ["p50", "p90", "p99"])
    await agent.patch(CONFIGMAPS, RESULTS, merge_patch(first), ConfigMap, namespace=NAMESPACE)
    second = encode_samples([sample("node-a", "node-b", sequence=1), sample("node-a", "node-c")])
    written = await agent.patch(CONFIGMAPS, RESULTS, merge_patch(second), ConfigMap, namespace=NAMESPACE)
    assert set(first) | set(second) == set(written.data or {})
    left = await agent.patch(CONFIGMAPS, RESULTS, removal_patch(first), ConfigMap, namespace=NAMESPACE)
    assert set(left.data or {}) == set(second) - set(first)


async def test_agent_is_refused_for_another_nodes_results(agent: Client, admin: Client) -> None:
    others = encode_samples([sample("node-b", "node-a")], ["p90"])
    with pytest.raises(ApiError, match="an agent on node-a writes only results"):
        await agent.patch(CONFIGMAPS, RESULTS, merge_patch(others), ConfigMap, namespace=NAMESPACE)
    await admin.patch(CONFIGMAPS, RESULTS, merge_patch(others), ConfigMap, namespace=NAMESPACE)
    for key in others:
        with pytest.raises(ApiError, match="an agent on node-a"):
            await agent.patch(CONFIGMAPS, RESULTS, removal_patch([key]), ConfigMap, namespace=NAMESPACE)
        taken = merge_patch(dict.fromkeys([key], "7"))
        with pytest.raises(ApiError, match="an agent on node-a"):
            await agent.patch(CONFIGMAPS, RESULTS, taken, ConfigMap, namespace=NAMESPACE)
    beside = merge_patch(encode_samples([sample("node-a", "node-b")]))
    both = await agent.patch(CONFIGMAPS, RESULTS, beside, ConfigMap, namespace=NAMESPACE)
    assert set(others) < set(both.data or {}), "its own key beside the other's is fine"


@pytest.mark.parametrize(
    ("origin", "value"),
    [
        ("node-b", '{"origin":{"node":"node-a","node":"node-b","zone":"zone-b"}}'),
        ("node-b", '{"origin":{"node":"node-a","zone":"zone-a"}}'),
        ("node-a.example.com", "{}"),
        ("node-a-2", "{}"),
        ("node-a", "x" * 5000),
    ],
)
async def test_agent_is_bound_by_the_names_of_keys_whatever_their_values_say(
    agent: Client, origin: str, value: str
) -> None:
    """The last is its own key, but no sample takes so much."""
    first = sample_key(Place(origin, "zone-b"), Place("node-a2", "zone-a"), "TCP_RR")
    for key in (first, first + ".failed"):
        with pytest.raises(ApiError, match="writes only results that its own node is the origin of") as refused:
            await agent.patch(CONFIGMAPS, RESULTS, merge_patch({key: value}), ConfigMap, namespace=NAMESPACE)
        assert refused.value.forbidden


@pytest.mark.parametrize("squatted", ["{half", '{"origin":{"node":"node-b","zone":"zone-b"}}', ""])
async def test_agent_replaces_and_removes_whatever_stands_under_its_own_keys(
    agent: Client, admin: Client, squatted: str
) -> None:
    mine = encode_samples([sample("node-a", "node-b")], ["p90"])
    await admin.patch(CONFIGMAPS, RESULTS, merge_patch(dict.fromkeys(mine, squatted)), ConfigMap, namespace=NAMESPACE)
    written = await agent.patch(CONFIGMAPS, RESULTS, merge_patch(mine), ConfigMap, namespace=NAMESPACE)
    assert written.data == mine
    await agent.patch(CONFIGMAPS, RESULTS, removal_patch(mine), ConfigMap, namespace=NAMESPACE)


@pytest.mark.parametrize(
    "name", ["netaware-plan-zone-a-12345678", "kube-root-ca.crt", "netperf-metrics-x", "netperf-metrics-7"]
)
async def test_agent_writes_no_other_config_map(agent: Client, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        await agent.create(CONFIGMAPS, config_map(name, {}), ConfigMap, namespace=NAMESPACE)
    assert refused.value.forbidden
    with pytest.raises(ApiError) as refused:
        await agent.patch(CONFIGMAPS, name, {"data": {"x": "y"}}, ConfigMap, namespace=NAMESPACE)
    # A shard that is not planned is not there, and nobody but the controller makes one.
    assert refused.value.forbidden or refused.value.not_found


async def test_agent_writes_events_on_pods_and_its_own_node_in_its_own_name(agent: Client) -> None:
    for kind, name in (("Node", "node-a"), ("Pod", "some-pod")):
        await agent.create(EVENTS, event(kind, name, "node-a"), Object, namespace="default")
    with pytest.raises(ApiError, match="on pods and on its own node, node-a"):
        await agent.create(EVENTS, event("Node", "node-b", "node-a"), Object, namespace="default")
    with pytest.raises(ApiError, match="signs its events with netaware-agent and its own node, node-a"):
        await agent.create(EVENTS, event("Pod", "some-pod", "node-b"), Object, namespace="default")


async def test_agent_reads_no_secret(agent: Client, admin: Client) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "netaware-probe"},
        "stringData": {"passphrase": "x"},
    }
    await admin.create(SECRETS, body, Object, namespace=NAMESPACE)
    try:
        for name in ("netaware-probe", "any-other"):
            with pytest.raises(ApiError) as refused:
                await agent.get(SECRETS, name, Secret, namespace=NAMESPACE)
            assert refused.value.forbidden, "the kubelet mounts the passphrase; the token cannot read it"
        with pytest.raises(ApiError):
            await agent.list(SECRETS, Secret)
    finally:
        await admin.delete(SECRETS, "netaware-probe", namespace=NAMESPACE)


async def test_policies_leave_everybody_else_alone(agent: Client, admin: Client) -> None:
    for name in ("node-a", "node-b"):
        await admin.patch(NODES, name, {"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}, Node)
    await admin.create(CONFIGMAPS, config_map("somebodys", {"a": "b"}), ConfigMap, namespace=NAMESPACE)
    await admin.delete(CONFIGMAPS, "somebodys", namespace=NAMESPACE)


async def test_full_shard_with_both_formats_can_still_be_written(agent: Client, admin: Client) -> None:
    """990 pairs in both formats, the most a shard holds: the policy stays within the API server's cost limit."""
    data: dict[str, str | None] = {}
    for index in range(990):
        data |= encode_samples([sample("node-b", f"node-{index}")], ["p50", "p90", "p99"])
    await admin.patch(CONFIGMAPS, RESULTS, merge_patch(data), ConfigMap, namespace=NAMESPACE)
    own = merge_patch(encode_samples([sample("node-a", "node-b")], ["p90"]))
    written = await agent.patch(CONFIGMAPS, RESULTS, own, ConfigMap, namespace=NAMESPACE)
    assert len(written.data or {}) == len(data) + 2


def noted(fields: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    """What the server notes of who wrote what, by somebody else."""
    entry = {"apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": "x", "operation": "Update"}
    return {"metadata": {"managedFields": [entry]}}


LONG = [f"{i:05d}{'x' * 180}" for i in range(3000)]


@pytest.mark.parametrize(
    "patch",
    [
        {"data": {f"netaware.v1.node-a_{name}": "" for name in LONG}},
        {"data": {f"netperf.p90.latency.milliseconds.origin.node-a.destination.{name}": "1" for name in LONG}},
        noted({"f:data": {f"f:{name}": {} for name in LONG}}),
        noted({"f:data": {"f:x": {f"f:{name}": {} for name in LONG}}}),
        noted({f"f:{name}": {} for name in LONG}),
        noted({"f:data": {"f:x": {}}}, version="x" * 600_000),
    ],
    ids=["names", "upstream", "managed", "managed-deep", "managed-other", "managed-version"],
)
async def test_agent_cannot_fill_the_results(agent: Client, admin: Client, patch: dict[str, Any]) -> None:
    with suppress(ApiError):
        await agent.patch(CONFIGMAPS, RESULTS, patch, ConfigMap, namespace=NAMESPACE)
    found = await admin.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{RESULTS}")
    assert len(found) < 500_000


async def test_policies_have_no_type_errors(agent: Client, kubectl: Kubectl, plane: ControlPlane) -> None:
    """The controller manager checks the expressions against the schema and notes what cannot work."""

    async def checked() -> bool:
        path = "jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {end}"
        pairs = (await kubectl("get", "validatingadmissionpolicies", "-o", path)).split()
        return all(pair.split("=")[0] == pair.split("=")[1] for pair in pairs)

    await eventually(checked)
    path = "jsonpath={range .items[*]}{.status.typeChecking}{end}"
    warnings = await kubectl("get", "validatingadmissionpolicies", "-o", path)
    assert warnings.replace("{}", "") == ""
