"""A limit's verdict and repair follow from a snapshot of the kernel's state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.bandwidth import rules, state
from agent.bandwidth.annotations import LimitSpec, PodBandwidthSpec
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.tbf import choose_params
from agent.bandwidth.tc_index import TcIndex
from agent.rtnetlink import ROOT, Qdisc, TbfParams
from tests.support.plugin_bucket import CONTAINERD_BURST_BYTES, compute_plugin_params

replace = msgspec.structs.replace
UID = "0f3a1b2c-0000-4000-8000-000000000001"
CONTAINER_ID = "a" * 64
NETWORK = "k8s-pod-network"
IFB_NAME = rules.plugin_ifb_name(NETWORK, CONTAINER_ID)
UPLINK_INDEX, VETH_INDEX, IFB_INDEX = 2, 20, 30
RATE, FAST = 10_000_000, 100_000_000
"""Bits per second."""
TOO_SMALL_ERROR = "resource is unreasonably small (< 1kbit)"

OBSERVE, ENFORCE = rules.RepairPolicy(), rules.RepairPolicy(enforce=True)
REPAIR_BURST = rules.RepairPolicy(enforce=True, repair_burst=True)
REPAIRING_POLICIES, BURST_REPAIRING_POLICIES = (ENFORCE, REPAIR_BURST), (REPAIR_BURST,)

POD_SANDBOX = state.PodSandbox(pid=4242, container_id=CONTAINER_ID, namespace_id=7, pod_interface_index=3)
NODE_DEVICE = state.Device(index=UPLINK_INDEX, name="eth0")
POD_DEVICE = state.Device(index=VETH_INDEX, name="veth12ab", kind="veth", namespace_id=7, peer_index=3)
IFB_DEVICE = state.Device(index=IFB_INDEX, name=IFB_NAME, kind="ifb")
OUR_IFB = replace(IFB_DEVICE, alias=f"netaware:{UID}")

INGRESS_PARENT = 0xFFFFFFF1
"""TC_H_INGRESS (linux/pkt_sched.h)."""
INGRESS_QDISC = Qdisc(device_index=VETH_INDEX, kind="ingress", handle=state.INGRESS_HANDLE, parent=INGRESS_PARENT)
REDIRECT = state.Filter(device_index=VETH_INDEX, kind="u32", priority=1, matches_all=True, target_index=IFB_INDEX)
TINY_BURST = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=5_000, limit_bytes=40_000)

# Objects of other programs.
FOREIGN_FILTER = state.Filter(device_index=VETH_INDEX, kind="bpf", program_name="tc_cls_egress", priority=10)
CILIUM_HOST = state.Device(index=9, name="cilium_host", kind="veth")
CILIUM_VETH, CHAINED_VETH = replace(POD_DEVICE, name="lxc12ab34cd"), replace(POD_DEVICE, name="eni12ab34cd")
FELIX_IFB = state.Device(index=IFB_INDEX, name="bwcali012345678", kind="ifb")
FELIX_PARAMS = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**32 - 1, limit_bytes=2**32 - 1)

REMOVE_INGRESS = state.RemoveLimit(VETH_INDEX, "veth12ab", "ingress")
REMOVE_EGRESS = state.RemoveLimit(VETH_INDEX, "veth12ab", "egress", IFB_NAME, (1,))


def make_pod(ingress_bps: int | None = None, egress_bps: int | None = None, **changes: Any) -> PodBandwidthSpec:
    rates_bps = {"ingress": ingress_bps, "egress": egress_bps}
    limits = {direction: LimitSpec(rate_bps) for direction, rate_bps in rates_bps.items() if rate_bps is not None}
    return PodBandwidthSpec(**{"namespace": "default", "name": "p", "uid": UID, "limits": limits, **changes})


def make_attachment(**changes: Any) -> Attachment:
    defaults: dict[str, Any] = {"pod_uid": UID, "container_id": CONTAINER_ID, "network": NETWORK}
    return Attachment(**(defaults | changes))


def make_bucket(device_index: int, params: TbfParams, handle: int = state.PLUGIN_HANDLE) -> Qdisc:
    return Qdisc(device_index=device_index, kind="tbf", handle=handle, parent=ROOT, params=params)


def make_our_bucket(device_index: int) -> Qdisc:
    return make_bucket(device_index, choose_params(RATE, 1500), state.OUR_HANDLE)


def make_root_qdisc(kind: str, device_index: int = VETH_INDEX, handle: int = 0x50000) -> Qdisc:
    return Qdisc(device_index=device_index, kind=kind, handle=handle, parent=ROOT)


def plan_for(
    *pods: PodBandwidthSpec,
    device: state.Device = POD_DEVICE,
    devices: tuple[state.Device, ...] = (),
    qdiscs: tuple[Qdisc, ...] = (),
    sandbox: state.PodSandbox | None = POD_SANDBOX,
    policy: rules.RepairPolicy = ENFORCE,
    plugins: tuple[str, ...] = (),
    **kernel: Any,
) -> state.BandwidthPlan:
    """Plan limits for the node's device, the first pod's device, further devices, and their qdiscs and filters."""
    tc_state = state.TcState(devices=(NODE_DEVICE, device, *devices), qdiscs=qdiscs, **kernel)
    snapshot = state.BandwidthSnapshot(
        pods=pods,
        sandbox_by_uid={pods[0].uid: sandbox} if sandbox is not None else {},
        tc_state=tc_state,
        network=Network(NETWORK, plugins),
    )
    return rules.plan_limits(snapshot, policy)


def make_redirect_state(*qdiscs: Qdisc, device: state.Device = IFB_DEVICE) -> dict[str, Any]:
    """State of the kernel in which a filter redirects all packets of the pod to an ifb."""
    return {"devices": (device,), "qdiscs": (INGRESS_QDISC, *qdiscs), "filters": (REDIRECT,)}


def get_only_status(plan: state.BandwidthPlan) -> state.LimitStatus:
    (status,) = plan.statuses
    return status


def make_plugin_bucket(rate_bps: int = RATE, burst_bytes: int = CONTAINERD_BURST_BYTES) -> Qdisc:
    return make_bucket(VETH_INDEX, compute_plugin_params(rate_bps, burst_bytes))


def assert_unchanged(plan: state.BandwidthPlan, *verdicts: str, detail: str = "") -> None:
    """Assert the verdict and a part of the detail of each limit, and that nothing is changed."""
    assert [status.verdict for status in plan.statuses] == list(verdicts)
    assert all(detail in status.detail for status in plan.statuses)
    assert plan.actions == ()


@pytest.mark.parametrize(
    ("rate_bps", "qdisc", "verdict", "rate_bytes_per_s", "repairing_policies"),
    [
        (RATE, make_root_qdisc("noqueue", handle=0), "missing", None, REPAIRING_POLICIES),
        (RATE, make_our_bucket(VETH_INDEX), "enforced", RATE // 8, ()),
        (5 * RATE, make_our_bucket(VETH_INDEX), "wrong-rate", RATE // 8, REPAIRING_POLICIES),
        (RATE, make_bucket(VETH_INDEX, TINY_BURST), "burst-too-small", 0, REPAIRING_POLICIES),
        (RATE, make_bucket(VETH_INDEX, TINY_BURST, state.OUR_HANDLE), "burst-too-small", 0, REPAIRING_POLICIES),
        (RATE, replace(make_plugin_bucket(), handle=state.OUR_HANDLE), "enforced", RATE // 8, ()),
        (RATE, make_plugin_bucket(), "burst-overflow", RATE // 8, BURST_REPAIRING_POLICIES),
        (FAST, make_plugin_bucket(FAST), "burst-too-large", FAST // 8, BURST_REPAIRING_POLICIES),
    ],
)
def test_a_root_qdisc_gives_the_verdict_and_a_repair_by_policy(
    rate_bps: int,
    qdisc: Qdisc,
    verdict: str,
    rate_bytes_per_s: int | None,
    repairing_policies: tuple[rules.RepairPolicy, ...],
) -> None:
    repair = state.SetIngressLimit(VETH_INDEX, "veth12ab", choose_params(rate_bps, 1500))
    for policy in (OBSERVE, ENFORCE, REPAIR_BURST):
        plan = plan_for(make_pod(rate_bps), qdiscs=(qdisc,), policy=policy)
        status = get_only_status(plan)
        assert status.verdict == verdict
        assert status.device_name == "veth12ab"
        assert status.rate_bytes_per_s == rate_bytes_per_s
        assert plan.actions == ((repair,) if policy in repairing_policies else ())


def test_an_excess_overrules_the_verdict_on_the_configuration_and_a_dispute() -> None:
    configured = replace(get_only_status(plan_for(make_pod(RATE))), verdict="burst-overflow", detail="a burst")
    exceeded = rules.with_excess_or_dispute(configured, "much went through", "set 3 times")
    assert exceeded.verdict == "exceeded"
    assert exceeded.detail == "much went through; as set up: burst-overflow, a burst"
    assert rules.with_excess_or_dispute(configured, "", "set 3 times").verdict == "disputed"
    assert rules.with_excess_or_dispute(configured, "", "") is configured


def test_the_ifb_has_the_plugins_name() -> None:
    # 15 characters of bwp + sha512("mynet" + id), as utils.MustFormatHashWithPrefix of the CNI plugins gives it.
    assert rules.plugin_ifb_name("mynet", "0123456789") == "bwpf7f4a9fe4273"


@pytest.mark.parametrize(
    ("kind", "child_kind", "verdict"),
    [
        ("prio", "tbf", "other-enforcer"),
        ("prio", "", "other-enforcer"),
        ("mq", "htb", "other-enforcer"),
        ("mq", "fq_codel", "missing"),
        ("fq", "", "missing"),
    ],
)
def test_a_foreign_tree_of_qdiscs_is_not_replaced(kind: str, child_kind: str, verdict: str) -> None:
    children = (Qdisc(device_index=VETH_INDEX, kind=child_kind, handle=0x60000, parent=0x50001),) if child_kind else ()
    plan = plan_for(make_pod(RATE), qdiscs=(make_root_qdisc(kind), INGRESS_QDISC, *children))
    assert get_only_status(plan).verdict == verdict
    assert bool(plan.actions) is (verdict == "missing")


@pytest.mark.parametrize("device", [CILIUM_VETH, CHAINED_VETH, replace(CILIUM_VETH, kind="netkit")])
def test_devices_of_cilium_are_not_changed_and_their_limits_are_measured(device: state.Device) -> None:
    plan = plan_for(make_pod(RATE, RATE), device=device, devices=(CILIUM_HOST,))
    assert_unchanged(plan, "other-enforcer", "other-enforcer", detail=f"Cilium on {device.name}")
    plan = plan_for(make_pod(RATE), device=device, devices=(CILIUM_HOST,), qdiscs=(make_our_bucket(VETH_INDEX),))
    assert_unchanged(plan, "enforced", detail="packets may bypass it")
    assert get_only_status(plan).is_measurable


def test_a_device_name_alone_is_no_evidence_of_cilium() -> None:
    assert get_only_status(plan_for(make_pod(RATE), device=CILIUM_VETH)).verdict == "missing"


def test_limits_of_felix_are_never_changed() -> None:
    """Felix gives its buckets the plugin's handle, but the CNI configuration does not name the plugin."""
    buckets = [make_bucket(device_index, FELIX_PARAMS) for device_index in (VETH_INDEX, IFB_INDEX)]
    kernel_state = make_redirect_state(*buckets, device=FELIX_IFB)
    plan = plan_for(make_pod(RATE, RATE), policy=REPAIR_BURST, plugins=("calico", "portmap"), **kernel_state)
    assert_unchanged(plan, "other-enforcer", "other-enforcer")
    assert "tbf 1: on veth12ab" in plan.statuses[0].detail
    assert FELIX_IFB.name in plan.statuses[1].detail
    assert [status.rate_bytes_per_s for status in plan.statuses] == [RATE // 8, RATE // 8]


def test_limits_of_the_plugins_versions_1_5_which_set_htb_are_never_changed() -> None:
    roots = [make_root_qdisc("htb", device_index, state.PLUGIN_HANDLE) for device_index in (VETH_INDEX, IFB_INDEX)]
    plan = plan_for(make_pod(RATE, RATE), policy=REPAIR_BURST, **make_redirect_state(*roots))
    assert_unchanged(plan, "other-enforcer", "other-enforcer", detail="set htb on ")


def test_a_stricter_limit_of_another_program_stays_unless_it_came_from_the_former_annotation() -> None:
    strict_bucket = make_plugin_bucket(RATE // 2, burst_bytes=100_000)
    assert_unchanged(plan_for(make_pod(RATE), qdiscs=(strict_bucket,)), "wrong-rate", detail="stricter")
    attachment = make_attachment(plugins=("bandwidth",), requested_bandwidth={"ingressRate": RATE // 2})
    sandbox = replace(POD_SANDBOX, attachment=attachment)
    assert plan_for(make_pod(RATE), qdiscs=(strict_bucket,), sandbox=sandbox).actions
    assert plan_for(make_pod(RATE // 4), qdiscs=(strict_bucket,)).actions, "the annotation is stricter"


def test_container_and_network_come_from_the_runtimes_cache() -> None:
    attachment = make_attachment(container_id="b" * 64, network="delegate-net")
    sandbox = replace(POD_SANDBOX, container_id="b" * 64, attachment=attachment)
    (action,) = plan_for(make_pod(egress_bps=RATE), sandbox=sandbox).actions
    assert isinstance(action, state.SetEgressLimit)
    assert action.ifb_name == rules.plugin_ifb_name("delegate-net", "b" * 64)


@pytest.mark.parametrize(
    "foreign_filter",
    [replace(REDIRECT, target_index=None, has_police_action=True), replace(REDIRECT, target_index=UPLINK_INDEX)],
)
def test_policing_filters_and_redirects_to_other_devices_are_foreign(foreign_filter: state.Filter) -> None:
    plan = plan_for(make_pod(egress_bps=RATE), qdiscs=(INGRESS_QDISC,), filters=(foreign_filter,))
    assert_unchanged(plan, "other-enforcer")


@pytest.mark.parametrize(
    ("hook", "verdicts", "action_type"),
    [
        ("egress", ["other-enforcer", "missing"], state.SetEgressLimit),  # the filter sees packets to the pod
        ("ingress", ["missing", "other-enforcer"], state.SetIngressLimit),
    ],
)
def test_nothing_is_set_beside_a_foreign_filter_which_is_reported(
    hook: str, verdicts: list[str], action_type: type[state.Action]
) -> None:
    clsact = replace(INGRESS_QDISC, kind="clsact")
    plan = plan_for(make_pod(RATE, RATE), qdiscs=(clsact,), filters=(replace(FOREIGN_FILTER, hook=hook),))
    assert [status.verdict for status in plan.statuses] == verdicts
    assert [type(action) for action in plan.actions] == [action_type]
    deferred = plan.statuses[verdicts.index("other-enforcer")]
    assert "a bpf filter tc_cls_egress with preference 10" in deferred.detail


@pytest.mark.parametrize(
    ("changes", "sandbox", "verdict", "detail"),
    [
        ({"uses_host_network": True}, None, "not-applicable", "the node's network"),
        ({}, state.PodSandbox(pid=1), "not-applicable", "macvlan"),
        # With Multus, a pod may have a veth pair that is not its eth0.
        ({}, replace(POD_SANDBOX, pod_interface_index=9), "not-applicable", "eth0 is not an end of a veth pair"),
        ({}, state.PodSandbox(pid=1, is_in_host_network=True), "not-applicable", "the node's network"),
        ({"limits": {"ingress": LimitSpec(None, TOO_SMALL_ERROR)}}, POD_SANDBOX, "invalid", TOO_SMALL_ERROR),
    ],
)
def test_pods_that_cannot_be_limited_get_a_reason(
    changes: dict[str, Any], sandbox: state.PodSandbox | None, verdict: str, detail: str
) -> None:
    plan = plan_for(make_pod(RATE, **changes), sandbox=sandbox, qdiscs=(make_our_bucket(VETH_INDEX),))
    assert_unchanged(plan, verdict, detail=detail)


def test_the_nodes_own_traffic_does_not_count_as_a_pods() -> None:
    sandbox = state.PodSandbox(pid=1, is_in_host_network=True)
    assert get_only_status(plan_for(make_pod(RATE), sandbox=sandbox)).counter_source is None


@pytest.mark.parametrize(
    ("changes", "sandbox", "reason"),
    [
        ({"has_address": False}, POD_SANDBOX, "the pod has no address yet"),
        ({}, None, "none of its processes was found"),
    ],
)
def test_pods_that_are_not_located_yet_have_no_verdict(
    changes: dict[str, Any], sandbox: state.PodSandbox | None, reason: str
) -> None:
    plan = plan_for(make_pod(RATE, **changes), sandbox=sandbox, qdiscs=(make_our_bucket(VETH_INDEX),))
    assert plan == state.BandwidthPlan(unlocated_reason_by_pod={"default/p": reason})


def test_our_limits_are_removed_with_the_annotation_and_the_plugins_stay() -> None:
    plan = plan_for(make_pod(), **make_redirect_state(make_our_bucket(IFB_INDEX), make_our_bucket(VETH_INDEX)))
    assert plan.actions == (REMOVE_INGRESS, REMOVE_EGRESS)
    plugin_bucket = make_bucket(IFB_INDEX, compute_plugin_params(RATE))
    assert plan_for(make_pod(), **make_redirect_state(plugin_bucket)).actions == ()


def test_a_cleanup_removes_our_limits_and_ifbs_of_all_pods_and_nothing_else() -> None:
    ifb_of_deleted_pod = replace(IFB_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:deleted")
    foreign_state = state.TcState(
        devices=(NODE_DEVICE, POD_DEVICE, IFB_DEVICE),
        qdiscs=(INGRESS_QDISC, make_root_qdisc("fq", UPLINK_INDEX), make_plugin_bucket()),
        filters=(REDIRECT,),
    )
    assert rules.plan_cleanup(foreign_state) == []

    our_buckets = make_our_bucket(IFB_INDEX), make_our_bucket(VETH_INDEX)
    our_state = replace(
        foreign_state,
        devices=(*foreign_state.devices, ifb_of_deleted_pod),
        qdiscs=(INGRESS_QDISC, make_root_qdisc("fq", UPLINK_INDEX), *our_buckets),
    )
    assert rules.plan_cleanup(our_state) == [REMOVE_INGRESS, REMOVE_EGRESS, state.DeleteIfb("bwp0000000000aa")]


def test_our_ifbs_are_removed_with_their_pod_or_limit_and_others_stay() -> None:
    ifb_of_deleted_pod = replace(IFB_DEVICE, alias="netaware:deleted")
    foreign_ifb = state.Device(index=31, name="bwp0000000000ff", kind="ifb")
    ifb_in_use = replace(IFB_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:running")
    ifb_without_filter = replace(OUR_IFB, index=33, name="bwp0000000000bb")
    plan = plan_for(
        make_pod(),
        devices=(ifb_of_deleted_pod, foreign_ifb, ifb_in_use, ifb_without_filter),
        filters=(replace(REDIRECT, target_index=ifb_in_use.index),),
        qdiscs=(INGRESS_QDISC,),
    )
    assert plan.actions == (state.DeleteIfb(IFB_NAME), state.DeleteIfb("bwp0000000000bb"))


def test_our_ifb_stays_for_a_repair_and_while_the_sandbox_is_unknown() -> None:
    (repair,) = plan_for(make_pod(egress_bps=RATE), devices=(OUR_IFB,)).actions
    assert isinstance(repair, state.SetEgressLimit)
    assert plan_for(make_pod(egress_bps=RATE), devices=(OUR_IFB,), sandbox=None).actions == ()


def test_the_device_of_eth0_counts_among_several_networks() -> None:
    net1, eth0 = replace(POD_DEVICE, index=40, peer_index=5), replace(POD_DEVICE, index=41, peer_index=3)
    device_of_other_namespace = replace(POD_DEVICE, index=42, namespace_id=8, peer_index=5)
    devices = (net1, eth0, device_of_other_namespace, replace(IFB_DEVICE, namespace_id=9))
    tc_index = TcIndex(state.BandwidthSnapshot(pods=(), tc_state=state.TcState(devices=devices)))
    for namespace_id, interface_index, device in ((7, 5, net1), (7, 3, eth0), (7, None, eth0), (9, None, None)):
        sandbox = state.PodSandbox(pid=1, namespace_id=namespace_id, pod_interface_index=interface_index)
        assert tc_index.pod_device(sandbox) == device
