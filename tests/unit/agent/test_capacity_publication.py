"""Writes on the node: only differences, only our own key, and never a zero."""

from __future__ import annotations

import msgspec
import pytest

from agent.capacity.node_capacity import NodeCapacity
from agent.capacity.publication import plan_withdrawal, plan_writes
from agent.node import NodeInfo, OwnNode, OwnNodeStatus
from kubekit.wire import Condition, ObjectMeta
from netperf.contract import BANDWIDTH_RESOURCE

NOW = 1_800_000_000.0
KEY = "network.aware.com~1bandwidth"
KNOWN = NodeCapacity(rate_bps=10**10, source="hardware", explanation="eno1 10G by sysfs")
UNKNOWN = NodeCapacity(rate_bps=None, source="unknown", explanation="eth0 is down")
MISCONFIGURED = msgspec.structs.replace(UNKNOWN, warnings=("--reserve: nothing is left of 1 bit/s",))
KUBELET = NodeInfo(kubelet_version="v1.36.3")


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


def published_node(**changes: object) -> OwnNode:
    """A node on which the capacity is published."""
    condition = Condition("NetawareBandwidth", "True", "Hardware", KNOWN.explanation, "2027-01-15T08:00:00Z")
    full: dict[str, object] = {
        "capacity": {"cpu": "8", BANDWIDTH_RESOURCE: "10G"},
        "allocatable": {"cpu": "8", BANDWIDTH_RESOURCE: "10G"},
        "annotations": {
            "netaware.io/bandwidth-owner": "netaware-agent",
            "netaware.io/bandwidth-source": "hardware: eno1 10G by sysfs",
        },
        "conditions": [condition],
    }
    return make_node(**{**full, **changes})  # type: ignore[arg-type]


def owned_by(name: str) -> dict[str, str]:
    return {"netaware.io/bandwidth-owner": name}


ADD = {"op": "add", "path": f"/status/capacity/{KEY}", "value": "10000000000"}
ADD_MAP = {"op": "add", "path": "/status/capacity", "value": {BANDWIDTH_RESOURCE: "10000000000"}}
REMOVE = {"op": "remove", "path": f"/status/capacity/{KEY}"}
ZEROED, OTHER = {"cpu": "8", BANDWIDTH_RESOURCE: "0"}, {BANDWIDTH_RESOURCE: "1G"}


@pytest.mark.parametrize(
    ("before", "bandwidth", "operations", "reason"),
    [
        (published_node(), KNOWN, [], None),
        (make_node(), KNOWN, [ADD_MAP], "Hardware"),
        (published_node(capacity=ZEROED), KNOWN, [ADD], None),
        (published_node(capacity={"cpu": "8"}), KNOWN, [ADD], None),
        (published_node(), UNKNOWN, [], "CapacityUnknown"),
        (published_node(capacity={BANDWIDTH_RESOURCE: "0"}), UNKNOWN, [REMOVE], "CapacityUnknown"),
        (make_node(capacity={"cpu": "8"}), UNKNOWN, [], "CapacityUnknown"),
        (make_node(capacity=OTHER, annotations=owned_by("network-team")), KNOWN, [], "OwnedByOther"),
        (make_node(capacity=OTHER), KNOWN, [], "OwnedByOther"),
        (make_node(capacity=OTHER, annotations=owned_by("netaware-agent")), KNOWN, [ADD], "Hardware"),
        (make_node(), MISCONFIGURED, [], "Misconfigured"),
    ],
    ids=[
        *("published", "a new node", "zeroed by a kubelet", "dropped by a kubelet", "a value no longer known stays"),
        *("a zero of the kubelet is removed", "unknown from the start", "a value of another owner stays"),
        *("a value without an owner stays", "an old value of ours", "misconfigured"),
    ],
)
def test_capacity_and_condition_are_written_where_they_differ_and_are_ours(
    before: OwnNode, bandwidth: NodeCapacity, operations: list[object], reason: str | None
) -> None:
    writes = plan_writes(before, bandwidth, NOW)
    assert list(writes.status) == operations
    assert (writes.metadata is not None) == (reason == "Hardware")
    if reason is None:
        assert writes.condition is None
        return
    (condition,) = msgspec.json.decode(msgspec.json.encode(writes.condition))["status"]["conditions"]
    assert (condition["reason"], condition["status"]) == (reason, str(reason == "Hardware"))
    assert condition["message"]


def test_the_first_publication_names_the_owner_and_a_source_that_is_cut_to_the_allowed_length() -> None:
    long = msgspec.structs.replace(KNOWN, explanation="bond0: " + "eno1 25G by sysfs; " * 50)
    for bandwidth, source in ((KNOWN, "hardware: eno1 10G by sysfs"), (long, None)):
        writes = plan_writes(make_node(capacity={"cpu": "8"}), bandwidth, NOW)
        assert writes.status == (ADD,)
        annotations = msgspec.convert(writes.metadata, dict[str, dict[str, dict[str, str]]])["metadata"]["annotations"]
        assert annotations["netaware.io/bandwidth-owner"] == "netaware-agent"
        assert source in {None, annotations["netaware.io/bandwidth-source"]}
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
    fresh = make_node(capacity={"cpu": "8"}, allocatable={"cpu": "8"}, annotations=annotations, info=info)
    writes = plan_writes(fresh, KNOWN, NOW)
    assert len(writes.status) == (2 if writes_both else 1)


def test_cleanup_removes_only_our_own_writes() -> None:
    writes = plan_withdrawal(published_node())
    assert [op["path"] for op in writes.status] == [f"/status/{field}/{KEY}" for field in ("capacity", "allocatable")]
    removals = {"netaware.io/bandwidth-owner": None, "netaware.io/bandwidth-source": None}
    assert writes.metadata == {"metadata": {"annotations": removals}}
    assert writes.condition is not None
    assert plan_withdrawal(make_node(capacity=OTHER, annotations=owned_by("network-team"))).status == ()
