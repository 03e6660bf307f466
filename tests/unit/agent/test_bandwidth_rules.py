"""Verdicts and repairs, from snapshots of the kernel's state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.bandwidth import rules
from agent.bandwidth import state as tc
from agent.bandwidth.annotations import LimitSpec, PodBandwidthSpec
from agent.bandwidth.cilium import Cilium, parse_cilium
from agent.bandwidth.cni import Attachment, Network
from agent.bandwidth.tbf import TbfParams, bounded_params
from agent.bandwidth.tc_index import devices_by_namespace
from agent.bandwidth.traffic_control import plugin_htb
from tests.support.plugin_bucket import plugin_shape

UID = "0f3a1b2c-0000-4000-8000-000000000001"
SANDBOX = "a" * 64
NETWORK = "k8s-pod-network"
IFB = rules.intermediate_name(NETWORK, SANDBOX)
VETH, PIPE, UPLINK = 20, 30, 2
RATE = 10_000_000
CONTAINERD_BURST = 536_870_911
ENFORCE, REPAIR = rules.Policy(enforce=True), rules.Policy(enforce=True, repair_burst=True)
LOCATION = tc.Location(pid=4242, sandbox=SANDBOX, namespace_id=7, eth0_index=3)
NODE = tc.Device(index=UPLINK, name="eth0", physical=True)
POD_DEVICE = tc.Device(index=VETH, name="veth12ab", kind="veth", namespace_id=7, peer=3)
PIPE_DEVICE = tc.Device(index=PIPE, name=IFB, kind="ifb")
changed = msgspec.structs.replace


def pod(ingress: int | None = None, egress: int | None = None, **changes: Any) -> PodBandwidthSpec:
    limits = {d: LimitSpec(rate) for d, rate in (("ingress", ingress), ("egress", egress)) if rate is not None}
    return PodBandwidthSpec(**{"namespace": "default", "name": "p", "uid": UID, "limits": limits, **changes})


def bucket(device: int, params: TbfParams, handle: int = tc.PLUGIN_HANDLE) -> tc.Qdisc:
    return tc.Qdisc(device=device, kind="tbf", handle=handle, parent=tc.ROOT, params=params)


def ours(device: int, rate_bps: int = RATE) -> tc.Qdisc:
    return bucket(device, bounded_params(rate_bps, 1500), tc.OUR_HANDLE)


def root(kind: str, device: int = VETH, handle: int = 0x50000) -> tc.Qdisc:
    return tc.Qdisc(device=device, kind=kind, handle=handle, parent=tc.ROOT)


HOOK = tc.Qdisc(device=VETH, kind="ingress", handle=tc.HOOKS_HANDLE, parent=0xFFFFFFF1)
REDIRECT = tc.Filter(device=VETH, kind="u32", priority=1, matches_all=True, redirects_to=PIPE)
FOREIGN = tc.Filter(device=VETH, kind="bpf", name="tc_cls_egress", priority=10)


def plan(
    *pods: PodBandwidthSpec,
    device: tc.Device = POD_DEVICE,
    devices: tuple[tc.Device, ...] = (),
    qdiscs: tuple[tc.Qdisc, ...] = (),
    location: tc.Location | None = LOCATION,
    policy: rules.Policy = ENFORCE,
    network: tuple[str, ...] = (),
    cilium: Cilium | None = None,
    **kernel: Any,
) -> tc.BandwidthPlan:
    """What follows from the node's and the first pod's device, those beside them, and what is on them."""
    state = tc.TcState(devices=(NODE, device, *devices), qdiscs=qdiscs, **kernel)
    snapshot = tc.BandwidthSnapshot(
        pods=pods,
        locations={pods[0].uid: location} if location is not None else {},
        kernel=state,
        network=Network(NETWORK, network),
        cilium=cilium or Cilium(),
    )
    return rules.plan_limits(snapshot, policy)


def redirected(*qdiscs: tc.Qdisc, device: tc.Device = PIPE_DEVICE, filters: Any = (REDIRECT,)) -> dict[str, Any]:
    """Everything that comes from the pod goes through an intermediate device."""
    return {"devices": (device,), "qdiscs": (HOOK, *qdiscs), "filters": filters}


def only(found: tc.BandwidthPlan) -> tc.LimitStatus:
    (status,) = found.statuses
    return status


def limit(rate_bps: int = RATE) -> tc.LimitIngress:
    return tc.LimitIngress(VETH, "veth12ab", bounded_params(rate_bps, 1500))


def limit_out(**changes: Any) -> tc.LimitEgress:
    return tc.LimitEgress(VETH, "veth12ab", IFB, 1500, bounded_params(RATE, 1500), f"netaware:{UID}", **changes)


def shape(rate_bps: int = RATE, burst: int = CONTAINERD_BURST) -> tc.Qdisc:
    return bucket(VETH, plugin_shape(rate_bps, burst))


TINY = bucket(VETH, TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=5_000, limit_bytes=40_000))
FAST = 100_000_000


@pytest.mark.parametrize(
    ("rate_bps", "qdisc", "verdict", "repair", "repair_burst"),
    [
        (RATE, root("noqueue", handle=0), "missing", limit(), limit()),
        (RATE, ours(VETH), "enforced", None, None),
        (5 * RATE, ours(VETH), "wrong-rate", limit(5 * RATE), limit(5 * RATE)),  # the annotation was changed
        (RATE, shape(), "wrapped", None, limit()),
        (FAST, shape(FAST), "burst-too-large", None, limit(FAST)),
        (RATE, TINY, "wrong-rate", limit(), limit()),
    ],
)
def test_what_a_bucket_at_the_root_is_worth_and_how_it_is_repaired(
    rate_bps: int, qdisc: tc.Qdisc, verdict: str, repair: tc.Action | None, repair_burst: tc.Action | None
) -> None:
    for policy, action in ((rules.Policy(), None), (ENFORCE, repair), (REPAIR, repair_burst)):
        found = plan(pod(rate_bps), qdiscs=(qdisc,), policy=policy)
        assert (only(found).verdict, only(found).device) == (verdict, "veth12ab")
        assert found.actions == ((action,) if action is not None else ())


def test_the_effective_numbers_are_told() -> None:
    status = only(plan(pod(RATE), qdiscs=(ours(VETH),)))
    assert (status.rate_bytes_per_s, status.queue_s) == (RATE // 8, 0.04)
    status = only(plan(pod(RATE), qdiscs=(shape(),)))
    assert status.burst_bytes == 193_273_526
    assert status.queue_s == pytest.approx(429.5, abs=0.1)
    assert only(plan(pod(RATE), qdiscs=(TINY,))).rate_bytes_per_s == 0


def test_the_intermediate_device_has_the_name_that_the_plugins_del_looks_for() -> None:
    # bwp + sha512("mynet" + id), 15 characters, as utils.MustFormatHashWithPrefix of the CNI plugins gives it.
    assert rules.intermediate_name("mynet", "0123456789") == "bwpf7f4a9fe4273"


@pytest.mark.parametrize(
    ("kernel", "verdict", "device", "repair"),
    [
        ({}, "missing", "veth12ab", limit_out(add_hook=True)),
        (redirected(ours(PIPE)), "enforced", IFB, None),
        (redirected(ours(PIPE), filters=()), "filter-missing", IFB, limit_out()),
        (redirected(ours(PIPE), filters=(changed(REDIRECT, matches_all=False),)), "filter-missing", IFB, limit_out()),
        (
            {"qdiscs": (HOOK,), "filters": (changed(REDIRECT, redirects_to=99),)},
            "filter-missing",
            "veth12ab",
            limit_out(stale_filters=(1,)),
        ),
        (redirected(), "missing", IFB, limit_out(add_filter=False)),
    ],
)
def test_what_the_way_out_of_a_pod_is_worth_and_how_it_is_repaired(
    kernel: dict[str, Any], verdict: str, device: str, repair: tc.Action | None
) -> None:
    found = plan(pod(egress=RATE), **kernel)
    assert (only(found).verdict, only(found).device) == (verdict, device)
    assert found.actions == ((repair,) if repair is not None else ())
    if verdict == "filter-missing":
        assert only(found).rate_bytes_per_s is None


@pytest.mark.parametrize(
    ("kind", "below", "verdict"),
    [
        ("prio", "tbf", "other-enforcer"),
        ("prio", "", "other-enforcer"),
        ("mq", "htb", "other-enforcer"),
        ("mq", "fq_codel", "missing"),
        ("fq", "", "missing"),
    ],
)
def test_a_tree_that_somebody_built_is_not_replaced(kind: str, below: str, verdict: str) -> None:
    """A bucket in one band of prio is a limit of somebody's; a replaced root would take it away."""
    inner = (tc.Qdisc(device=VETH, kind=below, handle=0x60000, parent=0x50001),) if below else ()
    found = plan(pod(RATE), qdiscs=(root(kind), HOOK, *inner))
    assert only(found).verdict == verdict
    assert bool(found.actions) is (verdict == "missing")


HOST = tc.Device(index=9, name="cilium_host", kind="veth")
LXC, CHAINED = changed(POD_DEVICE, name="lxc12ab34cd"), changed(POD_DEVICE, name="eni12ab34cd")
NETKIT = changed(LXC, kind="netkit")
FQ = root("fq", UPLINK)
ON, OFF = (parse_cilium({"enable-bandwidth-manager": value}) for value in ("true", "false"))
HIDDEN = Cilium(unknown="ConfigMap kube-system/cilium-config: 403 Forbidden")
AWS = ("aws-cni", "egress-cni", "cilium-cni")


@pytest.mark.parametrize(
    ("device", "cilium", "qdiscs", "network", "verdict", "evidence"),
    [
        # The manager is on, whatever carries fq (a bond's slaves, or nothing that we see) and whatever devices are called.
        (LXC, ON, (), (), "other-enforcer", "enable-bandwidth-manager: true"),
        (NETKIT, ON, (FQ,), (), "other-enforcer", "enable-bandwidth-manager: true"),
        (CHAINED, ON, (), AWS, "other-enforcer", "enable-bandwidth-manager: true"),
        # It is off, though net.core.default_qdisc=fq.
        (LXC, OFF, (FQ,), (), "missing", "bandwidth manager is off"),
        (NETKIT, OFF, (), (), "missing", "bandwidth manager is off"),
        # Its configuration cannot be read: unknown.
        (LXC, HIDDEN, (FQ,), (), "other-enforcer", "unknown: whether Cilium limits cannot be read"),
        (LXC, Cilium(), (), (), "other-enforcer", "there is no cilium-config"),
    ],
)
def test_ciliums_configuration_decides_and_nothing_is_set_beside_it(
    device: tc.Device, cilium: Cilium, qdiscs: Any, network: tuple[str, ...], verdict: str, evidence: str
) -> None:
    found = plan(pod(RATE, RATE), device=device, devices=(HOST,), qdiscs=qdiscs, network=network, cilium=cilium)
    assert [(status.verdict, evidence in status.detail) for status in found.statuses] == [(verdict, True)] * 2
    assert found.actions == ()


def test_cilium_without_its_manager_chained_behind_another_plugin_leaves_buckets_to_us() -> None:
    found = plan(pod(RATE), device=CHAINED, devices=(HOST,), network=AWS, cilium=OFF)
    assert [type(action) for action in found.actions] == [tc.LimitIngress]
    assert not parse_cilium({"enable-bandwidth-manager": "true", "enable-ipsec": "true"}).limits


FELIX = tc.Device(index=PIPE, name="bwcali012345678", kind="ifb")
WITHOUT_PLUGIN = ("calico", "portmap")


def test_limits_of_a_data_plane_are_foreign_and_are_never_rewritten() -> None:
    """Felix gives its buckets the plugin's handle; the CNI configuration tells that they are not the plugin's."""
    params = TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**32 - 1, limit_bytes=2**32 - 1)
    kernel = redirected(bucket(VETH, params), bucket(PIPE, params), device=FELIX)
    found = plan(pod(RATE, RATE), policy=REPAIR, network=WITHOUT_PLUGIN, **kernel)
    into, out = found.statuses
    assert (into.verdict, out.verdict, found.actions) == ("other-enforcer", "other-enforcer", ())
    assert "tbf 1: on veth12ab" in into.detail
    assert FELIX.name in out.detail
    assert out.rate_bytes_per_s == RATE // 8


def test_where_somebody_shapes_the_other_direction_a_missing_limit_is_not_ours_to_set() -> None:
    theirs = bucket(VETH, TbfParams(rate_bytes_per_s=RATE // 8, buffer_ticks=2**20, limit_bytes=2**20))
    for found in (
        plan(pod(egress=RATE), qdiscs=(theirs,), network=WITHOUT_PLUGIN),
        plan(pod(RATE), **redirected(device=FELIX)),
    ):
        assert (only(found).verdict, found.actions) == ("missing", ())


def test_a_limit_that_is_stricter_than_the_annotation_and_not_ours_stays() -> None:
    strict = shape(RATE // 2, 100_000)
    found = plan(pod(RATE), qdiscs=(strict,))
    assert (only(found).verdict, found.actions) == ("wrong-rate", ())
    assert "stricter" in only(found).detail
    # A limit that the runtime asked for came from the annotation as it was, and follows it.
    asked = Attachment(container=SANDBOX, network=NETWORK, plugins=("bandwidth",), requested={"ingressRate": RATE // 2})
    assert len(plan(pod(RATE), qdiscs=(strict,), location=changed(LOCATION, attachment=asked)).actions) == 1
    assert len(plan(pod(RATE // 4), qdiscs=(strict,)).actions) == 1


def test_a_limit_of_ours_is_known_by_its_handle_whatever_becomes_of_the_mtu() -> None:
    smaller = changed(POD_DEVICE, mtu=1400)
    assert only(plan(pod(RATE), device=smaller, qdiscs=(ours(VETH),))).verdict == "enforced"
    assert plan(pod(), device=smaller, qdiscs=(ours(VETH),)).actions == (tc.RemoveLimit(VETH, "veth12ab", "ingress"),)


def test_the_plugins_htb_is_its_limit_and_is_replaced_when_the_annotation_changes() -> None:
    classes = {0x10001: (10**11, 0), 0x10030: (RATE // 8, 1_000_000)}
    htb = changed(root("htb", handle=tc.PLUGIN_HANDLE), default_class=0x30)
    limited = changed(htb, params=plugin_htb(htb, classes, POD_DEVICE))
    assert only(plan(pod(RATE), qdiscs=(limited,))).verdict == "enforced"
    assert plan(pod(RATE // 5), qdiscs=(limited,)).actions == (limit(RATE // 5),)
    # Of anybody else's HTB nothing is known.
    assert plugin_htb(htb, {**classes, 0x10002: (1, 1)}, POD_DEVICE) is None
    assert plugin_htb(changed(htb, handle=0x20000), classes, POD_DEVICE) is None
    partly = changed(htb, params=plugin_htb(changed(htb, default_class=1), classes, POD_DEVICE))
    assert "shapedSubnets" in only(plan(pod(RATE), qdiscs=(partly,))).detail


def test_the_runtimes_cache_names_container_and_network_where_cgroups_mislead() -> None:
    attachment = Attachment(container="b" * 64, network="delegate-net")
    (action,) = plan(pod(egress=RATE), location=changed(LOCATION, sandbox="b" * 64, attachment=attachment)).actions
    assert isinstance(action, tc.LimitEgress)
    assert action.through == rules.intermediate_name("delegate-net", "b" * 64)


def test_policing_filters_and_redirects_elsewhere_are_somebody_elses() -> None:
    for other in (changed(REDIRECT, redirects_to=None, polices=True), changed(REDIRECT, redirects_to=UPLINK)):
        found = plan(pod(egress=RATE), qdiscs=(HOOK,), filters=(other,))
        assert (only(found).verdict, found.actions) == ("other-enforcer", ())


@pytest.mark.parametrize("hook", ["ingress", "egress"])
@pytest.mark.parametrize("kind", ["filters", "programs"])
def test_where_others_attached_something_nothing_is_set_and_the_evidence_is_told(kind: str, hook: str) -> None:
    program = tc.Filter(device=VETH, kind="tcx", priority=-1, name="7, 8")
    attached = changed(FOREIGN if kind == "filters" else program, hook=hook)
    kernel: dict[str, Any] = {kind: (attached,)}
    found = plan(pod(RATE, RATE), qdiscs=(changed(HOOK, kind="clsact"),), **kernel)
    into, out = found.statuses
    theirs, free = (out, into) if hook == "ingress" else (into, out)
    assert (theirs.verdict, free.verdict) == ("other-enforcer", "missing")
    assert (
        "a bpf filter tc_cls_egress with preference 10" if kind == "filters" else "tcx programs 7, 8"
    ) in theirs.detail
    assert [type(action) for action in found.actions] == [tc.LimitIngress if free is into else tc.LimitEgress]


REFUSED = "the kernel, or the container's seccomp profile, refuses bpf(2): Operation not permitted"


def test_an_ordinary_node_that_may_not_ask_for_programs_keeps_its_verdicts_and_the_plan_says_so() -> None:
    found = plan(pod(RATE), qdiscs=(ours(VETH),), programs_unknown=REFUSED)
    assert (only(found).verdict, only(found).detail, found.programs_unknown) == ("enforced", "", REFUSED)
    missing = plan(pod(RATE), programs_unknown=REFUSED)
    assert (only(missing).verdict, len(missing.actions)) == ("missing", 1)


def test_programs_of_cilium_that_cannot_be_seen_are_judged_like_those_that_are_seen() -> None:
    here: Any = {"device": CHAINED, "devices": (HOST,), "network": AWS[1:], "cilium": OFF}
    kept = only(plan(pod(RATE), qdiscs=(ours(VETH),), programs_unknown=REFUSED, **here))
    assert kept.verdict == "enforced"
    assert f"whether unseen programs of Cilium on {CHAINED.name} ({REFUSED}) may carry" in kept.detail
    withheld = plan(pod(RATE), programs_unknown=REFUSED, **here)
    assert (only(withheld).verdict, withheld.actions) == ("other-enforcer", ())
    assert only(withheld).detail.startswith(f"unknown: unseen programs of Cilium on {CHAINED.name}")
    # Where they can be looked at, or the same program attached a filter instead, nothing is left open.
    assert only(plan(pod(RATE), **here)).verdict == "missing"
    by_tc = tc.Filter(device=VETH, kind="bpf", name="cil_from_container", priority=1)
    assert only(plan(pod(RATE), programs_unknown=REFUSED, filters=(by_tc,), **here)).verdict == "missing"


MINE = changed(PIPE_DEVICE, alias=f"netaware:{UID}")
REMOVE_OUT = tc.RemoveLimit(VETH, "veth12ab", "egress", IFB, (1,))


def test_a_redirect_of_ours_gives_way_to_filters_that_it_would_take_packets_from() -> None:
    withdrawn = plan(pod(egress=RATE), **redirected(ours(PIPE), device=MINE, filters=(REDIRECT, FOREIGN)))
    assert withdrawn.actions == (REMOVE_OUT,)
    late = changed(REDIRECT, priority=tc.LAST_PRIORITY)
    stays = plan(pod(egress=RATE), **redirected(ours(PIPE), device=MINE, filters=(late, FOREIGN)))
    assert (only(stays).verdict, stays.actions) == ("enforced", ())
    assert "tc_cls_egress" in only(stays).detail


def test_pods_that_claim_one_cgroup_get_a_verdict_that_says_so_and_nothing_is_done() -> None:
    found = plan(pod(RATE, uid="u1", cgroup_uid="hash"), pod(RATE, uid="u2", cgroup_uid="hash", name="q"))
    assert [(j.verdict, "claimed by" in j.detail) for j in found.statuses] == [("invalid", True)] * 2
    assert found.actions == ()


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"host_network": True}, None),
        ({}, tc.Location(pid=1)),  # macvlan
        # With Multus the pod may have a veth pair that is not its eth0: limits there would be none of eth0.
        ({}, changed(LOCATION, eth0_index=9)),
        # Its oldest process is in the node's network: what the node sends is not held against it.
        ({}, tc.Location(pid=1, host_network=True)),
    ],
)
def test_pods_without_a_network_or_a_veth_are_not_applicable(
    changes: dict[str, Any], location: tc.Location | None
) -> None:
    found = plan(pod(RATE, RATE, **changes), location=location)
    assert ({status.verdict for status in found.statuses}, found.actions) == ({"not-applicable"}, ())
    if location is not None and location.host_network:
        assert {status.counter_source for status in found.statuses} == {None}


def test_an_annotation_that_cannot_be_read_is_invalid_whatever_is_set_up() -> None:
    why = "resource is unreasonably small (< 1kbit)"
    found = plan(pod(limits={"ingress": LimitSpec(None, why)}), qdiscs=(ours(VETH),))
    assert (only(found).verdict, only(found).detail, found.actions) == ("invalid", why, ())


def test_pods_that_are_not_there_yet_have_no_verdict() -> None:
    early = plan(pod(RATE, has_address=False))
    assert early == tc.BandwidthPlan(unlocated={"default/p": "the pod has no address yet"})
    gone = plan(pod(RATE), location=None)
    assert gone == tc.BandwidthPlan(unlocated={"default/p": "none of its processes was found"})


def test_limits_of_ours_go_when_the_annotation_goes_and_those_of_the_plugin_stay() -> None:
    found = plan(pod(), **redirected(ours(PIPE), ours(VETH)))
    assert found.actions == (tc.RemoveLimit(VETH, "veth12ab", "ingress"), REMOVE_OUT)
    assert plan(pod(), **redirected(bucket(PIPE, plugin_shape(RATE, CONTAINERD_BURST)))).actions == ()


def test_intermediate_devices_of_ours_go_with_their_pod_and_others_stay() -> None:
    gone = changed(PIPE_DEVICE, alias="netaware:gone")
    theirs = tc.Device(index=31, name="bwp0000000000ff", kind="ifb")
    used = changed(PIPE_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:here")
    living = tc.Device(index=33, name="bwp0000000000bb", kind="ifb", alias=f"netaware:{UID}")
    filters = (changed(REDIRECT, redirects_to=32),)
    found = plan(pod(), devices=(gone, theirs, used, living), filters=filters, qdiscs=(HOOK,))
    assert found.actions == (tc.RemoveDevice(PIPE, IFB), tc.RemoveDevice(33, "bwp0000000000bb"))


def test_an_intermediate_device_that_the_next_repair_would_use_stays() -> None:
    assert [type(action) for action in plan(pod(egress=RATE), devices=(MINE,)).actions] == [tc.LimitEgress]
    # Nor is one removed of a pod whose sandbox is not known just now.
    assert plan(pod(egress=RATE), devices=(MINE,), location=None).actions == ()


def test_of_several_networks_the_one_with_eth0_counts() -> None:
    first, second = (changed(POD_DEVICE, index=40 + i, peer=peer) for i, peer in enumerate((5, 3)))
    elsewhere = changed(POD_DEVICE, index=42, namespace_id=8, peer=5)
    ends = devices_by_namespace((first, second, elsewhere, changed(PIPE_DEVICE, namespace_id=9)))
    for namespace, index, device in ((7, 5, first), (7, 3, second), (7, None, second), (9, None, None)):
        assert rules.find_device(tc.Location(pid=1, namespace_id=namespace, eth0_index=index), ends) == device
