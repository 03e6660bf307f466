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

UID = "0f3a1b2c-0000-4000-8000-000000000001"
CONTAINER_ID = "a" * 64
NETWORK = "k8s-pod-network"
IFB = rules.plugin_ifb_name(NETWORK, CONTAINER_ID)
VETH, IFB_INDEX, UPLINK = 20, 30, 2
RATE = 10_000_000
"""Bits per second."""
ENFORCE, REPAIR = rules.RepairPolicy(enforce=True), rules.RepairPolicy(enforce=True, repair_burst=True)
POD_SANDBOX = state.PodSandbox(pid=4242, container_id=CONTAINER_ID, namespace_id=7, pod_interface_index=3)
NODE = state.Device(index=UPLINK, name="eth0")
POD_DEVICE = state.Device(index=VETH, name="veth12ab", kind="veth", namespace_id=7, peer_index=3)
IFB_DEVICE = state.Device(index=IFB_INDEX, name=IFB, kind="ifb")
replace = msgspec.structs.replace


def make_pod(ingress: int | None = None, egress: int | None = None, **changes: Any) -> PodBandwidthSpec:
    limits = {d: LimitSpec(rate) for d, rate in (("ingress", ingress), ("egress", egress)) if rate is not None}
    return PodBandwidthSpec(**{"namespace": "default", "name": "p", "uid": UID, "limits": limits, **changes})


def make_attachment(**changes: Any) -> Attachment:
    defaults: dict[str, Any] = {"pod_uid": UID, "container_id": CONTAINER_ID, "network": NETWORK}
    return Attachment(**(defaults | changes))


def make_bucket(device: int, params: TbfParams, handle: int = state.PLUGIN_HANDLE) -> Qdisc:
    return Qdisc(device_index=device, kind="tbf", handle=handle, parent=ROOT, params=params)


def make_our_qdisc(device: int, rate_bps: int = RATE) -> Qdisc:
    return make_bucket(device, choose_params(rate_bps, 1500), state.OUR_HANDLE)


def make_root(kind: str, device: int = VETH, handle: int = 0x50000) -> Qdisc:
    return Qdisc(device_index=device, kind=kind, handle=handle, parent=ROOT)


INGRESS_QDISC = Qdisc(device_index=VETH, kind="ingress", handle=state.INGRESS_HANDLE, parent=0xFFFFFFF1)
REDIRECT = state.Filter(device_index=VETH, kind="u32", priority=1, matches_all=True, target_index=IFB_INDEX)
FOREIGN_FILTER = state.Filter(device_index=VETH, kind="bpf", program_name="tc_cls_egress", priority=10)


def plan_for(
    *pods: PodBandwidthSpec,
    device: state.Device = POD_DEVICE,
    devices: tuple[state.Device, ...] = (),
    qdiscs: tuple[Qdisc, ...] = (),
    sandbox: state.PodSandbox | None = POD_SANDBOX,
    policy: rules.RepairPolicy = ENFORCE,
    network: tuple[str, ...] = (),
    **kernel: Any,
) -> state.BandwidthPlan:
    """Plan limits for the node's device, the first pod's device, further devices, and their qdiscs and filters."""
    tc_state = state.TcState(devices=(NODE, device, *devices), qdiscs=qdiscs, **kernel)
    snapshot = state.BandwidthSnapshot(
        pods=pods,
        sandbox_by_uid={pods[0].uid: sandbox} if sandbox is not None else {},
        tc_state=tc_state,
        network=Network(NETWORK, network),
    )
    return rules.plan_limits(snapshot, policy)


def redirecting_to_ifb(*qdiscs: Qdisc, device: state.Device = IFB_DEVICE, filters: Any = (REDIRECT,)) -> dict[str, Any]:
    """State of the kernel in which a filter redirects all packets of the pod to an ifb."""
    return {"devices": (device,), "qdiscs": (INGRESS_QDISC, *qdiscs), "filters": filters}


def only_status(plan: state.BandwidthPlan) -> state.LimitStatus:
    (status,) = plan.statuses
    return status


def make_repair(rate_bps: int = RATE) -> state.SetIngressLimit:
    return state.SetIngressLimit(VETH, "veth12ab", choose_params(rate_bps, 1500))


def make_plugin_qdisc(rate_bps: int = RATE, burst: int = CONTAINERD_BURST_BYTES) -> Qdisc:
    return make_bucket(VETH, compute_plugin_params(rate_bps, burst))


TINY_BURST = make_bucket(VETH, TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=5_000, limit_bytes=40_000))
FAST_RATE = 100_000_000


@pytest.mark.parametrize(
    ("rate_bps", "qdisc", "verdict", "rate_bytes_per_s", "repair", "burst_repair"),
    [
        (RATE, make_root("noqueue", handle=0), "missing", None, make_repair(), make_repair()),
        (RATE, make_our_qdisc(VETH), "enforced", RATE // 8, None, None),
        (5 * RATE, make_our_qdisc(VETH), "wrong-rate", RATE // 8, make_repair(5 * RATE), make_repair(5 * RATE)),
        (RATE, make_plugin_qdisc(), "burst-overflow", RATE // 8, None, make_repair()),
        (FAST_RATE, make_plugin_qdisc(FAST_RATE), "burst-too-large", FAST_RATE // 8, None, make_repair(FAST_RATE)),
        (RATE, TINY_BURST, "burst-too-small", 0, make_repair(), make_repair()),
    ],
    ids=[
        *("no limit", "our limit", "the annotation was changed", "the plugin's burst of a slow rate"),
        *("the plugin's burst of a fast rate", "a burst that is smaller than a packet"),
    ],
)
def test_a_root_qdisc_gives_the_verdict_and_the_repair(
    rate_bps: int,
    qdisc: Qdisc,
    verdict: str,
    rate_bytes_per_s: int | None,
    repair: state.Action | None,
    burst_repair: state.Action | None,
) -> None:
    for policy, action in ((rules.RepairPolicy(), None), (ENFORCE, repair), (REPAIR, burst_repair)):
        plan = plan_for(make_pod(rate_bps), qdiscs=(qdisc,), policy=policy)
        status = only_status(plan)
        assert (status.verdict, status.device_name, status.rate_bytes_per_s) == (verdict, "veth12ab", rate_bytes_per_s)
        assert plan.actions == ((action,) if action is not None else ())


def test_the_ifb_has_the_plugins_name() -> None:
    # bwp + sha512("mynet" + id), 15 characters, as utils.MustFormatHashWithPrefix of the CNI plugins gives it.
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
    children = (Qdisc(device_index=VETH, kind=child_kind, handle=0x60000, parent=0x50001),) if child_kind else ()
    plan = plan_for(make_pod(RATE), qdiscs=(make_root(kind), INGRESS_QDISC, *children))
    assert only_status(plan).verdict == verdict
    assert bool(plan.actions) is (verdict == "missing")


HOST = state.Device(index=9, name="cilium_host", kind="veth")
LXC, CHAINED = replace(POD_DEVICE, name="lxc12ab34cd"), replace(POD_DEVICE, name="eni12ab34cd")


@pytest.mark.parametrize("device", [LXC, CHAINED, replace(LXC, kind="netkit")])
def test_devices_of_cilium_are_not_changed_and_their_limits_are_measured(device: state.Device) -> None:
    plan = plan_for(make_pod(RATE, RATE), device=device, devices=(HOST,))
    assert ([status.verdict for status in plan.statuses], plan.actions) == (["other-enforcer"] * 2, ())
    assert all(f"Cilium on {device.name}" in status.detail for status in plan.statuses)
    status = only_status(plan_for(make_pod(RATE), device=device, devices=(HOST,), qdiscs=(make_our_qdisc(VETH),)))
    assert (status.verdict, status.is_measurable) == ("enforced", True)
    assert "packets may bypass it" in status.detail
    # Device names alone prove nothing.
    assert only_status(plan_for(make_pod(RATE), device=LXC)).verdict == "missing"


FELIX = state.Device(index=IFB_INDEX, name="bwcali012345678", kind="ifb")
FELIX_PARAMS = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**32 - 1, limit_bytes=2**32 - 1)
FELIX_BUCKETS = [make_bucket(index, FELIX_PARAMS) for index in (VETH, IFB_INDEX)]
HTB_ROOTS = [make_root("htb", index, state.PLUGIN_HANDLE) for index in (VETH, IFB_INDEX)]


@pytest.mark.parametrize(
    ("qdiscs", "device", "plugins", "evidence"),
    [
        # Felix gives its buckets the plugin's handle, but the CNI configuration does not name the plugin.
        (FELIX_BUCKETS, FELIX, ("calico", "portmap"), ("tbf 1: on veth12ab", FELIX.name)),
        # Versions 1.5 of the plugin set HTB.
        (HTB_ROOTS, IFB_DEVICE, (), ("set htb on veth12ab", "set htb on")),
    ],
)
def test_limits_of_other_programs_are_never_changed(
    qdiscs: list[Qdisc], device: state.Device, plugins: tuple[str, ...], evidence: tuple[str, str]
) -> None:
    plan = plan_for(make_pod(RATE, RATE), policy=REPAIR, network=plugins, **redirecting_to_ifb(*qdiscs, device=device))
    assert ([status.verdict for status in plan.statuses], plan.actions) == (["other-enforcer"] * 2, ())
    assert all(text in status.detail for text, status in zip(evidence, plan.statuses, strict=True))
    assert {status.rate_bytes_per_s for status in plan.statuses} == {qdiscs[0].params and RATE // 8}


def test_a_stricter_limit_of_another_program_stays() -> None:
    strict_qdisc = make_plugin_qdisc(RATE // 2, 100_000)
    plan = plan_for(make_pod(RATE), qdiscs=(strict_qdisc,))
    assert (only_status(plan).verdict, plan.actions) == ("wrong-rate", ())
    assert "stricter" in only_status(plan).detail
    # A limit that the runtime requested came from the annotation as it was, and follows it.
    attachment = make_attachment(plugins=("bandwidth",), requested_bandwidth={"ingressRate": RATE // 2})
    sandbox = replace(POD_SANDBOX, attachment=attachment)
    assert len(plan_for(make_pod(RATE), qdiscs=(strict_qdisc,), sandbox=sandbox).actions) == 1
    assert len(plan_for(make_pod(RATE // 4), qdiscs=(strict_qdisc,)).actions) == 1


def test_container_and_network_come_from_the_runtimes_cache() -> None:
    attachment = make_attachment(container_id="b" * 64, network="delegate-net")
    sandbox = replace(POD_SANDBOX, container_id="b" * 64, attachment=attachment)
    (action,) = plan_for(make_pod(egress=RATE), sandbox=sandbox).actions
    assert isinstance(action, state.SetEgressLimit)
    assert action.ifb_name == rules.plugin_ifb_name("delegate-net", "b" * 64)


def test_policing_filters_and_redirects_to_other_devices_are_foreign() -> None:
    policing_filter = replace(REDIRECT, target_index=None, has_police_action=True)
    for foreign_filter in (policing_filter, replace(REDIRECT, target_index=UPLINK)):
        plan = plan_for(make_pod(egress=RATE), qdiscs=(INGRESS_QDISC,), filters=(foreign_filter,))
        assert (only_status(plan).verdict, plan.actions) == ("other-enforcer", ())


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_nothing_is_set_beside_a_foreign_filter_which_is_reported(hook: str) -> None:
    clsact, filter_ = replace(INGRESS_QDISC, kind="clsact"), replace(FOREIGN_FILTER, hook=hook)
    plan = plan_for(make_pod(RATE, RATE), qdiscs=(clsact,), filters=(filter_,))
    ingress, egress = plan.statuses
    deferred, missing = (egress, ingress) if hook == "ingress" else (ingress, egress)
    assert (deferred.verdict, missing.verdict) == ("other-enforcer", "missing")
    assert "a bpf filter tc_cls_egress with preference 10" in deferred.detail
    (action,) = plan.actions
    assert isinstance(action, state.SetIngressLimit if missing is ingress else state.SetEgressLimit)


OUR_IFB = replace(IFB_DEVICE, alias=f"netaware:{UID}")
REMOVE_EGRESS = state.RemoveLimit(VETH, "veth12ab", "egress", IFB, (1,))
TOO_SMALL = "resource is unreasonably small (< 1kbit)"


@pytest.mark.parametrize(
    ("changes", "sandbox", "verdict", "detail"),
    [
        ({"uses_host_network": True}, None, "not-applicable", "the node's network"),
        ({}, state.PodSandbox(pid=1), "not-applicable", "macvlan"),
        # With Multus, a pod may have a veth pair that is not its eth0.
        ({}, replace(POD_SANDBOX, pod_interface_index=9), "not-applicable", "eth0 is not an end of a veth pair"),
        # The node's own traffic does not count as the pod's.
        ({}, state.PodSandbox(pid=1, is_in_host_network=True), "not-applicable", "the node's network"),
        ({"limits": {"ingress": LimitSpec(None, TOO_SMALL)}}, POD_SANDBOX, "invalid", TOO_SMALL),
        ({"has_address": False}, POD_SANDBOX, "", "the pod has no address yet"),
        ({}, None, "", "none of its processes was found"),
    ],
)
def test_pods_that_cannot_be_limited_get_a_reason(
    changes: dict[str, Any], sandbox: state.PodSandbox | None, verdict: str, detail: str
) -> None:
    plan = plan_for(make_pod(RATE, **changes), sandbox=sandbox, qdiscs=(make_our_qdisc(VETH),))
    assert plan.actions == ()
    if not verdict:
        assert plan == state.BandwidthPlan(unlocated_reason_by_pod={"default/p": detail})
        return
    assert (only_status(plan).verdict, detail in only_status(plan).detail) == (verdict, True)
    assert sandbox is None or not sandbox.is_in_host_network or only_status(plan).counter_source is None


def test_our_limits_are_removed_with_the_annotation_and_the_plugins_stay() -> None:
    plan = plan_for(make_pod(), **redirecting_to_ifb(make_our_qdisc(IFB_INDEX), make_our_qdisc(VETH)))
    assert plan.actions == (state.RemoveLimit(VETH, "veth12ab", "ingress"), REMOVE_EGRESS)
    plugin_bucket = make_bucket(IFB_INDEX, compute_plugin_params(RATE))
    assert plan_for(make_pod(), **redirecting_to_ifb(plugin_bucket)).actions == ()


def test_a_cleanup_removes_our_limits_and_ifbs_of_all_pods_and_nothing_else() -> None:
    unused_ifb = replace(IFB_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:gone")
    devices, our_qdiscs = (NODE, POD_DEVICE, IFB_DEVICE, unused_ifb), (make_our_qdisc(IFB_INDEX), make_our_qdisc(VETH))
    tc_state = state.TcState(
        devices=devices, qdiscs=(INGRESS_QDISC, make_root("fq", UPLINK), *our_qdiscs), filters=(REDIRECT,)
    )
    remove_ingress = state.RemoveLimit(VETH, "veth12ab", "ingress")
    assert rules.plan_cleanup(tc_state) == [remove_ingress, REMOVE_EGRESS, state.DeleteIfb("bwp0000000000aa")]
    foreign_state = state.TcState(devices=devices[:3], qdiscs=(INGRESS_QDISC, make_plugin_qdisc()), filters=(REDIRECT,))
    assert rules.plan_cleanup(foreign_state) == []


def test_our_ifbs_are_removed_with_their_pod_or_limit_and_others_stay() -> None:
    ifb_of_deleted_pod = replace(IFB_DEVICE, alias="netaware:gone")
    foreign_ifb = state.Device(index=31, name="bwp0000000000ff", kind="ifb")
    ifb_in_use = replace(IFB_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:here")
    unused_ifb = state.Device(index=33, name="bwp0000000000bb", kind="ifb", alias=f"netaware:{UID}")
    devices, filters = (ifb_of_deleted_pod, foreign_ifb, ifb_in_use, unused_ifb), (replace(REDIRECT, target_index=32),)
    plan = plan_for(make_pod(), devices=devices, filters=filters, qdiscs=(INGRESS_QDISC,))
    assert plan.actions == (state.DeleteIfb(IFB), state.DeleteIfb("bwp0000000000bb"))
    (repair,) = plan_for(make_pod(egress=RATE), devices=(OUR_IFB,)).actions
    assert isinstance(repair, state.SetEgressLimit), "the repair uses the ifb"
    assert plan_for(make_pod(egress=RATE), devices=(OUR_IFB,), sandbox=None).actions == (), "the sandbox is unknown yet"


def test_the_device_of_eth0_counts_among_several_networks() -> None:
    first, second = (replace(POD_DEVICE, index=40 + i, peer_index=peer) for i, peer in enumerate((5, 3)))
    other_device = replace(POD_DEVICE, index=42, namespace_id=8, peer_index=5)
    devices = (first, second, other_device, replace(IFB_DEVICE, namespace_id=9))
    tc_index = TcIndex(state.BandwidthSnapshot(pods=(), tc_state=state.TcState(devices=devices)))
    for namespace, index, device in ((7, 5, first), (7, 3, second), (7, None, second), (9, None, None)):
        assert tc_index.pod_device(state.PodSandbox(pid=1, namespace_id=namespace, pod_interface_index=index)) == device
