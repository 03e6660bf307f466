"""An agent's token is worth its own node and no other: held by the real API server, with the shipped rights and policies."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from kubekit.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, ConfigMap, format_time
from lab.controlplane import ControlPlane
from netperf.results import encode_samples, merge_patch, removal_patch, sample_key
from netperf.sample import Measurement, Place, Sample
from tests.integration.conftest import eventually
from tests.integration.manifests.conftest import TokenFor
from tests.integration.manifests.kubectl import NAMESPACE, Kubectl

RESULTS = "netperf-metrics"
Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("agent_installed")


@pytest_asyncio.fixture
async def agent(agent_installed: None, token_for: TokenFor, admin: Client) -> AsyncIterator[Client]:
    """The agent on node-a, once the policies are in force; the results are there, as the controller makes them."""
    await admin.create(CONFIGMAPS, config_map(RESULTS), ConfigMap, namespace=NAMESPACE)
    async with Client(await token_for("netaware-agent", "node-a")) as client:

        async def policies_hold() -> bool:
            return "netaware-agent-own-node" in await said_to(client, "PATCH", NODE_B, annotated("netaware.io/x"))

        await eventually(policies_hold)
        yield client
    await admin.delete(CONFIGMAPS, RESULTS, namespace=NAMESPACE)


async def said_to(client: Client, method: str, path: str, body: Any = None, content: str = MERGE_PATCH) -> str:
    """What the API server says to a request that stores nothing; empty where it is let through."""
    query = "" if method == "GET" else "?dryRun=All"
    content = content if method == "PATCH" else "application/json"
    try:
        await client.request(method, path + query, body=body, content_type=content)
    except ApiError as error:
        return f"{error.status} {error.message}"
    return ""


def sample(origin: str, destination: str, sequence: int = 0) -> Sample:
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=500.0, p90_us=700.0, p99_us=900.0)
    ends = Place(origin, "zone-a", "r"), Place(destination, "zone-b", "r")
    return Sample(origin=ends[0], destination=ends[1], measurement=measurement, sequence=sequence)


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}


def annotated(key: str, value: str = "{}") -> Json:
    return {"metadata": {"annotations": {key: value}}}


def event(kind: str, name: str, instance: str) -> Json:
    about = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": "" if kind == "Node" else "default"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": "default"},
        "eventTime": format_time(time.time(), micro=True),
        "reportingController": "netaware-agent",
        "reportingInstance": instance,
        "action": "Publish",
        "reason": "CapacityPublished",
        "regarding": about,
        "note": "1 Gbit/s",
        "type": "Normal",
    }


NODE_A, NODE_B = "/api/v1/nodes/node-a", "/api/v1/nodes/node-b"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
MAPS, SECRETS = (f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("configmaps", "secrets"))
CAPACITY = [{"op": "add", "path": "/status/capacity", "value": {"network.aware.com/bandwidth": "1000000000"}}]
OF_US = {"type": "NetawareBandwidth", "status": "True", "reason": "Hardware", "message": "eth0"}
ZONE = {"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}
ONLY_OURS, NOTHING_ELSE = "403 .* no capacity but network.aware.com/bandwidth", "403 .* nothing else in a node's status"
OF_8192_BYTES = "403 .* one condition NetawareBandwidth, of 8192 bytes at most"
FOREIGN_NOTE, OTHERS_NODE = (
    "403 .* no node annotations but netaware.io/agent",
    "issued for node node-a, the request is for node-b",
)
# Who, how, what, and what the API server says to it: nothing where it is what the token is there for.
ASKED: tuple[tuple[str, str, str, Any, str], ...] = (
    ("agent", "PATCH", f"{NODE_A}/status", CAPACITY, ""),
    ("agent", "PATCH", NODE_A, annotated("netaware.io/agent"), ""),
    ("agent", "PATCH", f"{NODE_A}/status", {"status": {"conditions": [OF_US]}}, ""),
    ("agent", "PATCH", f"{NODE_B}/status", CAPACITY, f"403 .*{OTHERS_NODE}"),
    ("agent", "PATCH", NODE_B, annotated("netaware.io/agent"), f"403 .*{OTHERS_NODE}"),
    ("agent", "PATCH", f"{NODE_A}/status", {"status": {"capacity": {"cpu": "64"}}}, ONLY_OURS),
    ("agent", "PATCH", f"{NODE_A}/status", {"status": {"allocatable": {"cpu": "64"}}}, ONLY_OURS),
    (
        "agent",
        "PATCH",
        f"{NODE_A}/status",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        NOTHING_ELSE,
    ),
    (
        "agent",
        "PATCH",
        f"{NODE_A}/status",
        {"status": {"conditions": [{**OF_US, "message": "x" * 9000}]}},
        OF_8192_BYTES,
    ),
    (
        "agent",
        "PATCH",
        f"{NODE_A}/status",
        [{"op": "add", "path": "/status/conditions", "value": [OF_US, OF_US]}],
        OF_8192_BYTES,
    ),
    (
        "agent",
        "PATCH",
        f"{NODE_A}/status",
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}},
        NOTHING_ELSE,
    ),
    ("agent", "PATCH", f"{NODE_A}/status", {"status": {"nodeInfo": {"kernelVersion": "9"}}}, NOTHING_ELSE),
    ("agent", "PATCH", NODE_A, annotated("example.com/x"), FOREIGN_NOTE),
    ("agent", "PATCH", NODE_A, annotated("netaware.io/agent", "x" * 513), "403 .*of 512 bytes at most"),
    ("agent", "PATCH", f"{NODE_A}/status", annotated("example.com/x"), FOREIGN_NOTE),
    ("agent", "PATCH", NODE_A, annotated("netaware.io/bandwidth-capacity", "1T"), FOREIGN_NOTE),
    ("agent", "PATCH", NODE_A, ZONE, "403 .*neither labels"),
    ("agent", "PATCH", f"{NODE_A}/status", ZONE, "403 .*neither labels"),
    ("agent", "PATCH", NODE_A, {"metadata": {"finalizers": ["example.com/x"]}}, "403 .*neither labels, finalizers"),
    ("agent", "PATCH", NODE_A, {"spec": {"unschedulable": True}}, "403 .*nor the spec"),
    ("agent", "PATCH", NODE_A, {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, "403 .*nor the spec"),
    ("unbound", "PATCH", f"{NODE_A}/status", CAPACITY, r"issued for node \(none\)"),
    ("unbound", "PATCH", f"{MAPS}/{RESULTS}", {"data": {"x": "y"}}, "writes only the results"),
    ("unbound", "POST", EVENTS, event("Node", "node-a", "node-a"), "signs its events"),
    # A shard that is not planned is not there, and nobody but the controller makes one.
    *(
        ("agent", method, path, body, "40[34] ")
        for name in ("netaware-plan-zone-a-12345678", "kube-root-ca.crt", "netperf-metrics-x", "netperf-metrics-7")
        for method, path, body in (
            ("POST", MAPS, config_map(name)),
            ("PATCH", f"{MAPS}/{name}", {"data": {"x": "y"}}),
        )
    ),
    ("agent", "POST", EVENTS, event("Node", "node-a", "node-a"), ""),
    ("agent", "POST", EVENTS, event("Pod", "some-pod", "node-a"), ""),
    ("agent", "POST", EVENTS, event("Node", "node-b", "node-a"), "on pods and on its own node, node-a"),
    (
        "agent",
        "POST",
        EVENTS,
        event("Pod", "some-pod", "node-b"),
        "signs its events with netaware-agent and its own node, node-a",
    ),
    # The kubelet mounts the passphrase; the token cannot read it.
    ("agent", "GET", f"{SECRETS}/netaware-probe", None, "403 "),
    ("agent", "GET", SECRETS, None, "403 "),
    ("admin", "PATCH", NODE_B, ZONE, ""),
    ("admin", "POST", MAPS, config_map("somebodys"), ""),
)


async def test_a_token_is_good_for_the_work_of_its_own_node_and_nothing_else(
    agent: Client, admin: Client, token_for: TokenFor
) -> None:
    wrong = []
    async with Client(await token_for("netaware-agent", "")) as unbound:
        clients = {"agent": agent, "unbound": unbound, "admin": admin}
        for who, method, path, body, expected in ASKED:
            content = JSON_PATCH if isinstance(body, list) else STRATEGIC_PATCH
            said = await said_to(clients[who], method, path, body, content)
            if not re.search(expected or "^$", said):
                wrong.append((who, method, path, body, said))
    assert wrong == []


async def written(client: Client, patch: Json) -> dict[str, str]:
    return (await client.patch(CONFIGMAPS, RESULTS, patch, ConfigMap, namespace=NAMESPACE)).data or {}


async def test_an_agent_writes_replaces_and_removes_the_results_of_its_own_probes(agent: Client, admin: Client) -> None:
    first = encode_samples([sample("node-a", "node-b")], ["p50", "p90", "p99"])
    await written(agent, merge_patch(first))
    second = encode_samples([sample("node-a", "node-b", sequence=1), sample("node-a", "node-c")])
    assert set(first) | set(second) == set(await written(agent, merge_patch(second)))
    assert set(await written(agent, removal_patch(first))) == set(second) - set(first)
    await written(agent, removal_patch(second))
    mine = encode_samples([sample("node-a", "node-b")], ["p90"])
    for squatted in ("{half", '{"origin":{"node":"node-b","zone":"zone-b"}}', ""):
        await written(admin, merge_patch(dict.fromkeys(mine, squatted)))
        assert await written(agent, merge_patch(mine)) == mine
        await written(agent, removal_patch(mine))
    # 990 pairs in both formats, the most a shard holds: the policy stays within the API server's cost limit.
    full: dict[str, str | None] = {}
    for index in range(990):
        full |= encode_samples([sample("node-b", f"node-{index}")], ["p50", "p90", "p99"])
    await written(admin, merge_patch(full))
    assert len(await written(agent, merge_patch(mine))) == len(full) + 2


async def test_an_agent_is_refused_for_results_of_other_nodes_whatever_their_values_say(
    agent: Client, admin: Client
) -> None:
    others = encode_samples([sample("node-b", "node-a")], ["p90"])
    assert "an agent on node-a writes only results" in await said_to(
        agent, "PATCH", f"{MAPS}/{RESULTS}", merge_patch(others)
    )
    await written(admin, merge_patch(others))
    patches: list[Json] = []
    for key in others:
        patches += [removal_patch([key]), merge_patch({key: "7"})]
    for origin, value in (
        ("node-b", '{"origin":{"node":"node-a","node":"node-b","zone":"zone-b"}}'),
        ("node-b", '{"origin":{"node":"node-a","zone":"zone-a"}}'),
        ("node-a.example.com", "{}"),
        ("node-a-2", "{}"),
        ("node-a", "x" * 5000),  # its own key, but no sample takes so much
    ):
        key = sample_key(Place(origin, "zone-b"), Place("node-a2", "zone-a"), "TCP_RR")
        patches += [merge_patch({key: value}), merge_patch({f"{key}.failed": value})]
    refusal = "^403 .*an agent on node-a"
    said = [await said_to(agent, "PATCH", f"{MAPS}/{RESULTS}", patch) for patch in patches]
    assert [text for text in said if not re.search(refusal, text)] == []
    beside = merge_patch(encode_samples([sample("node-a", "node-b")]))
    assert set(others) < set(await written(agent, beside)), "its own key beside the other's is fine"


def noted(fields: Json, version: str = "v1") -> Json:
    """What the server notes of who wrote what, by somebody else."""
    entry = {"apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": "x", "operation": "Update"}
    return {"metadata": {"managedFields": [entry]}}


LONG = [f"{i:05d}{'x' * 180}" for i in range(3000)]
FILLERS = {
    "names": {"data": {f"netaware.v1.node-a_{name}": "" for name in LONG}},
    "upstream": {"data": {f"netperf.p90.latency.milliseconds.origin.node-a.destination.{name}": "1" for name in LONG}},
    # Four bytes each, and one character to a policy that does not count bytes.
    "wide": {"data": {f"netaware.v1.node-a_{i}": "\U0001f600" * 2000 for i in range(120)}},
    "managed": noted({"f:data": {f"f:{name}": {} for name in LONG}}),
    "managed-deep": noted({"f:data": {"f:x": {f"f:{name}": {} for name in LONG}}}),
    "managed-other": noted({f"f:{name}": {} for name in LONG}),
    "managed-version": noted({"f:data": {"f:x": {}}}, version="x" * 600_000),
}


async def test_agent_cannot_fill_the_results(agent: Client, admin: Client) -> None:
    for name, patch in FILLERS.items():
        with suppress(ApiError):
            await written(agent, patch)
        assert len(await admin.request("GET", f"{MAPS}/{RESULTS}")) < 500_000, name


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
