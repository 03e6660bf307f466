"""Zones and regions from node labels, the nodes of the probe plan, and the log of the planner."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.zones import build_zone_map, is_location_unchanged
from controller.topology.config import TopologyConfig
from controller.topology.planner import PLAN_KEY, ProbePlanner
from controller.topology.probe_nodes import AgentPods, agent_pods_by_node, is_probe_node_unchanged, to_probe_node
from kubekit.addresses import parse_address
from kubekit.wire import ConfigMap, Node, NodeAddress, ObjectMeta
from netperf.pairs import select_probe_nodes
from netperf.plans import encode_plan, plan_object_name
from netperf.sample import NodeLocation
from tests.support.descheduler_builders import PodInfo, make_node, read_pod
from tests.unit.netperf.builders import make_plan

ANNOUNCEMENT = '{"address": "10.0.0.1", "port": 1}'


def make_agent_node(
    name: str, zone: str = "z1", region: str = "r1", *, agent: str = ANNOUNCEMENT, version: str = "1", **fields: Any
) -> Node:
    """A node with two addresses and the announcement of its agent; an empty one means that there is none."""
    labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region}
    bare_node = make_node(name, labels={label: value for label, value in labels.items() if value}, **fields)
    annotations = {"netaware.io/agent": agent} if agent else None
    metadata = msgspec.structs.replace(bare_node.metadata, resource_version=version, annotations=annotations)
    addresses = [NodeAddress("InternalIP", address) for address in ("10.0.0.1", "fd00::1")]
    status = msgspec.structs.replace(bare_node.status, addresses=addresses)
    return msgspec.structs.replace(bare_node, metadata=metadata, status=status)


def make_agent_pod(node_name: str, ips: tuple[str, ...] = (), *, is_terminating: bool = False) -> PodInfo:
    metadata = {"name": "p", "labels": {"app.kubernetes.io/name": "netaware-agent"}}
    deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_terminating else {}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": ip} for ip in ips]}
    return read_pod({"metadata": {**metadata, **deletion}, "spec": {"nodeName": node_name}, "status": status})


def test_zones_get_the_region_of_most_of_their_nodes_and_conflicts_are_reported() -> None:
    zone_map = build_zone_map(
        [
            make_agent_node("a", "z1", "r1"),
            make_agent_node("b", "z1", "r2"),
            make_agent_node("c", "z1", "r2"),
            make_agent_node("d", "z2", ""),
            make_agent_node("e", ""),
        ]
    )
    assert zone_map.region_by_zone == {"z1": "r2", "z2": ""}
    assert zone_map.zones_with_conflicting_regions == ("z1",)
    assert zone_map.unzoned_nodes == ("e",)
    assert zone_map.location_by_node["b"] == NodeLocation("b", "z1", "r2")
    nodes = [make_agent_node("a", "z", "r2"), make_agent_node("b", "z", "r1"), make_agent_node("c", "z", "")]
    for ordered_nodes in (nodes, nodes[::-1]):
        assert build_zone_map(ordered_nodes).region_by_zone == {"z": "r1"}, "of equally many, the first by name"


@pytest.mark.parametrize(
    ("announced_address", "pod_ips", "is_own"),
    [
        ("10.0.0.1", (), True),
        ("", (), True),
        ("fd00::0:1", (), True),
        ("10.0.0.9", (), False),
        ("10.0.0.9", ("10.0.0.9", "fd00::9"), True),
    ],
)
def test_a_node_is_probed_at_an_announced_address_only_if_it_is_its_own(
    announced_address: str, pod_ips: tuple[str, ...], is_own: bool
) -> None:
    """Other agents authenticate there with the passphrase, so it must be an address of the node or of the agent's pod."""
    agent_pods = agent_pods_by_node([make_agent_pod("a", pod_ips)]) if pod_ips else {}
    probe_node = to_probe_node(make_agent_node("a", agent=json.dumps({"address": announced_address})), agent_pods)
    assert probe_node.address == str(parse_address(announced_address or "10.0.0.1"))
    usable, refusals = select_probe_nodes([probe_node])
    assert bool(usable) == is_own
    assert ("foreign-address" in [refusal.reason for refusal in refusals]) != is_own


def test_an_address_that_two_nodes_spell_differently_is_one_address() -> None:
    node_a = to_probe_node(make_agent_node("a", "z1", agent='{"address":"fd00::1"}'), {})
    for spelling in ("fd00::1", "fd00:0::0001"):
        node_b = to_probe_node(make_agent_node("b", "z2", agent=json.dumps({"address": spelling})), {})
        _, refusals = select_probe_nodes([node_a, node_b])
        assert {refusal.reason for refusal in refusals if refusal.key in "ab"} == {"shared-address"}
    assert to_probe_node(make_agent_node("a", agent='{"address":"::ffff:10.0.0.1"}'), {}).address == "10.0.0.1"


@pytest.mark.parametrize(
    # Expected are is_ready, is_schedulable and has_ready_agent.
    ("node", "agent_pods", "expected"),
    [
        (make_agent_node("a"), {}, (True, True, True)),
        (make_agent_node("a", agent=""), {}, (True, True, False)),
        (make_agent_node("a", agent="no json"), {}, (True, True, False)),
        (make_agent_node("a"), {"a": AgentPods(is_ready=False)}, (True, True, False)),
        (make_agent_node("a"), {"a": AgentPods(is_ready=True), "b": AgentPods(is_ready=False)}, (True, True, True)),
        (make_agent_node("a", ready=False), {}, (False, True, True)),
        (make_agent_node("a", unschedulable=True), {}, (True, False, True)),
    ],
)
def test_readiness_cordons_and_agents_decide_whether_a_node_is_probed(
    node: Node, agent_pods: dict[str, AgentPods], expected: tuple[bool, bool, bool]
) -> None:
    probe_node = to_probe_node(node, agent_pods)
    assert (probe_node.is_ready, probe_node.is_schedulable, probe_node.has_ready_agent) == expected


def test_heartbeats_change_neither_location_nor_probe_node_but_labels_and_readiness_do() -> None:
    old = make_agent_node("a")
    assert is_location_unchanged(old, make_agent_node("a", version="2"))
    assert is_probe_node_unchanged(old, make_agent_node("a", version="2"))
    assert not is_location_unchanged(old, make_agent_node("a", "z2"))
    assert is_location_unchanged(old, make_agent_node("a", ready=False))
    assert not is_probe_node_unchanged(old, make_agent_node("a", ready=False))
    assert not is_location_unchanged(None, old)
    assert not is_probe_node_unchanged(old, None)


def test_an_agent_is_ready_when_one_of_its_pods_is_and_not_terminating() -> None:
    pods = [
        make_agent_pod("a", is_terminating=True),
        make_agent_pod("a"),
        make_agent_pod("b", is_terminating=True),
        make_agent_pod(""),
    ]
    assert {name: pods.is_ready for name, pods in agent_pods_by_node(pods).items()} == {"a": True, "b": False}


async def test_the_planner_logs_each_start_and_end_of_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    client = Mock(apply=AsyncMock(), create=AsyncMock(), delete=AsyncMock(), patch=AsyncMock())
    cache = ClusterCache(client, "ns")
    planner = ProbePlanner(client, cache, TopologyConfig(), CollectorRegistry())
    caplog.set_level("INFO")
    plan = make_plan((1, 1)).plan_by_zone["z000"]
    metadata = ObjectMeta(name=plan_object_name(plan.zone), namespace="ns")
    for data, count in zip([encode_plan(plan), {"plan.json": "{"}] * 2, (6, 7, 0, 0), strict=True):
        cache.plans._set(metadata.key, ConfigMap(metadata=metadata, data=data))
        for i in range(7):
            cache.nodes._set(f"n{i}", make_agent_node(f"n{i}", "") if i < count else None)
        await planner._reconcile(PLAN_KEY)
        await planner._reconcile(PLAN_KEY)
    messages = [record.message for record in caplog.records]
    assert messages.count("the probe plan is unreadable and is written again") == 2
    assert messages.count("nodes or zones take no part in probing") == 2, "a node beyond those that are shown counts"
    assert messages.count("all nodes and zones take part in probing") == 1
