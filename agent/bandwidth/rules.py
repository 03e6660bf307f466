"""Is each pod kept to its limit, and what would have to be done: pure, a snapshot in, verdicts and actions out.

The structure that counts is the CNI bandwidth plugin's (docs/contracts): a token bucket at the root of the host-side veth
limits what goes into the pod; what comes out is redirected to an intermediate device with a token bucket of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from agent.bandwidth import tbf
from agent.bandwidth.annotations import DIRECTIONS, Direction, PodBandwidthSpec, contested
from agent.bandwidth.foreign import find_foreign, unseen_programs
from agent.bandwidth.state import (
    ALIAS_PREFIX,
    HOOK_MARK,
    Action,
    BandwidthPlan,
    BandwidthSnapshot,
    CounterSource,
    Device,
    Filter,
    Hook,
    LimitEgress,
    LimitIngress,
    LimitStatus,
    Location,
    RemoveDevice,
    RemoveLimit,
    Verdict,
)
from agent.bandwidth.tbf import TbfParams
from agent.bandwidth.view import View, describe, is_a_limits, is_ours, owner_of

_REPAIRED: frozenset[Verdict] = frozenset({"missing", "wrong-rate", "filter-missing"})
_REPAIRED_ON_REQUEST: frozenset[Verdict] = frozenset({"burst-too-large", "wrapped"})


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about what is found: nothing unless ``enforce``; bursts that others chose only with ``repair_burst``."""

    enforce: bool = False
    repair_burst: bool = False


def plan_limits(snapshot: BandwidthSnapshot, policy: Policy) -> BandwidthPlan:
    """Judge every annotated pod and say what to do."""
    view = View(snapshot)
    doubtful = contested(snapshot.pods)
    judgements: list[LimitStatus] = []
    unlocated: dict[str, str] = {}
    actions: list[Action] = []
    for pod in snapshot.pods:
        if pod.uid in doubtful:
            refusal = LimitAssessment("invalid", f"{doubtful[pod.uid]}, so its claim is not followed")
            judgements += [_judgement(pod, direction, refusal) for direction in pod.wishes]
            continue
        for direction in DIRECTIONS:
            if direction not in pod.wishes:
                continue
            judged = _judge(pod, direction, snapshot.locations.get(pod.uid), view)
            if isinstance(judged, str):
                unlocated[pod.key] = judged
                continue
            judgement, action = judged
            judgements.append(judgement)
            repaired = _REPAIRED | _REPAIRED_ON_REQUEST if policy.repair_burst else _REPAIRED
            if policy.enforce and action is not None and judgement.verdict in repaired:
                actions.append(action)
        if policy.enforce:
            actions += _leftovers_of(pod, snapshot.locations.get(pod.uid), view)
    if policy.enforce:
        actions += _orphans(view, snapshot)
    return BandwidthPlan(
        judgements=tuple(judgements),
        unlocated=unlocated,
        actions=tuple(actions),
        programs_unknown=snapshot.kernel.programs_unknown,
    )


def with_effect(judgement: LimitStatus, exceeded: str, disputed: str) -> LimitStatus:
    """A verdict on what is set up, overruled by what happens: an excess, or somebody who takes our limit away again."""
    if exceeded:
        verdict, found = "exceeded", exceeded
    elif disputed:
        verdict, found = "disputed", disputed
    else:
        return judgement
    set_up = judgement.verdict + (f", {judgement.detail}" if judgement.detail else "")
    return msgspec.structs.replace(
        judgement, verdict=verdict, set_up=judgement.verdict, detail=f"{found}; as set up: {set_up}"
    )


def intermediate_name(network: str, sandbox: str) -> str:
    """The CNI plugin's name for a pod's intermediate device, so that its DEL finds it: ``bwp`` and a hash, 15 characters."""
    return ("bwp" + hashlib.sha512((network + sandbox).encode()).hexdigest())[:15]


def intermediate_of(pod: PodBandwidthSpec, location: Location, view: View) -> str:
    """Name of the device that the plugin made for a pod, or would have made."""
    network = location.attachment.network if location.attachment is not None else view.network.name
    return intermediate_name(network, location.sandbox or pod.uid)


def find_device(pod_location: Location, ends: Mapping[int, Sequence[Device]]) -> Device | None:
    """The host's end of the pod's eth0, among `pod_ends`; None where eth0 is known to be none of them.

    A pod with several networks has several. Where the index of its eth0 is not known, the one that was made first counts,
    because a meta plugin sets up the cluster's network before any other.
    """
    if pod_location.namespace_id is None:
        return None
    found = ends.get(pod_location.namespace_id, ())
    if pod_location.own_index is not None and all(device.peer is not None for device in found):
        return next((device for device in found if device.peer == pod_location.own_index), None)
    return min(found, key=lambda d: (d.peer or 0, d.index), default=None)


class LimitAssessment(msgspec.Struct, frozen=True):
    """A verdict, what it is about, and what would mend it; ``lossy`` where others may drop what a pod sends."""

    verdict: Verdict
    detail: str = ""
    device: Device | None = None
    shape: TbfParams | None = None
    action: Action | None = None
    lossy: bool = False


def _judge(
    pod: PodBandwidthSpec, direction: Direction, location: Location | None, view: View
) -> tuple[LimitStatus, Action | None] | str:
    """A judgement and what would mend it; or a text, when it is too early to judge."""
    wish = pod.wishes[direction]
    ruling: LimitAssessment | str
    if wish.rate_bps is None:
        ruling = LimitAssessment("invalid", wish.problem)
    elif pod.host_network:
        ruling = LimitAssessment("not-applicable", "the pod uses the node's network")
    elif not pod.has_address:
        ruling = "the pod has no address yet"
    elif location is None:
        ruling = "none of its processes was found"
    else:
        ruling = _rule(pod, direction, wish.rate_bps, location, view)
    if isinstance(ruling, str):
        return ruling
    judgement = _judgement(pod, direction, ruling)
    if location is None or wish.rate_bps is None:
        return judgement, ruling.action
    return msgspec.structs.replace(judgement, **_site(direction, ruling, location, view)), ruling.action


def _site(direction: Direction, ruling: LimitAssessment, location: Location, view: View) -> dict[str, object]:
    """Where the effect can be counted, and whether it tells that the limit is exceeded."""
    end = find_device(location, view.ends)
    bucket = ruling.device.index if ruling.device is not None and ruling.device.index in view.roots else None
    if direction == "egress" and (end is None or bucket == end.index or view.redirect_of(end.index) is None):
        bucket = None
    counts = direction == "ingress" or bucket is not None or not (ruling.lossy or ruling.verdict == "other-enforcer")
    if location.host_network:  # what its eth0 counts is the node's own traffic
        return {}
    return {
        "host_device": end.name if end is not None else "",
        "site": CounterSource(pid=location.pid, device=end.index if end is not None else 0, bucket=bucket),
        "effect_counts": counts,
    }


def _rule(
    pod: PodBandwidthSpec, direction: Direction, rate_bps: int, location: Location, view: View
) -> LimitAssessment:
    if location.host_network:
        detail = "its oldest process is in the node's network (a virtual machine's monitor or alike)"
        return LimitAssessment("not-applicable", detail)
    device = find_device(location, view.ends)
    if device is None:
        detail = "the pod's eth0 is no end of a veth pair on this node (macvlan, ipvlan, SR-IOV or alike)"
        return LimitAssessment("not-applicable", detail)
    foreign = find_foreign(direction, device, location.attachment, view)
    if foreign is not None:
        verdict: Verdict = "missing" if foreign.absent else "other-enforcer"
        shape = None if foreign.absent else view.shape_at(foreign.device.index)
        return LimitAssessment(verdict, foreign.evidence, foreign.device, shape)
    if direction == "ingress":
        ruling = _rule_ingress(rate_bps, device, view)
    else:
        ruling = _rule_egress(pod, rate_bps, device, location, view)
    ruling = _keep_stricter(ruling, direction, rate_bps, location, view)
    return _beside_others(ruling, device, "egress" if direction == "ingress" else "ingress", view)


def _beside_others(ruling: LimitAssessment, device: Device, hook: Hook, view: View) -> LimitAssessment:
    """Where filters or programs of others are attached nothing is set: they may limit, and ours could take packets from them.

    Nor where they are to be expected and cannot be looked at: what a node's agent may ask makes no other verdict.
    """
    strangers = view.strangers(device, hook)
    found = describe(device, strangers) if strangers else unseen_programs(device, view)
    if not found or ruling.verdict == "other-enforcer":
        return ruling
    if ruling.verdict == "enforced":
        return msgspec.structs.replace(
            ruling, detail=f"as set up; whether {found} may carry packets past it is not known"
        )
    found = f"{found}: not ours" if strangers else f"unknown: {found} may limit"
    return LimitAssessment("other-enforcer", f"{found}, so nothing is set; {ruling.detail}", device)


def _keep_stricter(
    ruling: LimitAssessment, direction: Direction, rate_bps: int, location: Location, view: View
) -> LimitAssessment:
    """Never raise a limit that somebody else chose: a rate in the CNI configuration is the administrator's word.

    One that the runtime asked the plugin for came from the pod's annotation, as it was then.
    """
    device, shape = ruling.device, ruling.shape
    if ruling.verdict != "wrong-rate" or device is None or shape is None or shape.rate_bytes_per_s * 8 >= rate_bps - 8:
        return ruling
    asked = location.attachment.asked.get(f"{direction}Rate", 0) if location.attachment is not None else 0
    if view.is_our_root(device.index) or abs(shape.rate_bytes_per_s - asked // 8) <= 1:
        return ruling
    detail = f"{ruling.detail}; it is not ours and stricter than the annotation, so it stays"
    return msgspec.structs.replace(ruling, detail=detail, action=None)


def _rule_ingress(rate_bps: int, device: Device, view: View) -> LimitAssessment:
    shape = view.shape_at(device.index)
    action = LimitIngress(device.index, device.name, tbf.bounded_params(rate_bps, device.mtu))
    if shape is None:
        root = view.roots.get(device.index)
        detail = f"no limit on {device.name}" + (f", its root is {root.kind}" if root is not None else "")
        return LimitAssessment("missing", detail, device, None, action)
    verdict, detail = _judge_shape(shape, rate_bps, device.mtu, ours=view.is_our_root(device.index))
    return LimitAssessment(verdict, detail, device, shape, action)


def _rule_egress(
    pod: PodBandwidthSpec, rate_bps: int, device: Device, location: Location, view: View
) -> LimitAssessment:
    redirect, through = view.redirect_of(device.index), view.behind(device.index)
    action = LimitEgress(
        device.index,
        device.name,
        intermediate_of(pod, location, view),
        device.mtu,
        tbf.bounded_params(rate_bps, device.mtu),
        ALIAS_PREFIX + pod.uid,
        add_hook=device.index not in view.hooked,
        stale_filters=tuple(f.priority for f in view.filters(device.index) if _is_stale(f, view)),
    )
    if redirect is None:
        return _rule_without_redirect(device, action, view)
    if through is None:
        lost = "and is lost" if redirect.swallows else "and goes on unlimited"
        detail = f"what {device.name} receives is redirected to a device that is gone, {lost}"
        return LimitAssessment("filter-missing", detail, device, None, action, lossy=redirect.swallows)
    limit = view.shape_at(through.index)
    action = msgspec.structs.replace(action, through=through.name, add_filter=False, stale_filters=())
    if not through.up:
        lost = f"{through.name} is down, and what {device.name} receives is lost there"
        return LimitAssessment("filter-missing", lost, through, limit, action, lossy=True)
    if limit is None:
        return LimitAssessment("missing", f"{through.name} has no limit", through, None, action)
    verdict, detail = _judge_shape(limit, rate_bps, device.mtu, ours=view.is_our_root(through.index))
    return LimitAssessment(verdict, detail, through, limit, action)


def _is_stale(one: Filter, view: View) -> bool:
    """Whether a filter redirects everything to a device that is gone."""
    return one.matches_all and one.redirects_to is not None and one.redirects_to not in view.devices


def _rule_without_redirect(device: Device, action: LimitEgress, view: View) -> LimitAssessment:
    if any(f.polices for f in view.filters(device.index)):
        return LimitAssessment("other-enforcer", "a filter polices the traffic", device)
    made = view.by_name.get(action.through)
    limit = view.shape_at(made.index) if made is not None else None
    if made is None or limit is None:
        return LimitAssessment("missing", f"nothing limits what {device.name} receives", device, None, action)
    detail = f"{made.name} has a limit, but no filter sends it what {device.name} receives"
    return LimitAssessment("filter-missing", detail, made, limit, action)


def _judge_shape(shape: TbfParams, rate_bps: int, mtu: int, *, ours: bool) -> tuple[Verdict, str]:
    wanted = rate_bps // 8
    if abs(shape.rate_bytes_per_s - wanted) > 1:
        return "wrong-rate", f"limited to {shape.rate_bytes_per_s * 8} bit/s instead of {rate_bps}"
    if (ours and not tbf.blocks_everything(shape, mtu)) or shape.partial:
        partly = "only for the subnets that the plugin's configuration names (shapedSubnets)"
        return "enforced", partly if shape.partial else ""
    asked = tbf.wrapped_burst(shape)
    if asked is not None:
        effect = (
            "which is less than a packet: nothing gets through"
            if tbf.blocks_everything(shape, mtu)
            else (f"which lasts {shape.burst_s:.1f} s")
        )
        return "wrapped", f"a burst of {asked} bytes overflowed into one of {shape.burst_bytes}, {effect}"
    if tbf.blocks_everything(shape, mtu):
        return "wrong-rate", f"a burst of {shape.burst_bytes} bytes lets no packet through"
    if tbf.lets_too_much_through(shape, mtu):
        return "burst-too-large", (
            f"a burst of {shape.burst_bytes} bytes passes unlimited for {shape.burst_s:.1f} s at the limit's rate, "
            f"and the queue may take {shape.queue_s:.1f} s"
        )
    return "enforced", ""


def _judgement(pod: PodBandwidthSpec, direction: Direction, ruling: LimitAssessment) -> LimitStatus:
    device, shape = ruling.device, ruling.shape
    found = LimitStatus(
        pod=pod,
        direction=direction,
        verdict=ruling.verdict,
        device=device.name if device is not None else "",
        wanted_bps=pod.wishes[direction].rate_bps,
        detail=ruling.detail,
    )
    if shape is None or device is None or ruling.verdict == "filter-missing":
        return found
    return msgspec.structs.replace(
        found,
        rate_bytes_per_s=0 if tbf.blocks_everything(shape, device.mtu) else shape.rate_bytes_per_s,
        burst_bytes=shape.burst_bytes,
        queue_s=shape.queue_s,
    )


def _leftovers_of(pod: PodBandwidthSpec, location: Location | None, view: View) -> list[Action]:
    """Limits of ours on a pod that does not ask for them any more. Those that a plugin made are not ours to remove."""
    if location is None or pod.host_network or not pod.has_address:
        return []
    device = find_device(location, view.ends)
    if device is None:
        return []
    found: list[Action] = []
    if "ingress" not in pod.wishes and view.is_our_root(device.index):
        found.append(RemoveLimit(device.index, device.name, "ingress"))
    through = view.behind(device.index)
    if through is None or not is_a_limits(through):
        return found
    unwanted = "egress" not in pod.wishes and view.is_our_root(through.index)
    if unwanted or view.stolen_from(device):
        found.append(_removal_of_egress(device, through, view))
    return found


def _removal_of_egress(device: Device, through: Device, view: View) -> RemoveLimit:
    filters = view.filters(device.index)
    ours = tuple(one.priority for one in filters if one.redirects_to == through.index)
    others = len(filters) > len(ours) or bool(view.filters(device.index, "egress"))
    hook = is_ours(through) and through.alias.endswith(HOOK_MARK) and not others
    return RemoveLimit(device.index, device.name, "egress", through.name, ours, hook)


def _orphans(view: View, snapshot: BandwidthSnapshot) -> list[Action]:
    """Intermediate devices of ours to which nothing is redirected, and which no pod's repair would use again."""
    used = view.used()
    names = {
        pod.uid: intermediate_of(pod, location, view)
        if (location := snapshot.locations.get(pod.uid)) is not None
        else None
        for pod in snapshot.pods
        if "egress" in pod.wishes or pod.uid not in snapshot.locations
    }
    return [
        RemoveDevice(device.index, device.name)
        for device in view.devices.values()
        if is_ours(device) and device.index not in used and names.get(owner_of(device), "") not in {device.name, None}
    ]
