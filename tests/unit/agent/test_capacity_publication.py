"""What is written on the node: only what differs, only our own key, and never a zero."""

from __future__ import annotations

import msgspec
import pytest

from agent.capacity.node_bandwidth import NodeBandwidth
from agent.capacity.publication import Writes, has_kubelet, plan_withdrawal, plan_writes
from agent.node import NodeInfo, OwnNode, OwnNodeStatus
from kubekit.wire import Condition, ObjectMeta
from netperf.contract import BANDWIDTH

NOW = 1_800_000_000.0
KEY = "network.aware.com~1bandwidth"
OFFER = NodeBandwidth(rate_bps=10**10, gross_bps=10**10, source="hardware", explanation="eno1 10G by ethtool")
UNKNOWN = NodeBandwidth(rate_bps=None, gross_bps=None, source="unknown", explanation="eth0 is down")
KUBELET = NodeInfo(kubelet_version="v1.36.3")


def node(
    *,
    capacity: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    conditions: list[Condition] | None = None,
    info: NodeInfo = KUBELET,
) -> OwnNode:
    status = OwnNodeStatus(capacity=capacity, allocatable=allocatable, conditions=conditions, node_info=info)
    return OwnNode(metadata=ObjectMeta(name="n1", annotations=annotations), status=status)


def settled(**changes: object) -> OwnNode:
    """A node that says all we want it to say."""
    condition = Condition("NetawareBandwidth", "True", "Hardware", OFFER.explanation, "2027-01-15T08:00:00Z")
    full: dict[str, object] = {
        "capacity": {"cpu": "8", BANDWIDTH: "10G"},
        "allocatable": {"cpu": "8", BANDWIDTH: "10G"},
        "annotations": {
            "netaware.io/bandwidth-owner": "netaware-agent",
            "netaware.io/bandwidth-source": "hardware: eno1 10G by ethtool",
        },
        "conditions": [condition],
    }
    return node(**{**full, **changes})  # type: ignore[arg-type]


def test_a_node_that_says_so_already_is_not_written() -> None:
    assert not plan_writes(settled(), OFFER, NOW)


def test_the_first_publication_names_owner_and_source_beside_the_number() -> None:
    writes = plan_writes(node(capacity={"cpu": "8"}, allocatable={"cpu": "8"}), OFFER, NOW)
    assert list(writes.status) == [{"op": "add", "path": f"/status/capacity/{KEY}", "value": "10000000000"}]
    assert writes.metadata == {
        "metadata": {
            "annotations": {
                "netaware.io/bandwidth-owner": "netaware-agent",
                "netaware.io/bandwidth-source": "hardware: eno1 10G by ethtool",
            }
        }
    }
    assert msgspec.json.encode(writes.condition).count(b"NetawareBandwidth") == 1


def test_a_long_explanation_is_cut_to_what_the_policy_lets_an_agent_write() -> None:
    long = msgspec.structs.replace(OFFER, explanation="bond0: " + "eno1 25G by ethtool; " * 50)
    writes = plan_writes(node(info=KUBELET), long, NOW)
    assert writes.metadata is not None
    assert len(msgspec.json.encode(writes.metadata)) < 700


def test_a_node_without_any_capacity_gets_the_map_as_well() -> None:
    writes = plan_writes(node(info=KUBELET), OFFER, NOW)
    assert list(writes.status) == [{"op": "add", "path": "/status/capacity", "value": {BANDWIDTH: "10000000000"}}]


@pytest.mark.parametrize("left", [{"cpu": "8", BANDWIDTH: "0"}, {"cpu": "8"}])
def test_what_a_kubelet_zeroed_or_dropped_is_written_again_and_nothing_else(left: dict[str, str]) -> None:
    writes = plan_writes(settled(capacity=left), OFFER, NOW)
    assert writes == Writes(status=({"op": "add", "path": f"/status/capacity/{KEY}", "value": "10000000000"},))


@pytest.mark.parametrize(
    ("info", "kwok", "both"),
    [
        (KUBELET, False, False),
        (KUBELET, True, True),
        (NodeInfo(), False, True),
        (NodeInfo(kubelet_version="kwok-v0.8.0"), False, True),
    ],
)
def test_allocatable_is_written_only_where_no_kubelet_would_copy_it(info: NodeInfo, kwok: bool, both: bool) -> None:
    annotations = {"kwok.x-k8s.io/node": "fake"} if kwok else None
    fresh = node(capacity={"cpu": "8"}, allocatable={"cpu": "8"}, annotations=annotations, info=info)
    writes = plan_writes(fresh, OFFER, NOW)
    assert len(writes.status) == (2 if both else 1)
    assert has_kubelet(fresh) == (not kwok and info == KUBELET)


def test_a_capacity_that_is_no_longer_known_stays_but_the_condition_says_so() -> None:
    writes = plan_writes(settled(), UNKNOWN, NOW)
    assert writes.status == ()
    assert b'"status":"False"' in msgspec.json.encode(writes.condition)
    assert b"eth0 is down" in msgspec.json.encode(writes.condition)


def test_a_zero_that_nobody_can_correct_is_removed_since_no_key_is_safer() -> None:
    writes = plan_writes(settled(capacity={BANDWIDTH: "0"}), UNKNOWN, NOW)
    assert list(writes.status) == [{"op": "remove", "path": f"/status/capacity/{KEY}"}]


def test_an_unknown_capacity_publishes_nothing() -> None:
    writes = plan_writes(node(capacity={"cpu": "8"}), UNKNOWN, NOW)
    assert writes.status == ()
    assert writes.metadata is None


def test_hands_off_a_resource_that_somebody_else_owns() -> None:
    theirs = {"netaware.io/bandwidth-owner": "network-team"}
    writes = plan_writes(node(capacity={BANDWIDTH: "1G"}, annotations=theirs), OFFER, NOW)
    assert writes.status == ()
    assert writes.metadata is None
    assert b"OwnedByOther" in msgspec.json.encode(writes.condition)


def test_a_value_that_stood_there_before_us_is_not_taken_over_silently() -> None:
    writes = plan_writes(node(capacity={BANDWIDTH: "1G"}), OFFER, NOW)
    assert (writes.status, writes.metadata) == ((), None)
    assert b"OwnedByOther" in msgspec.json.encode(writes.condition)
    ours = {"netaware.io/bandwidth-owner": "netaware-agent"}
    assert plan_writes(node(capacity={BANDWIDTH: "1G"}, annotations=ours), OFFER, NOW).status


def test_cleanup_takes_back_what_we_wrote_and_leaves_what_others_wrote() -> None:
    annotations = ("netaware.io/bandwidth-owner", "netaware.io/bandwidth-source", "netaware.io/agent")
    writes = plan_withdrawal(settled(), annotations=annotations)
    assert [op["path"] for op in writes.status] == [f"/status/{field}/{KEY}" for field in ("capacity", "allocatable")]
    assert writes.metadata == {
        "metadata": {"annotations": {"netaware.io/bandwidth-owner": None, "netaware.io/bandwidth-source": None}}
    }
    assert writes.condition is not None
    theirs = node(capacity={BANDWIDTH: "1G"}, annotations={"netaware.io/bandwidth-owner": "network-team"})
    assert plan_withdrawal(theirs, annotations=("netaware.io/agent",)) == Writes()
