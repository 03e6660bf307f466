"""Verdicts and repairs, from pictures of the kernel's state."""

from __future__ import annotations

import msgspec
import pytest

from agent.bandwidth.annotations import Direction, LimitSpec, PodBandwidthSpec
from agent.bandwidth.cilium import Cilium, parse_cilium
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.rules import Policy, find_device, intermediate_name, plan_limits
from agent.bandwidth.state import (
    LAST_PRIORITY,
    OUR_HANDLE,
    ROOT,
    BandwidthPlan,
    BandwidthSnapshot,
    Device,
    Filter,
    LimitEgress,
    LimitIngress,
    LimitStatus,
    Location,
    Qdisc,
    RemoveDevice,
    RemoveLimit,
    TcState,
)
from agent.bandwidth.tbf import TbfParams, bounded_params
from agent.bandwidth.tc_index import devices_by_namespace
from agent.bandwidth.traffic_control import plugin_htb
from tests.support.plugin_bucket import plugin_shape

UID = "0f3a1b2c-0000-4000-8000-000000000001"
SANDBOX = "a" * 64
NETWORK = "k8s-pod-network"
IFB = intermediate_name(NETWORK, SANDBOX)
VETH, PIPE, UPLINK = 20, 30, 2
RATE = 10_000_000
CONTAINERD_BURST = 536_870_911
ENFORCE = Policy(enforce=True)
ORDINARY = Network(NETWORK)
LOCATION = Location(pid=4242, sandbox=SANDBOX, namespace_id=7, eth0_index=3)
DEVICES = (
    Device(index=UPLINK, name="eth0", physical=True),
    Device(index=VETH, name="veth12ab", kind="veth", namespace_id=7, peer=3),
)
PIPE_DEVICE = Device(index=PIPE, name=IFB, kind="ifb")


def pod(ingress: int | None = None, egress: int | None = None, **changes: object) -> PodBandwidthSpec:
    limits = {d: LimitSpec(rate) for d, rate in (("ingress", ingress), ("egress", egress)) if rate is not None}
    fields: dict[str, object] = {"namespace": "default", "name": "p", "uid": UID, "limits": limits, **changes}
    return PodBandwidthSpec(**fields)  # type: ignore[arg-type]


def tbf(device: int, params: TbfParams, handle: int = 0x10000) -> Qdisc:
    return Qdisc(device=device, kind="tbf", handle=handle, parent=ROOT, params=params)


def ours(device: int, rate_bps: int = RATE, mtu: int = 1500) -> Qdisc:
    return tbf(device, bounded_params(rate_bps, mtu), OUR_HANDLE)


def ingress_qdisc(device: int = VETH, kind: str = "ingress") -> Qdisc:
    return Qdisc(device=device, kind=kind, handle=0xFFFF0000, parent=0xFFFFFFF1)


def redirect(to: int = PIPE, *, matches_all: bool = True) -> Filter:
    return Filter(device=VETH, kind="u32", priority=1, matches_all=matches_all, redirects_to=to)


def plan(
    spec: PodBandwidthSpec,
    *,
    devices: tuple[Device, ...] = DEVICES,
    qdiscs: tuple[Qdisc, ...] = (),
    filters: tuple[Filter, ...] = (),
    location: Location | None = LOCATION,
    policy: Policy = ENFORCE,
    network: Network = ORDINARY,
) -> BandwidthPlan:
    locations = {spec.uid: location} if location is not None else {}
    kernel = TcState(devices=devices, qdiscs=qdiscs, filters=filters)
    return plan_limits(BandwidthSnapshot(pods=(spec,), locations=locations, kernel=kernel, network=network), policy)


def only(found: BandwidthPlan) -> LimitStatus:
    assert len(found.statuses) == 1
    return found.statuses[0]


def egress(bucket: Qdisc) -> dict[str, tuple[object, ...]]:
    return {
        "devices": (*DEVICES, PIPE_DEVICE),
        "qdiscs": (bucket, ingress_qdisc()),
        "filters": (redirect(),),
    }


# --- into the pod ----------------------------------------------------------------------------------------------------


def test_without_a_bucket_a_limit_is_missing_and_enforcing_sets_it() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(Qdisc(device=VETH, kind="noqueue", handle=0, parent=ROOT),))
    status = only(found)
    assert (status.verdict, status.device) == ("missing", "veth12ab")
    assert status.detail == "no limit on veth12ab, its root is noqueue"
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_params(RATE, 1500)),)
    assert plan(pod(ingress=RATE), policy=Policy()).actions == ()


def test_a_bucket_of_ours_is_enforced_and_nothing_is_left_to_do() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(ours(VETH),))
    status = only(found)
    assert (status.verdict, status.rate_bytes_per_s, status.queue_s) == ("enforced", RATE // 8, 0.04)
    assert found.actions == ()


def test_another_rate_is_wrong_and_a_changed_annotation_changes_the_limit() -> None:
    found = plan(pod(ingress=5 * RATE), qdiscs=(ours(VETH),))
    assert only(found).verdict == "wrong-rate"
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_params(5 * RATE, 1500)),)


def test_containerds_burst_at_10_mbit_is_wrapped_and_the_effective_numbers_are_told() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(tbf(VETH, plugin_shape(RATE, CONTAINERD_BURST)),))
    status = only(found)
    assert status.verdict == "wrapped"
    assert status.burst_bytes == 193_273_526
    assert status.queue_s == pytest.approx(429.5, abs=0.1)
    assert found.actions == ()


def test_containerds_burst_at_100_mbit_is_too_large() -> None:
    found = plan(pod(ingress=100_000_000), qdiscs=(tbf(VETH, plugin_shape(100_000_000, CONTAINERD_BURST)),))
    status = only(found)
    assert status.verdict == "burst-too-large"
    assert status.burst_bytes == pytest.approx(CONTAINERD_BURST, rel=1e-4)
    assert found.actions == ()


@pytest.mark.parametrize("rate_bps", [RATE, 100_000_000])
def test_the_plugins_bursts_are_repaired_only_on_request(rate_bps: int) -> None:
    qdiscs = (tbf(VETH, plugin_shape(rate_bps, CONTAINERD_BURST)),)
    found = plan(pod(ingress=rate_bps), qdiscs=qdiscs, policy=Policy(enforce=True, repair_burst=True))
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_params(rate_bps, 1500)),)


def test_a_bucket_smaller_than_a_packet_has_an_effective_rate_of_zero() -> None:
    tiny = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=5_000, limit_bytes=40_000)
    status = only(plan(pod(ingress=RATE), qdiscs=(tbf(VETH, tiny),)))
    assert (status.verdict, status.rate_bytes_per_s) == ("wrong-rate", 0)


# --- out of the pod --------------------------------------------------------------------------------------------------


def test_without_anything_egress_is_missing_and_is_set_up_under_the_plugins_names() -> None:
    found = plan(pod(egress=RATE))
    assert only(found).verdict == "missing"
    assert found.actions == (
        LimitEgress(VETH, "veth12ab", IFB, 1500, bounded_params(RATE, 1500), f"netaware:{UID}", add_hook=True),
    )


def test_the_intermediate_device_has_the_name_that_the_plugins_del_looks_for() -> None:
    # bwp + sha512("mynet" + id), 15 characters, as utils.MustFormatHashWithPrefix of the CNI plugins gives it.
    assert intermediate_name("mynet", "0123456789") == "bwpf7f4a9fe4273"
    assert len(IFB) == 15


def test_the_whole_structure_is_enforced() -> None:
    status = only(plan(pod(egress=RATE), **egress(ours(PIPE))))  # type: ignore[arg-type]
    assert (status.verdict, status.device) == ("enforced", IFB)


def test_a_limit_that_no_packet_reaches_is_told_as_a_missing_filter() -> None:
    parts = egress(ours(PIPE)) | {"filters": ()}
    found = plan(pod(egress=RATE), **parts)  # type: ignore[arg-type]
    status = only(found)
    assert (status.verdict, status.device, status.rate_bytes_per_s) == ("filter-missing", IFB, None)
    assert isinstance(found.actions[0], LimitEgress)
    assert found.actions[0].add_filter


def test_a_filter_that_lets_some_packets_escape_does_not_count() -> None:
    parts = egress(ours(PIPE)) | {"filters": (redirect(matches_all=False),)}
    assert only(plan(pod(egress=RATE), **parts)).verdict == "filter-missing"  # type: ignore[arg-type]


def test_a_filter_to_a_device_that_is_gone_is_missing() -> None:
    found = plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(redirect(to=99),))
    assert only(found).verdict == "filter-missing"
    (action,) = found.actions
    assert isinstance(action, LimitEgress)
    assert (action.add_hook, action.add_filter, action.stale_filters) == (False, True, (1,))


def test_an_intermediate_device_without_a_bucket_is_missing_and_gets_one() -> None:
    parts = egress(ours(PIPE)) | {"qdiscs": (ingress_qdisc(),)}
    found = plan(pod(egress=RATE), **parts)  # type: ignore[arg-type]
    assert only(found).verdict == "missing"
    assert found.actions == (
        LimitEgress(VETH, "veth12ab", IFB, 1500, bounded_params(RATE, 1500), f"netaware:{UID}", add_filter=False),
    )


# --- not ours --------------------------------------------------------------------------------------------------------


CILIUM = (
    Device(index=UPLINK, name="eth0", physical=True),
    Device(index=9, name="cilium_host", kind="veth"),
    Device(index=VETH, name="lxc12ab34cd", kind="veth", namespace_id=7, peer=3),
)


@pytest.mark.parametrize(
    ("root", "below", "verdict"),
    [
        ("prio", "tbf", "other-enforcer"),
        ("prio", "", "other-enforcer"),
        ("mq", "htb", "other-enforcer"),
        ("mq", "fq_codel", "missing"),
        ("fq", "", "missing"),
    ],
)
def test_a_tree_that_somebody_built_is_not_replaced(root: str, below: str, verdict: str) -> None:
    """A bucket in one band of prio is a limit of somebody's; a replaced root would take it away."""
    qdiscs = [Qdisc(device=VETH, kind=root, handle=0x50000, parent=ROOT), ingress_qdisc()]
    if below:
        qdiscs.append(Qdisc(device=VETH, kind=below, handle=0x60000, parent=0x50001))
    found = plan(pod(ingress=RATE), qdiscs=tuple(qdiscs))
    assert only(found).verdict == verdict
    assert bool(found.actions) is (verdict == "missing")


FQ = Qdisc(device=UPLINK, kind="fq", handle=0x80010000, parent=ROOT)
ON = parse_cilium({"enable-bandwidth-manager": "true", "routing-mode": "native"})
OFF = parse_cilium({"enable-bandwidth-manager": "false"})
HIDDEN = Cilium(unknown="ConfigMap kube-system/cilium-config: 403 Forbidden")
NETKIT = (*CILIUM[:2], Device(index=VETH, name="lxc12ab34cd", kind="netkit", namespace_id=7, peer=3))
CHAINED = (*CILIUM[:2], Device(index=VETH, name="eni12ab34cd", kind="veth", namespace_id=7, peer=3))
AWS = Network(NETWORK, ("aws-cni", "egress-cni", "cilium-cni"))


@pytest.mark.parametrize(
    ("devices", "cilium", "qdiscs", "network", "verdict", "evidence"),
    [
        # The manager is on, whatever carries fq (a bond's slaves, or nothing that we see) and whatever devices are called.
        (CILIUM, ON, (), Network(NETWORK), "other-enforcer", "enable-bandwidth-manager: true"),
        (NETKIT, ON, (FQ,), Network(NETWORK), "other-enforcer", "enable-bandwidth-manager: true"),
        (CHAINED, ON, (), AWS, "other-enforcer", "enable-bandwidth-manager: true"),
        # It is off, though net.core.default_qdisc=fq.
        (CILIUM, OFF, (FQ,), Network(NETWORK), "missing", "bandwidth manager is off"),
        (NETKIT, OFF, (), Network(NETWORK), "missing", "bandwidth manager is off"),
        # Its configuration cannot be read: unknown.
        (CILIUM, HIDDEN, (FQ,), Network(NETWORK), "other-enforcer", "unknown: whether Cilium limits cannot be told"),
        (CILIUM, Cilium(), (), Network(NETWORK), "other-enforcer", "there is no cilium-config"),
    ],
)
def test_ciliums_configuration_decides_and_nothing_is_set_beside_it(
    devices: tuple[Device, ...],
    cilium: Cilium,
    qdiscs: tuple[Qdisc, ...],
    network: Network,
    verdict: str,
    evidence: str,
) -> None:
    kernel = TcState(devices=devices, qdiscs=qdiscs)
    snapshot = BandwidthSnapshot(
        pods=(pod(RATE, RATE),), locations={UID: LOCATION}, kernel=kernel, network=network, cilium=cilium
    )
    found = plan_limits(snapshot, ENFORCE)
    assert [(j.verdict, evidence in j.detail) for j in found.statuses] == [(verdict, True)] * 2
    assert found.actions == ()


def test_cilium_chained_behind_another_plugin_without_its_manager_leaves_buckets_to_us() -> None:
    kernel = TcState(devices=CHAINED)
    snapshot = BandwidthSnapshot(pods=(pod(RATE),), locations={UID: LOCATION}, kernel=kernel, network=AWS, cilium=OFF)
    assert [type(action) for action in plan_limits(snapshot, ENFORCE).actions] == [LimitIngress]


def test_beside_ipsec_ciliums_manager_is_off_whatever_is_asked_for() -> None:
    assert not parse_cilium({"enable-bandwidth-manager": "true", "enable-ipsec": "true"}).limits


FELIX = Device(index=PIPE, name="bwcali012345678", kind="ifb")
WITHOUT_PLUGIN = Network(NETWORK, ("calico", "portmap"))


def test_limits_of_a_data_plane_are_foreign_and_are_never_rewritten() -> None:
    """Felix gives its buckets the plugin's handle; the CNI configuration tells that they are not the plugin's."""
    bucket = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**32 - 1, limit_bytes=2**32 - 1)
    found = plan(
        pod(RATE, RATE),
        devices=(*DEVICES, FELIX),
        qdiscs=(tbf(VETH, bucket), tbf(PIPE, bucket), ingress_qdisc()),
        filters=(redirect(),),
        policy=Policy(enforce=True, repair_burst=True),
        network=WITHOUT_PLUGIN,
    )
    seen = {j.direction: j for j in found.statuses}
    assert [j.verdict for j in found.statuses] == ["other-enforcer"] * 2
    assert "tbf 1: on veth12ab" in seen["ingress"].detail
    assert FELIX.name in seen["egress"].detail
    assert seen["egress"].rate_bytes_per_s == RATE // 8
    assert found.actions == ()


def test_where_somebody_shapes_the_other_direction_a_missing_limit_is_not_ours_to_set() -> None:
    bucket = tbf(VETH, TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**20, limit_bytes=2**20))
    for found in (
        plan(pod(egress=RATE), qdiscs=(bucket,), network=WITHOUT_PLUGIN),
        plan(pod(RATE), devices=(*DEVICES, FELIX), qdiscs=(ingress_qdisc(),), filters=(redirect(),)),
    ):
        assert (only(found).verdict, found.actions) == ("missing", ())


def test_a_limit_that_is_stricter_than_the_annotation_and_not_ours_stays() -> None:
    strict = tbf(VETH, plugin_shape(RATE // 2, 100_000))
    found = plan(pod(RATE), qdiscs=(strict,))
    assert (only(found).verdict, found.actions) == ("wrong-rate", ())
    assert "stricter" in only(found).detail
    # A limit that the runtime asked for came from the annotation as it was, and follows it.
    asked = Attachment(container=SANDBOX, network=NETWORK, plugins=("bandwidth",), asked={"ingressRate": RATE // 2})
    location = msgspec.structs.replace(LOCATION, attachment=asked)
    assert len(plan(pod(RATE), qdiscs=(strict,), location=location).actions) == 1
    assert len(plan(pod(RATE // 4), qdiscs=(strict,)).actions) == 1


def test_a_limit_of_ours_is_known_by_its_handle_whatever_becomes_of_the_mtu() -> None:
    devices = (DEVICES[0], msgspec.structs.replace(DEVICES[1], mtu=1400))
    assert only(plan(pod(RATE), devices=devices, qdiscs=(ours(VETH),))).verdict == "enforced"
    assert plan(pod(), devices=devices, qdiscs=(ours(VETH),)).actions == (RemoveLimit(VETH, "veth12ab", "ingress"),)


def test_the_plugins_htb_is_its_limit_and_is_replaced_when_the_annotation_changes() -> None:
    classes = {0x10001: (10**11, 0), 0x10030: (RATE // 8, 1_000_000)}
    root = Qdisc(device=VETH, kind="htb", handle=0x10000, parent=ROOT, default_class=0x30)
    params = plugin_htb(root, classes, DEVICES[1])
    root = msgspec.structs.replace(root, params=params)
    assert only(plan(pod(RATE), qdiscs=(root,))).verdict == "enforced"
    (action,) = plan(pod(RATE // 5), qdiscs=(root,)).actions
    assert action == LimitIngress(VETH, "veth12ab", bounded_params(RATE // 5, 1500))
    # Of anybody else's HTB nothing is known.
    assert plugin_htb(root, {**classes, 0x10002: (1, 1)}, DEVICES[1]) is None
    assert plugin_htb(msgspec.structs.replace(root, handle=0x20000), classes, DEVICES[1]) is None
    partly = plugin_htb(msgspec.structs.replace(root, default_class=1), classes, DEVICES[1])
    assert "shapedSubnets" in only(plan(pod(RATE), qdiscs=(msgspec.structs.replace(root, params=partly),))).detail


def test_the_runtimes_cache_names_container_and_network_where_cgroups_mislead() -> None:
    attachment = Attachment(container="b" * 64, network="delegate-net")
    location = msgspec.structs.replace(LOCATION, sandbox="b" * 64, attachment=attachment)
    (action,) = plan(pod(egress=RATE), location=location).actions
    assert isinstance(action, LimitEgress)
    assert action.through == intermediate_name("delegate-net", "b" * 64)


def test_policing_filters_and_redirects_elsewhere_are_somebody_elses() -> None:
    police = Filter(device=VETH, kind="u32", priority=1, matches_all=True, polices=True)
    assert only(plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(police,))).verdict == "other-enforcer"
    found = plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(redirect(to=UPLINK),))
    assert (only(found).verdict, found.actions) == ("other-enforcer", ())


FOREIGN = Filter(device=VETH, kind="bpf", name="tc_cls_egress", priority=10)


@pytest.mark.parametrize(
    "stranger",
    [
        {"filters": (FOREIGN,)},
        {"filters": (msgspec.structs.replace(FOREIGN, hook="egress"),)},
        {"programs": (Filter(device=VETH, kind="tcx", hook="ingress", priority=-1, name="7, 8"),)},
        {"programs": (Filter(device=VETH, kind="tcx", hook="egress", priority=-1, name="7"),)},
    ],
)
def test_where_others_attached_something_nothing_is_set_and_the_evidence_is_told(stranger: dict[str, object]) -> None:
    kernel = TcState(devices=DEVICES, qdiscs=(ingress_qdisc(kind="clsact"),), **stranger)  # type: ignore[arg-type]
    snapshot = BandwidthSnapshot(
        pods=(pod(RATE, RATE),), locations={UID: LOCATION}, kernel=kernel, network=Network(NETWORK)
    )
    found = plan_limits(snapshot, ENFORCE)
    seen = {status.direction: status for status in found.statuses}
    hook = next(iter(stranger.values()))[0].hook  # type: ignore[index]
    pair: tuple[Direction, Direction] = ("egress", "ingress") if hook == "ingress" else ("ingress", "egress")
    theirs, free = pair
    assert (seen[theirs].verdict, seen[free].verdict) == ("other-enforcer", "missing")
    evidence = "a bpf filter tc_cls_egress with preference 10" if "filters" in stranger else "tcx program"
    assert evidence in seen[theirs].detail
    assert [type(action) for action in found.actions] == [LimitIngress if free == "ingress" else LimitEgress]


REFUSED = "the kernel, or the container's seccomp profile, refuses bpf(2): Operation not permitted"


def unseen(
    device: str, *beside: str, unknown: str = REFUSED, set_up: bool = False, filters: tuple[Filter, ...] = ()
) -> BandwidthPlan:
    """What is said of a pod behind ``device`` where programs cannot be looked at; Cilium is chained behind another plugin."""
    devices = (
        DEVICES[0],
        msgspec.structs.replace(DEVICES[1], name=device),
        *(Device(index=90 + i, name=name, kind="veth") for i, name in enumerate(beside)),
    )
    qdiscs = (ours(VETH),) if set_up else ()
    kernel = TcState(devices=devices, qdiscs=qdiscs, filters=filters, programs_unknown=unknown)
    snapshot = BandwidthSnapshot(
        pods=(pod(RATE),),
        locations={UID: LOCATION},
        kernel=kernel,
        network=Network(NETWORK, ("aws-cni", "cilium-cni")),
        cilium=Cilium(installed="cilium_host" in beside),
    )
    return plan_limits(snapshot, ENFORCE)


def test_an_ordinary_node_that_may_not_ask_for_programs_keeps_its_verdicts_and_the_plan_says_so() -> None:
    found = unseen("veth12ab", set_up=True)
    assert (only(found).verdict, only(found).detail, found.programs_unknown) == ("enforced", "", REFUSED)
    missing = unseen("veth12ab")
    assert (only(missing).verdict, len(missing.actions)) == ("missing", 1)
    assert unseen("veth12ab", unknown="").programs_unknown == ""


def test_programs_of_cilium_that_cannot_be_seen_are_judged_like_those_that_are_seen() -> None:
    device, beside, whose = "eni12ab", "cilium_host", "Cilium"
    kept = only(unseen(device, beside, set_up=True))
    assert kept.verdict == "enforced"
    assert f"whether unseen programs of {whose} on {device} ({REFUSED}) may carry" in kept.detail
    withheld = unseen(device, beside)
    assert (only(withheld).verdict, withheld.actions) == ("other-enforcer", ())
    assert only(withheld).detail.startswith(f"unknown: unseen programs of {whose} on {device}")
    # Where they can be looked at, or the same program attached a filter instead, nothing is left open.
    assert only(unseen(device, beside, unknown="")).verdict == "missing"
    by_tc = Filter(device=VETH, kind="bpf", name="cil_from_container", priority=1)
    assert only(unseen(device, beside, filters=(by_tc,))).verdict == "missing"


def test_a_redirect_of_ours_gives_way_to_filters_that_it_would_take_packets_from() -> None:
    parts = egress(ours(PIPE))
    devices = (*DEVICES, msgspec.structs.replace(PIPE_DEVICE, alias=f"netaware:{UID}"))
    late = msgspec.structs.replace(redirect(), priority=LAST_PRIORITY)
    withdrawn = plan(pod(egress=RATE), devices=devices, qdiscs=parts["qdiscs"], filters=(redirect(), FOREIGN))  # type: ignore[arg-type]
    assert withdrawn.actions == (RemoveLimit(VETH, "veth12ab", "egress", IFB, (1,)),)
    stays = plan(pod(egress=RATE), devices=devices, qdiscs=parts["qdiscs"], filters=(late, FOREIGN))  # type: ignore[arg-type]
    assert (only(stays).verdict, stays.actions) == ("enforced", ())
    assert "tc_cls_egress" in only(stays).detail


def test_pods_that_claim_one_cgroup_get_a_verdict_that_says_so_and_nothing_is_done() -> None:
    first, second = pod(RATE, uid="u1", cgroup_uid="hash"), pod(RATE, uid="u2", cgroup_uid="hash", name="q")
    kernel = TcState(devices=DEVICES)
    snapshot = BandwidthSnapshot(
        pods=(first, second), locations={"u1": LOCATION}, kernel=kernel, network=Network(NETWORK)
    )
    found = plan_limits(snapshot, ENFORCE)
    assert [(j.verdict, "claimed by" in j.detail) for j in found.statuses] == [("invalid", True)] * 2
    assert found.actions == ()


def test_pods_without_a_network_or_a_veth_are_not_applicable() -> None:
    assert only(plan(pod(ingress=RATE, host_network=True), location=None)).verdict == "not-applicable"
    macvlan = Location(pid=1, namespace_id=None)
    assert only(plan(pod(ingress=RATE), location=macvlan)).verdict == "not-applicable"
    # With Multus the pod may have a veth pair that is not its eth0: limits there would be none of eth0.
    second = msgspec.structs.replace(LOCATION, eth0_index=9)
    found = plan(pod(RATE, RATE), location=second)
    assert ({j.verdict for j in found.statuses}, found.actions) == ({"not-applicable"}, ())


def test_a_pod_whose_oldest_process_is_in_the_nodes_network_is_not_held_to_what_the_node_sends() -> None:
    status = only(plan(pod(ingress=RATE), location=Location(pid=1, host_network=True)))
    assert (status.verdict, status.counter_source) == ("not-applicable", None)


def test_an_annotation_that_cannot_be_read_is_invalid_whatever_is_set_up() -> None:
    spec = pod(limits={"ingress": LimitSpec(None, "resource is unreasonably small (< 1kbit)")})
    found = plan(spec, qdiscs=(ours(VETH),))
    assert (only(found).verdict, only(found).detail) == ("invalid", "resource is unreasonably small (< 1kbit)")
    assert found.actions == ()


@pytest.mark.parametrize(
    ("changes", "location", "why"),
    [
        ({"has_address": False}, LOCATION, "the pod has no address yet"),
        ({}, None, "none of its processes was found"),
    ],
)
def test_pods_that_are_not_there_yet_have_no_verdict(
    changes: dict[str, object], location: Location | None, why: str
) -> None:
    found = plan(pod(RATE, None, **changes), location=location)
    assert found == BandwidthPlan(unlocated={"default/p": why})


# --- leaving no trace ------------------------------------------------------------------------------------------------


def test_limits_of_ours_go_when_the_annotation_goes_and_those_of_the_plugin_stay() -> None:
    set_up = egress(ours(PIPE))
    set_up["qdiscs"] = (*set_up["qdiscs"], ours(VETH))
    assert plan(pod(), **set_up).actions == (  # type: ignore[arg-type]
        RemoveLimit(VETH, "veth12ab", "ingress"),
        RemoveLimit(VETH, "veth12ab", "egress", IFB, (1,)),
    )
    theirs = egress(tbf(PIPE, plugin_shape(RATE, CONTAINERD_BURST)))
    assert plan(pod(), **theirs).actions == ()  # type: ignore[arg-type]


def test_intermediate_devices_of_ours_go_with_their_pod_and_others_stay() -> None:
    gone = msgspec.structs.replace(PIPE_DEVICE, alias="netaware:gone")
    theirs = Device(index=31, name="bwp0000000000ff", kind="ifb")
    used = msgspec.structs.replace(PIPE_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:here")
    living = Device(index=33, name="bwp0000000000bb", kind="ifb", alias=f"netaware:{UID}")
    found = plan(
        pod(), devices=(*DEVICES, gone, theirs, used, living), filters=(redirect(to=32),), qdiscs=(ingress_qdisc(),)
    )
    assert found.actions == (RemoveDevice(PIPE, IFB), RemoveDevice(33, "bwp0000000000bb"))


def test_an_intermediate_device_that_the_next_repair_would_use_stays() -> None:
    half_done = msgspec.structs.replace(PIPE_DEVICE, alias=f"netaware:{UID}")
    found = plan(pod(egress=RATE), devices=(*DEVICES, half_done))
    assert [type(action) for action in found.actions] == [LimitEgress]
    # Nor is one removed of a pod whose sandbox is not known just now.
    assert plan(pod(egress=RATE), devices=(*DEVICES, half_done), location=None).actions == ()


def test_of_several_networks_the_one_with_eth0_counts() -> None:
    first = Device(index=40, name="veth-a", kind="veth", namespace_id=7, peer=5)
    second = Device(index=41, name="veth-b", kind="veth", namespace_id=7, peer=3)
    elsewhere = Device(index=42, name="veth-c", kind="veth", namespace_id=8, peer=5)
    ends = devices_by_namespace((first, second, elsewhere, Device(index=43, name="ifb0", kind="ifb", namespace_id=9)))
    assert find_device(Location(pid=1, namespace_id=7, eth0_index=5), ends) == first
    assert find_device(Location(pid=1, namespace_id=7, eth0_index=3), ends) == second
    assert find_device(Location(pid=1, namespace_id=7), ends) == second
    assert find_device(Location(pid=1, namespace_id=9), ends) is None
