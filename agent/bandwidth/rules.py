"""Decides whether each pod's limit is enforced, and what repairs it. Pure.

The structure is the CNI bandwidth plugin's (docs/contracts): a token bucket at the root of the host-side veth limits packets to the
pod; a filter redirects packets from the pod to an ifb with a token bucket of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth import tbf
from agent.bandwidth.annotations import DIRECTIONS, Direction, PodBandwidthSpec
from agent.bandwidth.foreign import cilium_on, find_foreign
from agent.bandwidth.state import (
    ALIAS_PREFIX,
    INGRESS_QDISC_SUFFIX,
    Action,
    BandwidthPlan,
    BandwidthSnapshot,
    CounterSource,
    Device,
    Filter,
    Hook,
    LimitAssessment,
    LimitEgress,
    LimitIngress,
    LimitStatus,
    Location,
    RemoveDevice,
    RemoveLimit,
    Verdict,
)
from agent.bandwidth.tbf import TbfParams
from agent.bandwidth.tc_index import TcIndex, describe, is_limit_ifb, is_our_ifb, pod_uid_of

_REPAIRED: frozenset[Verdict] = frozenset({"missing", "wrong-rate", "filter-missing"})
_REPAIRED_ON_REQUEST: frozenset[Verdict] = frozenset({"burst-too-large", "wrapped"})


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Repair limits only if ``enforce``, and bursts set by others only if ``repair_burst``."""

    enforce: bool = False
    repair_burst: bool = False


def plan_limits(snapshot: BandwidthSnapshot, policy: Policy) -> BandwidthPlan:
    """Check every annotated pod, and plan repairs."""
    tc = TcIndex(snapshot)
    statuses: list[LimitStatus] = []
    unlocated: dict[str, str] = {}
    actions: list[Action] = []
    repaired = _REPAIRED | _REPAIRED_ON_REQUEST if policy.repair_burst else _REPAIRED
    for pod in snapshot.pods:
        location = snapshot.locations.get(pod.uid)
        for direction in (direction for direction in DIRECTIONS if direction in pod.limits):
            assessment = _assess(pod, direction, location, tc)
            if isinstance(assessment, str):
                unlocated[pod.key] = assessment
                continue
            statuses.append(_status_of(pod, direction, assessment, location, tc))
            if policy.enforce and assessment.action is not None and assessment.verdict in repaired:
                actions.append(assessment.action)
        if policy.enforce:
            actions += _unneeded_limits(pod, location, tc)
    if policy.enforce:
        actions += _unused_ifbs(tc, snapshot)
    return BandwidthPlan(statuses=tuple(statuses), unlocated=unlocated, actions=tuple(actions))


def with_excess_or_dispute(status: LimitStatus, excess: str, disputed: str) -> LimitStatus:
    """A status of the configuration, overruled by a measured excess or a dispute."""
    if excess:
        verdict, evidence = "exceeded", excess
    elif disputed:
        verdict, evidence = "disputed", disputed
    else:
        return status
    set_up = status.verdict + (f", {status.detail}" if status.detail else "")
    return msgspec.structs.replace(status, verdict=verdict, detail=f"{evidence}; as set up: {set_up}")


def plugin_ifb_name(network: str, sandbox: str) -> str:
    """The CNI bandwidth plugin's name for a pod's ifb, so that its DEL finds it: ``bwp`` and a hash, 15 characters."""
    return ("bwp" + hashlib.sha512((network + sandbox).encode()).hexdigest())[:15]


def ifb_name_of(pod: PodBandwidthSpec, location: Location, tc: TcIndex) -> str:
    """Name of the ifb that the plugin created for a pod, or would have created."""
    network = location.attachment.network if location.attachment is not None else tc.network.name
    return plugin_ifb_name(network, location.sandbox or pod.uid)


def find_device(pod_location: Location, ends: Mapping[int, Sequence[Device]]) -> Device | None:
    """The host's end of the pod's eth0, among `devices_by_namespace`; None if eth0 is not among them.

    A pod with several networks has several devices. If the index of its eth0 is unknown, the oldest counts, because a meta plugin
    sets up the cluster's network first.
    """
    if pod_location.namespace_id is None:
        return None
    devices = ends.get(pod_location.namespace_id, ())
    if pod_location.eth0_index is not None and all(device.peer is not None for device in devices):
        return next((device for device in devices if device.peer == pod_location.eth0_index), None)
    return min(devices, key=lambda d: (d.peer or 0, d.index), default=None)


def _assess(
    pod: PodBandwidthSpec, direction: Direction, location: Location | None, tc: TcIndex
) -> LimitAssessment | str:
    """The verdict and the repair, or why it is too early for them."""
    limit_spec = pod.limits[direction]
    if limit_spec.rate_bps is None:
        return LimitAssessment("invalid", limit_spec.problem)
    if pod.host_network:
        return LimitAssessment("not-applicable", "the pod uses the node's network")
    if not pod.has_address:
        return "the pod has no address yet"
    if location is None:
        return "none of its processes was found"
    return _assess_located(pod, direction, limit_spec.rate_bps, location, tc)


def _assess_located(
    pod: PodBandwidthSpec, direction: Direction, rate_bps: int, location: Location, tc: TcIndex
) -> LimitAssessment:
    if location.host_network:
        detail = "its oldest process is in the node's network (for example a virtual machine's monitor)"
        return LimitAssessment("not-applicable", detail)
    device = find_device(location, tc.pod_devices)
    if device is None:
        detail = "the pod's eth0 is not an end of a veth pair on this node (macvlan, ipvlan, SR-IOV or similar)"
        return LimitAssessment("not-applicable", detail)
    foreign = find_foreign(direction, device, location.attachment, tc)
    if foreign is not None:
        return foreign
    if direction == "ingress":
        assessment = _assess_ingress(rate_bps, device, tc)
    else:
        assessment = _assess_egress(pod, rate_bps, device, location, tc)
    assessment = _keep_stricter_limit(assessment, direction, rate_bps, location, tc)
    return _defer_to_foreign_filters(assessment, device, "egress" if direction == "ingress" else "ingress", tc)


def _defer_to_foreign_filters(assessment: LimitAssessment, device: Device, hook: Hook, tc: TcIndex) -> LimitAssessment:
    """Drop the repair if there are foreign filters, which may limit or need the packets that ours would redirect."""
    foreign_filters = tc.foreign_filters(device, hook)
    others = cilium_on(device, tc) or (describe(device, foreign_filters) if foreign_filters else "")
    if not others or assessment.verdict == "other-enforcer":
        return assessment
    if assessment.verdict == "enforced":
        detail = f"as set up; whether {others} may carry packets past it is not known"
        return msgspec.structs.replace(assessment, detail=detail)
    return LimitAssessment("other-enforcer", f"{others} may limit, so nothing is set; {assessment.detail}", device)


def _keep_stricter_limit(
    assessment: LimitAssessment, direction: Direction, rate_bps: int, location: Location, tc: TcIndex
) -> LimitAssessment:
    """Drop a repair that would raise another writer's limit, such as a rate of the CNI configuration.

    A rate that the runtime requested comes from the pod's annotation at its start, and may be raised.
    """
    device, params = assessment.device, assessment.params
    if assessment.verdict != "wrong-rate" or device is None or params is None:
        return assessment
    if params.rate_bytes_per_s * 8 >= rate_bps - 8:
        return assessment
    requested_bps = location.attachment.requested.get(f"{direction}Rate", 0) if location.attachment is not None else 0
    if tc.is_our_root(device.index) or abs(params.rate_bytes_per_s - requested_bps // 8) <= 1:
        return assessment
    detail = f"{assessment.detail}; it is not ours and stricter than the annotation, so it stays"
    return msgspec.structs.replace(assessment, detail=detail, action=None)


def _assess_ingress(rate_bps: int, device: Device, tc: TcIndex) -> LimitAssessment:
    params = tc.params_at(device.index)
    action = LimitIngress(device.index, device.name, tbf.bounded_params(rate_bps, device.mtu))
    if params is None:
        root = tc.roots.get(device.index)
        detail = f"no limit on {device.name}" + (f", its root is {root.kind}" if root is not None else "")
        return LimitAssessment("missing", detail, device, None, action)
    verdict, detail = _assess_params(params, rate_bps, device.mtu, ours=tc.is_our_root(device.index))
    return LimitAssessment(verdict, detail, device, params, action)


def _assess_egress(
    pod: PodBandwidthSpec, rate_bps: int, device: Device, location: Location, tc: TcIndex
) -> LimitAssessment:
    redirect, ifb = tc.redirect_filter(device.index), tc.redirect_device(device.index)
    action = LimitEgress(
        device.index,
        device.name,
        ifb_name_of(pod, location, tc),
        device.mtu,
        tbf.bounded_params(rate_bps, device.mtu),
        ALIAS_PREFIX + pod.uid,
        add_ingress_qdisc=device.index not in tc.devices_with_ingress_qdisc,
        stale_filters=tuple(f.priority for f in tc.filters(device.index) if _is_stale(f, tc)),
    )
    if redirect is None:
        return _assess_without_redirect(device, action, tc)
    if ifb is None:
        lost = "and is lost" if redirect.loses_packets else "and goes on unlimited"
        detail = f"what {device.name} receives is redirected to a device that is gone, {lost}"
        return LimitAssessment("filter-missing", detail, device, None, action, lossy=redirect.loses_packets)
    limit = tc.params_at(ifb.index)
    action = msgspec.structs.replace(action, ifb_name=ifb.name, add_filter=False, stale_filters=())
    if not ifb.up:
        lost = f"{ifb.name} is down, and what {device.name} receives is lost there"
        return LimitAssessment("filter-missing", lost, ifb, limit, action, lossy=True)
    if limit is None:
        return LimitAssessment("missing", f"{ifb.name} has no limit", ifb, None, action)
    verdict, detail = _assess_params(limit, rate_bps, device.mtu, ours=tc.is_our_root(ifb.index))
    return LimitAssessment(verdict, detail, ifb, limit, action)


def _is_stale(filter_: Filter, tc: TcIndex) -> bool:
    """Whether a filter redirects all packets to a device that is gone."""
    return filter_.matches_all and filter_.redirects_to is not None and filter_.redirects_to not in tc.devices


def _assess_without_redirect(device: Device, action: LimitEgress, tc: TcIndex) -> LimitAssessment:
    if any(f.polices for f in tc.filters(device.index)):
        return LimitAssessment("other-enforcer", "a filter polices the traffic", device)
    ifb = tc.by_name.get(action.ifb_name)
    limit = tc.params_at(ifb.index) if ifb is not None else None
    if ifb is None or limit is None:
        return LimitAssessment("missing", f"nothing limits what {device.name} receives", device, None, action)
    detail = f"{ifb.name} has a limit, but no filter sends it what {device.name} receives"
    return LimitAssessment("filter-missing", detail, ifb, limit, action)


def _assess_params(params: TbfParams, rate_bps: int, mtu: int, *, ours: bool) -> tuple[Verdict, str]:
    wanted = rate_bps // 8
    if abs(params.rate_bytes_per_s - wanted) > 1:
        return "wrong-rate", f"limited to {params.rate_bytes_per_s * 8} bit/s instead of {rate_bps}"
    blocks_everything = tbf.blocks_everything(params, mtu)
    if ours and not blocks_everything:
        return "enforced", ""
    requested_bytes = tbf.wrapped_burst(params)
    if requested_bytes is not None:
        lasts = f"which lasts {params.burst_s:.1f} s"
        effect = "which is less than a packet: nothing gets through" if blocks_everything else lasts
        return "wrapped", f"a burst of {requested_bytes} bytes overflowed into one of {params.burst_bytes}, {effect}"
    if blocks_everything:
        return "wrong-rate", f"a burst of {params.burst_bytes} bytes lets no packet through"
    if tbf.has_excessive_burst_or_queue(params, mtu):
        return "burst-too-large", (
            f"a burst of {params.burst_bytes} bytes passes unlimited for {params.burst_s:.1f} s at the limit's rate, "
            f"and the queue may take {params.queue_s:.1f} s"
        )
    return "enforced", ""


def _status_of(
    pod: PodBandwidthSpec, direction: Direction, assessment: LimitAssessment, location: Location | None, tc: TcIndex
) -> LimitStatus:
    device, params = assessment.device, assessment.params if assessment.verdict != "filter-missing" else None
    status = LimitStatus(
        pod=pod,
        direction=direction,
        verdict=assessment.verdict,
        device=device.name if device is not None else "",
        wanted_bps=pod.limits[direction].rate_bps,
        detail=assessment.detail,
    )
    if params is not None and device is not None:
        status = msgspec.structs.replace(
            status,
            rate_bytes_per_s=0 if tbf.blocks_everything(params, device.mtu) else params.rate_bytes_per_s,
            burst_bytes=params.burst_bytes,
            queue_s=params.queue_s,
        )
    if location is None or status.wanted_bps is None or location.host_network:
        return status  # In the node's network, eth0 would count the node's own traffic.
    end = find_device(location, tc.pod_devices)
    bucket = device.index if device is not None and device.index in tc.roots else None
    if direction == "egress" and (end is None or bucket == end.index or tc.redirect_filter(end.index) is None):
        bucket = None
    others_may_drop = assessment.lossy or assessment.verdict == "other-enforcer"
    return msgspec.structs.replace(
        status,
        host_device=end.name if end is not None else "",
        counter_source=CounterSource(pid=location.pid, device=end.index if end is not None else 0, bucket=bucket),
        is_measurable=direction == "ingress" or bucket is not None or not others_may_drop,
    )


def _unneeded_limits(pod: PodBandwidthSpec, location: Location | None, tc: TcIndex) -> list[Action]:
    """Removals of our limits on a pod whose annotation is gone; the CNI plugin's limits stay."""
    if location is None or pod.host_network or not pod.has_address:
        return []
    device = find_device(location, tc.pod_devices)
    if device is None:
        return []
    removals: list[Action] = []
    if "ingress" not in pod.limits and tc.is_our_root(device.index):
        removals.append(RemoveLimit(device.index, device.name, "ingress"))
    ifb = tc.redirect_device(device.index)
    if "egress" not in pod.limits and ifb is not None and is_limit_ifb(ifb) and tc.is_our_root(ifb.index):
        filters = tc.filters(device.index)
        ours = tuple(f.priority for f in filters if f.redirects_to == ifb.index)
        has_others = len(filters) > len(ours) or bool(tc.filters(device.index, "egress"))
        remove_qdisc = is_our_ifb(ifb) and ifb.alias.endswith(INGRESS_QDISC_SUFFIX) and not has_others
        removals.append(RemoveLimit(device.index, device.name, "egress", ifb.name, ours, remove_qdisc))
    return removals


def _unused_ifbs(tc: TcIndex, snapshot: BandwidthSnapshot) -> list[Action]:
    """Removals of our ifbs to which nothing is redirected and which no repair would use."""
    used = tc.redirect_indexes()
    names = {
        pod.uid: ifb_name_of(pod, location, tc) if (location := snapshot.locations.get(pod.uid)) is not None else None
        for pod in snapshot.pods
        if "egress" in pod.limits or pod.uid not in snapshot.locations
    }
    return [
        RemoveDevice(device.index, device.name)
        for device in tc.devices.values()
        if is_our_ifb(device)
        and device.index not in used
        and names.get(pod_uid_of(device), "") not in {device.name, None}
    ]
