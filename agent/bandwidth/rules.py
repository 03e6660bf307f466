"""Decides whether each pod's limits are enforced, and how to repair them. No I/O.

Limits are set like those of the CNI bandwidth plugin: a token bucket at the root of the host-side veth limits packets to the pod; a
filter redirects packets from the pod to an ifb with a token bucket of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec

from agent.bandwidth import tbf
from agent.bandwidth.annotations import ANNOTATION_BY_DIRECTION, Direction, PodBandwidthSpec
from agent.bandwidth.foreign import describe_cilium, find_foreign_limit
from agent.bandwidth.state import (
    ALIAS_PREFIX,
    INGRESS_QDISC_SUFFIX,
    Action,
    BandwidthPlan,
    BandwidthSnapshot,
    CounterSource,
    DeleteIfb,
    Device,
    Filter,
    Hook,
    LimitAssessment,
    LimitStatus,
    PodSandbox,
    RemoveLimit,
    SetEgressLimit,
    SetIngressLimit,
    TcState,
    Verdict,
)
from agent.bandwidth.tc_index import IFB_PREFIX, TcIndex, is_limit_ifb, is_our_ifb
from agent.rtnetlink import TbfParams

_RATE_ROUNDING_BYTES_PER_S = 1
"""The kernel stores rates in whole bytes per second."""
_MAX_NAME_LENGTH = 15
"""IFNAMSIZ without the final zero byte."""
_HOOK_BY_DIRECTION: dict[Direction, Hook] = {"ingress": "egress", "egress": "ingress"}
"""The host's end of a veth pair sends what the pod receives."""
_REPAIRABLE: frozenset[Verdict] = frozenset({"missing", "wrong-rate", "burst-too-small", "filter-missing"})
_WRONG_BURST: frozenset[Verdict] = frozenset({"burst-too-large", "burst-overflow"})


class RepairPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which limits are repaired: without ``enforce`` none; ``repair_burst`` adds other writers' limits whose burst is wrong."""

    enforce: bool = False
    repair_burst: bool = False


def plan_limits(snapshot: BandwidthSnapshot, policy: RepairPolicy) -> BandwidthPlan:
    """Check every annotated pod, and plan repairs and removals as the policy permits."""
    tc = TcIndex(snapshot)
    statuses: list[LimitStatus] = []
    reason_by_pod: dict[str, str] = {}
    actions: list[Action] = []
    repairable = _REPAIRABLE | _WRONG_BURST if policy.repair_burst else _REPAIRABLE
    for pod in snapshot.pods:
        sandbox = snapshot.sandbox_by_uid.get(pod.uid)
        for direction in pod.limits:
            assessment = _assess(pod, direction, sandbox, tc)
            if isinstance(assessment, str):
                reason_by_pod[pod.key] = assessment
                continue
            statuses.append(_make_status(pod, direction, assessment, sandbox, tc))
            if policy.enforce and assessment.action is not None and assessment.verdict in repairable:
                actions.append(assessment.action)
        if policy.enforce:
            device = tc.pod_device(sandbox) if sandbox is not None else None
            unwanted = {direction for direction in ANNOTATION_BY_DIRECTION if direction not in pod.limits}
            actions += _plan_removals(device, unwanted, tc) if device is not None else []
    if policy.enforce:
        actions += _plan_ifb_deletions(tc, snapshot)
    return BandwidthPlan(statuses=tuple(statuses), unlocated_reason_by_pod=reason_by_pod, actions=tuple(actions))


def plan_cleanup(tc_state: TcState) -> list[Action]:
    """Plan the removal of all our limits and ifbs from the node."""
    snapshot = BandwidthSnapshot(pods=(), tc_state=tc_state)
    tc = TcIndex(snapshot)
    devices = [device for device in tc.device_by_index.values() if device.kind != "ifb"]
    removals = [action for device in devices for action in _plan_removals(device, {"ingress", "egress"}, tc)]
    return removals + _plan_ifb_deletions(tc, snapshot)


def with_excess_or_dispute(status: LimitStatus, excess: str, dispute: str) -> LimitStatus:
    """Replace the verdict by ``exceeded`` or ``disputed``, if there is a description of an excess, which has precedence, or of a dispute."""
    if not excess and not dispute:
        return status
    configured = status.verdict + (f", {status.detail}" if status.detail else "")
    verdict: Verdict = "exceeded" if excess else "disputed"
    return msgspec.structs.replace(status, verdict=verdict, detail=f"{excess or dispute}; as set up: {configured}")


def plugin_ifb_name(network: str, container_id: str) -> str:
    """The CNI bandwidth plugin's name for a pod's ifb: ``bwp`` and a hash, 15 characters.

    Our ifbs have the same name, because the plugin's DEL deletes the ifb by name.
    """
    return (IFB_PREFIX + hashlib.sha512((network + container_id).encode()).hexdigest())[:_MAX_NAME_LENGTH]


def ifb_name_of(pod: PodBandwidthSpec, sandbox: PodSandbox, tc: TcIndex) -> str:
    """The name of the ifb that the plugin created for a pod, or would have created."""
    network = sandbox.attachment.network if sandbox.attachment is not None else tc.network.name
    return plugin_ifb_name(network, sandbox.container_id or pod.uid)


def _assess(
    pod: PodBandwidthSpec, direction: Direction, sandbox: PodSandbox | None, tc: TcIndex
) -> LimitAssessment | str:
    """Assess one direction of a pod; returns a reason instead if the pod's device cannot be found yet."""
    limit_spec = pod.limits[direction]
    if limit_spec.rate_bps is None:
        return LimitAssessment("invalid", limit_spec.problem)
    if pod.uses_host_network:
        return LimitAssessment("not-applicable", "the pod uses the node's network")
    if not pod.has_address:
        return "the pod has no address yet"
    if sandbox is None:
        return "none of its processes was found"
    return _assess_located(pod, direction, limit_spec.rate_bps, sandbox, tc)


def _assess_located(
    pod: PodBandwidthSpec, direction: Direction, rate_bps: int, sandbox: PodSandbox, tc: TcIndex
) -> LimitAssessment:
    """Assess one direction of a pod whose sandbox is known."""
    if sandbox.is_in_host_network:
        detail = "its oldest process is in the node's network (for example a virtual machine's monitor)"
        return LimitAssessment("not-applicable", detail)
    device = tc.pod_device(sandbox)
    if device is None:
        detail = "the pod's eth0 is not an end of a veth pair on this node (macvlan, ipvlan, SR-IOV or similar)"
        return LimitAssessment("not-applicable", detail)
    foreign_limit = find_foreign_limit(direction, device, sandbox.attachment, tc)
    if foreign_limit is not None:
        return foreign_limit
    if direction == "ingress":
        assessment = _assess_ingress(rate_bps, device, tc)
    else:
        assessment = _assess_egress(pod, rate_bps, device, sandbox, tc)
    assessment = _keep_stricter_limit(assessment, direction, rate_bps, sandbox, tc)
    return _defer_to_foreign_filters(assessment, device, _HOOK_BY_DIRECTION[direction], tc)


def _defer_to_foreign_filters(assessment: LimitAssessment, device: Device, hook: Hook, tc: TcIndex) -> LimitAssessment:
    """Name foreign filters in the detail, and drop the repair, because they may limit or need packets that ours would redirect."""
    foreign_filters = describe_cilium(device, tc) or tc.describe_foreign_filters(device, hook)
    if not foreign_filters or assessment.verdict == "other-enforcer":
        return assessment
    if assessment.verdict == "enforced":
        detail = f"set up correctly, but packets may bypass it through {foreign_filters}"
        return msgspec.structs.replace(assessment, detail=detail)
    return LimitAssessment(
        "other-enforcer", f"{foreign_filters} may limit, so nothing is set; {assessment.detail}", device
    )


def _keep_stricter_limit(
    assessment: LimitAssessment, direction: Direction, rate_bps: int, sandbox: PodSandbox, tc: TcIndex
) -> LimitAssessment:
    """Drop a repair that would raise another writer's limit, such as a rate of the CNI configuration.

    A rate that the runtime requested comes from the pod's annotation at its start, and may be raised.
    """
    device, params = assessment.device, assessment.params
    if assessment.verdict != "wrong-rate" or device is None or params is None:
        return assessment
    if params.rate_bytes_per_s >= rate_bps // 8 - _RATE_ROUNDING_BYTES_PER_S:
        return assessment
    requested_bps = sandbox.attachment.requested_bandwidth.get(f"{direction}Rate", 0) if sandbox.attachment else 0
    if tc.is_our_root(device.index) or abs(params.rate_bytes_per_s - requested_bps // 8) <= _RATE_ROUNDING_BYTES_PER_S:
        return assessment
    detail = f"{assessment.detail}; it is not ours and stricter than the annotation, so it stays"
    return msgspec.structs.replace(assessment, detail=detail, action=None)


def _assess_ingress(rate_bps: int, device: Device, tc: TcIndex) -> LimitAssessment:
    params = tc.root_tbf_params(device.index)
    action = SetIngressLimit(device.index, device.name, tbf.choose_params(rate_bps, device.mtu))
    if params is None:
        root = tc.root_by_device.get(device.index)
        detail = f"no limit on {device.name}" + (f", its root is {root.kind}" if root is not None else "")
        return LimitAssessment("missing", detail, device, action=action)
    verdict, detail = _assess_params(params, rate_bps, device.mtu, is_ours=tc.is_our_root(device.index))
    return LimitAssessment(verdict, detail, device, params, action)


def _assess_egress(
    pod: PodBandwidthSpec, rate_bps: int, device: Device, sandbox: PodSandbox, tc: TcIndex
) -> LimitAssessment:
    redirect, ifb = tc.redirect_filter(device.index), tc.redirect_device(device.index)
    action = SetEgressLimit(
        device_index=device.index,
        device_name=device.name,
        ifb_name=ifb_name_of(pod, sandbox, tc),
        mtu=device.mtu,
        params=tbf.choose_params(rate_bps, device.mtu),
        alias=ALIAS_PREFIX + pod.uid,
        add_ingress_qdisc=device.index not in tc.devices_with_ingress_qdisc,
        stale_filter_priorities=tuple(f.priority for f in tc.filters_at(device.index) if _is_stale_redirect(f, tc)),
    )
    if redirect is None:
        return _assess_without_redirect(device, action, tc)
    if ifb is None:
        is_lost = redirect.drops_if_target_gone
        effect = "is lost" if is_lost else "is not limited"
        detail = f"what {device.name} receives is redirected to a device that is gone, and {effect}"
        return LimitAssessment("filter-missing", detail, device, action=action, loses_packets=is_lost)
    params = tc.root_tbf_params(ifb.index)
    action = msgspec.structs.replace(action, ifb_name=ifb.name, add_filter=False, stale_filter_priorities=())
    if not ifb.is_up:
        detail = f"{ifb.name} is down, and what {device.name} receives is lost there"
        return LimitAssessment("filter-missing", detail, ifb, params, action, loses_packets=True)
    if params is None:
        return LimitAssessment("missing", f"{ifb.name} has no limit", ifb, action=action)
    verdict, detail = _assess_params(params, rate_bps, device.mtu, is_ours=tc.is_our_root(ifb.index))
    return LimitAssessment(verdict, detail, ifb, params, action)


def _is_stale_redirect(filter_: Filter, tc: TcIndex) -> bool:
    """Whether a filter redirects all packets to a device that is gone."""
    return filter_.matches_all and filter_.target_index is not None and filter_.target_index not in tc.device_by_index


def _assess_without_redirect(device: Device, action: SetEgressLimit, tc: TcIndex) -> LimitAssessment:
    """Assess the egress of a device without a filter that redirects all packets."""
    if any(f.has_police_action for f in tc.filters_at(device.index)):
        return LimitAssessment("other-enforcer", "a filter polices the traffic", device)
    ifb = tc.device_by_name.get(action.ifb_name)
    params = tc.root_tbf_params(ifb.index) if ifb is not None else None
    if ifb is None or params is None:
        return LimitAssessment("missing", f"nothing limits what {device.name} receives", device, action=action)
    detail = f"{ifb.name} has a limit, but no filter sends it what {device.name} receives"
    return LimitAssessment("filter-missing", detail, ifb, params, action)


def _assess_params(params: TbfParams, rate_bps: int, mtu: int, *, is_ours: bool) -> tuple[Verdict, str]:
    """Compare a token bucket's parameters with the annotation's rate: the verdict, and its explanation."""
    if abs(params.rate_bytes_per_s - rate_bps // 8) > _RATE_ROUNDING_BYTES_PER_S:
        return "wrong-rate", f"limited to {params.rate_bytes_per_s * 8} bit/s instead of {rate_bps} bit/s"
    blocks_everything = tbf.blocks_everything(params, mtu)
    if is_ours and not blocks_everything:
        return "enforced", ""
    requested_bytes = tbf.find_overflowed_burst_bytes(params)
    if requested_bytes is not None:
        effect = f"which lasts {params.burst_s:.1f} s"
        if blocks_everything:
            effect = "which is less than a packet: nothing gets through"
        detail = f"a burst of {requested_bytes} bytes overflowed into one of {params.burst_bytes}, {effect}"
        return "burst-overflow", detail
    if blocks_everything:
        return "burst-too-small", f"a burst of {params.burst_bytes} bytes lets no packet through"
    if tbf.has_excessive_burst_or_queue(params, mtu):
        return "burst-too-large", (
            f"a burst of {params.burst_bytes} bytes passes unlimited for {params.burst_s:.1f} s at the limit's rate, "
            f"and the queue may take {params.queue_s:.1f} s"
        )
    return "enforced", ""


def _make_status(
    pod: PodBandwidthSpec, direction: Direction, assessment: LimitAssessment, sandbox: PodSandbox | None, tc: TcIndex
) -> LimitStatus:
    """Make the status of a direction: the assessment, the effective limit, and the location of its counters."""
    device = assessment.device
    params = assessment.params if assessment.verdict != "filter-missing" else None
    is_blocked = params is not None and device is not None and tbf.blocks_everything(params, device.mtu)
    rate_bytes_per_s = params.rate_bytes_per_s if params is not None else None
    status = LimitStatus(
        pod=pod,
        direction=direction,
        verdict=assessment.verdict,
        device_name=device.name if device is not None else "",
        wanted_bps=pod.limits[direction].rate_bps,
        rate_bytes_per_s=0 if is_blocked else rate_bytes_per_s,
        queue_s=params.queue_s if params is not None else None,
        detail=assessment.detail,
    )
    if sandbox is None or status.wanted_bps is None or sandbox.is_in_host_network:
        return status  # In the node's network, eth0 counts the node's own traffic.
    host_device = tc.pod_device(sandbox)
    host_device_index = host_device.index if host_device is not None else 0
    bucket_index = device.index if device is not None and device.index in tc.root_by_device else None
    # The packets of a pod pass the bucket of another device only if a filter redirects them.
    if direction == "egress" and (bucket_index == host_device_index or tc.redirect_filter(host_device_index) is None):
        bucket_index = None
    others_may_drop = assessment.loses_packets or assessment.verdict == "other-enforcer"
    return msgspec.structs.replace(
        status,
        host_device_name=host_device.name if host_device is not None else "",
        counter_source=CounterSource(
            pid=sandbox.pid, host_device_index=host_device_index, bucket_device_index=bucket_index
        ),
        # Without a bucket, egress is counted before other programs may drop packets.
        is_measurable=direction == "ingress" or bucket_index is not None or not others_may_drop,
    )


def _plan_removals(device: Device, directions: Collection[Direction], tc: TcIndex) -> list[Action]:
    """Plan the removal of our limits from a pod's host-side device; the CNI plugin's limits stay."""
    removals: list[Action] = []
    if "ingress" in directions and tc.is_our_root(device.index):
        removals.append(RemoveLimit(device.index, device.name, "ingress"))
    ifb = tc.redirect_device(device.index)
    if "egress" in directions and ifb is not None and is_limit_ifb(ifb) and tc.is_our_root(ifb.index):
        filters = tc.filters_at(device.index)
        our_priorities = tuple(f.priority for f in filters if f.target_index == ifb.index)
        has_other_filters = len(filters) > len(our_priorities) or bool(tc.filters_at(device.index, "egress"))
        remove_qdisc = is_our_ifb(ifb) and ifb.alias.endswith(INGRESS_QDISC_SUFFIX) and not has_other_filters
        removals.append(RemoveLimit(device.index, device.name, "egress", ifb.name, our_priorities, remove_qdisc))
    return removals


def _plan_ifb_deletions(tc: TcIndex, snapshot: BandwidthSnapshot) -> list[Action]:
    """Plan the deletion of our ifbs that no filter redirects to and no repair will use."""
    target_indexes = {filter_.target_index for filter_ in snapshot.tc_state.filters}
    pod_by_uid = {pod.uid: pod for pod in snapshot.pods}
    deletions: list[Action] = []
    for device in tc.device_by_index.values():
        if not is_our_ifb(device) or device.index in target_indexes:
            continue
        uid = device.alias.removeprefix(ALIAS_PREFIX).removesuffix(INGRESS_QDISC_SUFFIX)
        pod, sandbox = pod_by_uid.get(uid), snapshot.sandbox_by_uid.get(uid)
        # Until the sandbox is known, the name of the ifb that the pod needs is unknown, so all its ifbs stay.
        may_need_ifb = pod is not None and (
            sandbox is None or ("egress" in pod.limits and ifb_name_of(pod, sandbox, tc) == device.name)
        )
        if not may_need_ifb:
            deletions.append(DeleteIfb(device.name))
    return deletions
