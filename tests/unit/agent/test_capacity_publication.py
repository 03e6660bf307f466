"""Writes on the node: only differences, only our own key, and never a zero."""

from __future__ import annotations

import msgspec
import pytest

from agent.capacity.node_capacity import NodeCapacity
from agent.capacity.publication import plan_withdrawal, plan_writes
from agent.node import NodeInfo, OwnNode, OwnNodeStatus
from kubekit.wire import Condition, ObjectMeta
from netperf.contract import BANDWIDTH_RESOURCE

NOW_S = 1_800_000_000.0
KEY = "network.aware.com~1bandwidth"
KNOWN = NodeCapacity(rate_bps=10**10, source="hardware", explanation="eno1 10G by sysfs")
UNKNOWN = NodeCapacity(rate_bps=None, source="unknown", explanation="eth0 is down")
MISCONFIGURED = msgspec.structs.replace(UNKNOWN, warnings=("--reserve: nothing is left of 1 bit/s",))
KUBELET = NodeInfo(kubelet_version="v1.36.3")
OUR_ANNOTATIONS = {
    "netaware.io/bandwidth-owner": "netaware-agent",
    "netaware.io/bandwidth-source": "hardware: eno1 10G by sysfs",
}
ADD = {"op": "add", "path": f"/status/capacity/{KEY}", "value": "10000000000"}
ADD_MAP = {"op": "add", "path": "/status/capacity", "value": {BANDWIDTH_RESOURCE: "10000000000"}}
REMOVE = {"op": "remove", "path": f"/status/capacity/{KEY}"}
ZEROED = {"cpu": "8", BANDWIDTH_RESOURCE: "0"}


def make_node(
    *,
    capacity: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    conditions: list[Condition] | None = None,
    info: NodeInfo = KUBELET,
) -> OwnNode:
    status = OwnNodeStatus(capacity=capacity, allocatable=allocatable, conditions=conditions, node_info=info)
    return OwnNode(metadata=ObjectMeta(name="n1", annotations=annotations), status=status)


def make_published_node(capacity: dict[str, str] | None = None) -> OwnNode:
    """A node on which the known capacity is published, and then perhaps changed."""
    return make_node(
        capacity=capacity or {"cpu": "8", BANDWIDTH_RESOURCE: "10G"},
        allocatable={"cpu": "8", BANDWIDTH_RESOURCE: "10G"},
        annotations=OUR_ANNOTATIONS,
        conditions=[Condition("NetawareBandwidth", "True", "Hardware", KNOWN.explanation, "2027-01-15T08:00:00Z")],
    )


def make_owned_node(owner: str = "") -> OwnNode:
    """A node with another value than the known one, perhaps with an owner's annotation."""
    annotations = {"netaware.io/bandwidth-owner": owner} if owner else None
    return make_node(capacity={BANDWIDTH_RESOURCE: "1G"}, annotations=annotations)


@pytest.mark.parametrize(
    ("before", "node_capacity", "operations", "reason"),
    [
        pytest.param(make_published_node(), KNOWN, [], None, id="published"),
        pytest.param(make_node(), KNOWN, [ADD_MAP], "Hardware", id="a new node"),
        pytest.param(make_published_node(ZEROED), KNOWN, [ADD], None, id="zeroed by a kubelet"),
        pytest.param(make_published_node({"cpu": "8"}), KNOWN, [ADD], None, id="dropped by a kubelet"),
        pytest.param(make_published_node(), UNKNOWN, [], "CapacityUnknown", id="a value no longer known stays"),
        pytest.param(make_published_node(ZEROED), UNKNOWN, [REMOVE], "CapacityUnknown", id="a zero is removed"),
        pytest.param(make_node(capacity={"cpu": "8"}), UNKNOWN, [], "CapacityUnknown", id="unknown from the start"),
        pytest.param(make_owned_node("network-team"), KNOWN, [], "OwnedByOther", id="another owner's value stays"),
        pytest.param(make_owned_node(), KNOWN, [], "OwnedByOther", id="a value without an owner stays"),
        pytest.param(make_owned_node("netaware-agent"), KNOWN, [ADD], "Hardware", id="an old value of ours"),
        pytest.param(make_node(), MISCONFIGURED, [], "Misconfigured", id="misconfigured"),
    ],
)
def test_capacity_and_condition_are_written_where_they_differ_and_are_ours(
    before: OwnNode, node_capacity: NodeCapacity, operations: list[object], reason: str | None
) -> None:
    writes = plan_writes(before, node_capacity, NOW_S)
    assert list(writes.status) == operations
    assert (writes.metadata is not None) == (reason == "Hardware")
    if reason is None:
        assert writes.condition is None
        return
    (condition,) = msgspec.json.decode(msgspec.json.encode(writes.condition))["status"]["conditions"]
    assert condition["reason"] == reason
    assert condition["status"] == str(reason == "Hardware")
    assert condition["message"]


def test_the_first_publication_names_the_owner_and_the_source() -> None:
    writes = plan_writes(make_node(capacity={"cpu": "8"}), KNOWN, NOW_S)
    assert writes.status == (ADD,)
    assert writes.metadata == {"metadata": {"annotations": OUR_ANNOTATIONS}}


def test_a_long_source_is_cut_to_the_allowed_length() -> None:
    many_links = msgspec.structs.replace(KNOWN, explanation="bond0: " + "eno1 25G by sysfs; " * 50)
    writes = plan_writes(make_node(), many_links, NOW_S)
    annotations = msgspec.convert(writes.metadata, dict[str, dict[str, dict[str, str]]])["metadata"]["annotations"]
    assert len(annotations["netaware.io/bandwidth-source"]) < 600


@pytest.mark.parametrize(
    ("info", "is_kwok", "writes_both"),
    [
        (KUBELET, False, False),
        (KUBELET, True, True),
        (NodeInfo(), False, True),
        (NodeInfo(kubelet_version="kwok-v0.8.0"), False, True),
    ],
)
def test_allocatable_is_written_only_where_no_kubelet_copies_it(
    info: NodeInfo, is_kwok: bool, writes_both: bool
) -> None:
    annotations = {"kwok.x-k8s.io/node": "fake"} if is_kwok else None
    node = make_node(capacity={"cpu": "8"}, allocatable={"cpu": "8"}, annotations=annotations, info=info)
    writes = plan_writes(node, KNOWN, NOW_S)
    assert len(writes.status) == (2 if writes_both else 1)


def test_cleanup_removes_only_our_own_writes() -> None:
    writes = plan_withdrawal(make_published_node())
    paths = [operation["path"] for operation in writes.status]
    assert paths == [f"/status/capacity/{KEY}", f"/status/allocatable/{KEY}"]
    assert writes.metadata == {"metadata": {"annotations": dict.fromkeys(OUR_ANNOTATIONS)}}
    assert writes.condition is not None
    assert plan_withdrawal(make_owned_node("network-team")).status == ()
