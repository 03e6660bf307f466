"""Verdicts and repairs, from pictures of the kernel's state."""

from __future__ import annotations

import msgspec
import pytest

from agent.bandwidth.rules import Policy, find_device, intermediate_name, plan_limits
from agent.bandwidth.state import (
    ROOT,
    BandwidthPlan,
    BandwidthSnapshot,
    Device,
    Filter,
    Judgement,
    KernelState,
    LimitEgress,
    LimitIngress,
    Location,
    Qdisc,
    RemoveDevice,
    Unlimit,
)
from agent.bandwidth.tbf import Shape, bounded_shape, plugin_shape
from agent.bandwidth.wanted import PodWish, Wish

UID = "0f3a1b2c-0000-4000-8000-000000000001"
SANDBOX = "a" * 64
NETWORK = "k8s-pod-network"
IFB = intermediate_name(NETWORK, SANDBOX)
VETH, PIPE, UPLINK = 20, 30, 2
RATE = 10_000_000
CONTAINERD_BURST = 536_870_911
ENFORCE = Policy(enforce=True)
LOCATION = Location(pid=4242, sandbox=SANDBOX, namespace_id=7, own_index=3)
DEVICES = (
    Device(index=UPLINK, name="eth0", physical=True),
    Device(index=VETH, name="veth12ab", kind="veth", namespace_id=7, peer=3),
)
PIPE_DEVICE = Device(index=PIPE, name=IFB, kind="ifb")


def pod(ingress: int | None = None, egress: int | None = None, **changes: object) -> PodWish:
    wishes = {d: Wish(rate) for d, rate in (("ingress", ingress), ("egress", egress)) if rate is not None}
    fields: dict[str, object] = {"namespace": "default", "name": "p", "uid": UID, "wishes": wishes, **changes}
    return PodWish(**fields)  # type: ignore[arg-type]


def tbf(device: int, shape: Shape) -> Qdisc:
    return Qdisc(device=device, kind="tbf", handle=0x10000, parent=ROOT, shape=shape)


def ingress_qdisc(device: int = VETH, kind: str = "ingress") -> Qdisc:
    return Qdisc(device=device, kind=kind, handle=0xFFFF0000, parent=0xFFFFFFF1)


def redirect(to: int = PIPE, *, matches_all: bool = True) -> Filter:
    return Filter(device=VETH, kind="u32", priority=1, matches_all=matches_all, redirects_to=to)


def plan(
    wish: PodWish,
    *,
    devices: tuple[Device, ...] = DEVICES,
    qdiscs: tuple[Qdisc, ...] = (),
    filters: tuple[Filter, ...] = (),
    location: Location | None = LOCATION,
    policy: Policy = ENFORCE,
) -> BandwidthPlan:
    locations = {wish.uid: location} if location is not None else {}
    kernel = KernelState(devices=devices, qdiscs=qdiscs, filters=filters)
    return plan_limits(BandwidthSnapshot(pods=(wish,), locations=locations, kernel=kernel, network=NETWORK), policy)


def only(found: BandwidthPlan) -> Judgement:
    assert len(found.judgements) == 1
    return found.judgements[0]


def plugin_egress(shape: Shape) -> dict[str, tuple[object, ...]]:
    return {
        "devices": (*DEVICES, PIPE_DEVICE),
        "qdiscs": (tbf(PIPE, shape), ingress_qdisc()),
        "filters": (redirect(),),
    }


# --- into the pod ----------------------------------------------------------------------------------------------------


def test_without_a_bucket_a_limit_is_missing_and_enforcing_sets_it() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(Qdisc(device=VETH, kind="noqueue", handle=0, parent=ROOT),))
    judgement = only(found)
    assert (judgement.verdict, judgement.device) == ("missing", "veth12ab")
    assert judgement.detail == "no limit on veth12ab, its root is noqueue"
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_shape(RATE, 1500)),)
    assert plan(pod(ingress=RATE), policy=Policy()).actions == ()


def test_a_bucket_of_ours_is_enforced_and_nothing_is_left_to_do() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(tbf(VETH, bounded_shape(RATE, 1500)),))
    judgement = only(found)
    assert (judgement.verdict, judgement.rate_bytes_per_s, judgement.queue_s) == ("enforced", RATE // 8, 0.05)
    assert found.actions == ()


def test_another_rate_is_wrong_and_a_changed_annotation_changes_the_limit() -> None:
    found = plan(pod(ingress=5 * RATE), qdiscs=(tbf(VETH, bounded_shape(RATE, 1500)),))
    assert only(found).verdict == "wrong-rate"
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_shape(5 * RATE, 1500)),)


def test_containerds_burst_at_10_mbit_is_wrapped_and_the_effective_numbers_are_told() -> None:
    found = plan(pod(ingress=RATE), qdiscs=(tbf(VETH, plugin_shape(RATE, CONTAINERD_BURST)),))
    judgement = only(found)
    assert judgement.verdict == "wrapped"
    assert judgement.burst_bytes == 193_273_526
    assert judgement.queue_s == pytest.approx(429.5, abs=0.1)
    assert found.actions == ()


def test_containerds_burst_at_100_mbit_is_too_large() -> None:
    found = plan(pod(ingress=100_000_000), qdiscs=(tbf(VETH, plugin_shape(100_000_000, CONTAINERD_BURST)),))
    judgement = only(found)
    assert judgement.verdict == "burst-too-large"
    assert judgement.burst_bytes == pytest.approx(CONTAINERD_BURST, rel=1e-4)
    assert found.actions == ()


@pytest.mark.parametrize("rate_bps", [RATE, 100_000_000])
def test_the_plugins_bursts_are_repaired_only_on_request(rate_bps: int) -> None:
    qdiscs = (tbf(VETH, plugin_shape(rate_bps, CONTAINERD_BURST)),)
    found = plan(pod(ingress=rate_bps), qdiscs=qdiscs, policy=Policy(enforce=True, repair_burst=True))
    assert found.actions == (LimitIngress(VETH, "veth12ab", bounded_shape(rate_bps, 1500)),)


def test_a_bucket_smaller_than_a_packet_has_an_effective_rate_of_zero() -> None:
    tiny = Shape(rate_bytes_per_s=RATE // 8, buffer_ticks=5_000, limit_bytes=40_000)
    judgement = only(plan(pod(ingress=RATE), qdiscs=(tbf(VETH, tiny),)))
    assert (judgement.verdict, judgement.rate_bytes_per_s) == ("wrong-rate", 0)


# --- out of the pod --------------------------------------------------------------------------------------------------


def test_without_anything_egress_is_missing_and_is_set_up_under_the_plugins_names() -> None:
    found = plan(pod(egress=RATE))
    assert only(found).verdict == "missing"
    assert found.actions == (
        LimitEgress(VETH, "veth12ab", IFB, 1500, bounded_shape(RATE, 1500), f"netaware:{UID}", redirect=True),
    )


def test_the_intermediate_device_has_the_name_that_the_plugins_del_looks_for() -> None:
    # bwp + sha512("mynet" + id), 15 characters, as utils.MustFormatHashWithPrefix of the CNI plugins gives it.
    assert intermediate_name("mynet", "0123456789") == "bwpf7f4a9fe4273"
    assert len(IFB) == 15


def test_the_whole_structure_is_enforced() -> None:
    judgement = only(plan(pod(egress=RATE), **plugin_egress(bounded_shape(RATE, 1500))))  # type: ignore[arg-type]
    assert (judgement.verdict, judgement.device) == ("enforced", IFB)


def test_a_limit_that_no_packet_reaches_is_told_as_a_missing_filter() -> None:
    parts = plugin_egress(bounded_shape(RATE, 1500)) | {"filters": ()}
    found = plan(pod(egress=RATE), **parts)  # type: ignore[arg-type]
    judgement = only(found)
    assert (judgement.verdict, judgement.device, judgement.rate_bytes_per_s) == ("filter-missing", IFB, None)
    assert isinstance(found.actions[0], LimitEgress)
    assert found.actions[0].redirect


def test_a_filter_that_lets_some_packets_escape_does_not_count() -> None:
    parts = plugin_egress(bounded_shape(RATE, 1500)) | {"filters": (redirect(matches_all=False),)}
    assert only(plan(pod(egress=RATE), **parts)).verdict == "filter-missing"  # type: ignore[arg-type]


def test_a_filter_to_a_device_that_is_gone_is_missing() -> None:
    found = plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(redirect(to=99),))
    assert only(found).verdict == "filter-missing"
    assert len(found.actions) == 1


def test_an_intermediate_device_without_a_bucket_is_missing_and_gets_one() -> None:
    parts = plugin_egress(bounded_shape(RATE, 1500)) | {"qdiscs": (ingress_qdisc(),)}
    found = plan(pod(egress=RATE), **parts)  # type: ignore[arg-type]
    assert only(found).verdict == "missing"
    assert found.actions == (
        LimitEgress(VETH, "veth12ab", IFB, 1500, bounded_shape(RATE, 1500), f"netaware:{UID}", redirect=False),
    )


# --- not ours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "extra", "detail"),
    [
        ({"calico": True}, (), "Calico"),
        ({}, (Qdisc(device=VETH, kind="htb", handle=0x10000, parent=ROOT),), "htb"),
    ],
)
def test_other_enforcers_are_recognised_and_left_alone(
    changes: dict[str, object], extra: tuple[Qdisc, ...], detail: str
) -> None:
    found = plan(pod(RATE, None, **changes), qdiscs=extra)
    assert only(found).verdict == "other-enforcer"
    assert detail in only(found).detail
    assert found.actions == ()


CILIUM = (
    Device(index=UPLINK, name="eth0", physical=True),
    Device(index=9, name="cilium_host", kind="veth"),
    Device(index=VETH, name="lxc12ab34cd", kind="veth", namespace_id=7, peer=3),
)


def test_ciliums_bandwidth_manager_is_an_enforcer() -> None:
    paced = Qdisc(device=UPLINK, kind="fq", handle=0x80010000, parent=ROOT)
    found = plan(pod(egress=RATE), devices=CILIUM, qdiscs=(paced,))
    assert (only(found).verdict, found.actions) == ("other-enforcer", ())


def test_cilium_without_its_bandwidth_manager_enforces_nothing_and_we_cannot_either() -> None:
    found = plan(pod(egress=RATE), devices=CILIUM)
    assert (only(found).verdict, found.actions) == ("missing", ())
    assert "bandwidth manager is off" in only(found).detail


def test_policing_filters_and_redirects_elsewhere_are_somebody_elses() -> None:
    police = Filter(device=VETH, kind="u32", priority=1, matches_all=True, polices=True)
    assert only(plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(police,))).verdict == "other-enforcer"
    found = plan(pod(egress=RATE), qdiscs=(ingress_qdisc(),), filters=(redirect(to=UPLINK),))
    assert (only(found).verdict, found.actions) == ("other-enforcer", ())


def test_pods_without_a_network_or_a_veth_are_not_applicable() -> None:
    assert only(plan(pod(ingress=RATE, host_network=True), location=None)).verdict == "not-applicable"
    macvlan = Location(pid=1, namespace_id=None)
    assert only(plan(pod(ingress=RATE), location=macvlan)).verdict == "not-applicable"


def test_an_annotation_that_cannot_be_read_is_invalid_whatever_is_set_up() -> None:
    wish = pod(wishes={"ingress": Wish(None, "resource is unreasonably small (< 1kbit)")})
    found = plan(wish, qdiscs=(tbf(VETH, bounded_shape(RATE, 1500)),))
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
    ours = plugin_egress(bounded_shape(RATE, 1500))
    ours["qdiscs"] = (*ours["qdiscs"], tbf(VETH, bounded_shape(RATE, 1500)))
    assert plan(pod(), **ours).actions == (  # type: ignore[arg-type]
        Unlimit(VETH, "veth12ab", "ingress"),
        Unlimit(VETH, "veth12ab", "egress", IFB),
    )
    theirs = plugin_egress(plugin_shape(RATE, CONTAINERD_BURST))
    assert plan(pod(), **theirs).actions == ()  # type: ignore[arg-type]


def test_intermediate_devices_of_ours_go_with_their_pod_and_others_stay() -> None:
    ours = msgspec.structs.replace(PIPE_DEVICE, alias="netaware:gone")
    theirs = Device(index=31, name="bwp0000000000ff", kind="ifb")
    used = msgspec.structs.replace(PIPE_DEVICE, index=32, name="bwp0000000000aa", alias="netaware:here")
    living = Device(index=33, name="bwp0000000000bb", kind="ifb", alias=f"netaware:{UID}")
    found = plan(
        pod(), devices=(*DEVICES, ours, theirs, used, living), filters=(redirect(to=32),), qdiscs=(ingress_qdisc(),)
    )
    assert found.actions == (RemoveDevice(PIPE, IFB),)


def test_of_several_networks_the_one_with_eth0_counts() -> None:
    first = Device(index=40, name="veth-a", kind="veth", namespace_id=7, peer=5)
    second = Device(index=41, name="veth-b", kind="veth", namespace_id=7, peer=3)
    devices = {40: first, 41: second}
    assert find_device(Location(pid=1, namespace_id=7, own_index=5), devices) == first
    assert find_device(Location(pid=1, namespace_id=7, own_index=3), devices) == second
    assert find_device(Location(pid=1, namespace_id=7), devices) == second
    assert find_device(Location(pid=1, namespace_id=8), devices) is None
