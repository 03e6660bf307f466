"""Is each pod kept to its limit, and what would have to be done: pure, a snapshot in, verdicts and actions out.

The structure that counts is the CNI bandwidth plugin's (docs/contracts): a token bucket at the root of the host-side veth
limits what goes into the pod; what comes out is redirected to an intermediate device with a token bucket of its own.
"""

from __future__ import annotations

import hashlib

import msgspec

from agent.bandwidth import tbf
from agent.bandwidth.state import (
    ALIAS_PREFIX,
    ROOT,
    Action,
    BandwidthPlan,
    BandwidthSnapshot,
    Device,
    Filter,
    Judgement,
    LimitEgress,
    LimitIngress,
    Location,
    RemoveDevice,
    Unlimit,
    Verdict,
)
from agent.bandwidth.tbf import Shape
from agent.bandwidth.wanted import DIRECTIONS, Direction, PodWish

_PASSIVE = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq", "prio"})
"""Queueing disciplines that devices have by default and that limit nothing; any other is somebody's work."""
_REPAIRED: frozenset[Verdict] = frozenset({"missing", "wrong-rate", "filter-missing"})
_REPAIRED_ON_REQUEST: frozenset[Verdict] = frozenset({"burst-too-large", "wrapped"})


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about what is found: nothing unless ``enforce``; bursts that others chose only with ``repair_burst``."""

    enforce: bool = False
    repair_burst: bool = False


class _View:
    """The snapshot, indexed."""

    def __init__(self, snapshot: BandwidthSnapshot) -> None:
        kernel = snapshot.kernel
        self.network = snapshot.network
        self.devices = {device.index: device for device in kernel.devices}
        self.by_name = {device.name: device for device in kernel.devices}
        self.roots = {qdisc.device: qdisc for qdisc in kernel.qdiscs if qdisc.parent == ROOT}
        self.ingress = {qdisc.device: qdisc for qdisc in kernel.qdiscs if qdisc.kind in {"ingress", "clsact"}}
        self.filters: dict[int, list[Filter]] = {}
        for one in sorted(kernel.filters, key=lambda f: f.priority):
            self.filters.setdefault(one.device, []).append(one)
        self.cilium = "cilium_host" in self.by_name
        self.paced_uplinks = any(
            qdisc.kind == "fq" and self.devices[qdisc.device].physical
            for qdisc in kernel.qdiscs
            if qdisc.device in self.devices
        )

    def shape_at(self, device: int) -> Shape | None:
        root = self.roots.get(device)
        return root.shape if root is not None and root.kind == "tbf" else None

    def redirect_of(self, device: int) -> Filter | None:
        """The filter by which everything from a pod goes elsewhere."""
        return next((f for f in self.filters.get(device, ()) if f.matches_all and f.redirects_to is not None), None)


def plan_limits(snapshot: BandwidthSnapshot, policy: Policy) -> BandwidthPlan:
    """Judge every annotated pod and say what to do."""
    view = _View(snapshot)
    judgements: list[Judgement] = []
    unlocated: dict[str, str] = {}
    actions: list[Action] = []
    for pod in snapshot.pods:
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
        actions += _orphans(view, snapshot.pods)
    return BandwidthPlan(judgements=tuple(judgements), unlocated=unlocated, actions=tuple(actions))


def intermediate_name(network: str, sandbox: str) -> str:
    """The CNI plugin's name for a pod's intermediate device, so that its DEL finds it: ``bwp`` and a hash, 15 characters."""
    return ("bwp" + hashlib.sha512((network + sandbox).encode()).hexdigest())[:15]


def find_device(pod_location: Location, devices: dict[int, Device]) -> Device | None:
    """The host's end of the pod's veth pair.

    A pod with several networks has several; the one whose other end is eth0 counts, else the one that was made first,
    because a meta plugin sets up the cluster's network before any other.
    """
    if pod_location.namespace_id is None:
        return None
    ends = [d for d in devices.values() if d.kind == "veth" and d.namespace_id == pod_location.namespace_id]
    exact = next((d for d in ends if d.peer is not None and d.peer == pod_location.own_index), None)
    return exact or min(ends, key=lambda d: (d.peer or 0, d.index), default=None)


class _Ruling(msgspec.Struct, frozen=True):
    """A verdict, what it is about, and what would mend it."""

    verdict: Verdict
    detail: str = ""
    device: Device | None = None
    shape: Shape | None = None
    action: Action | None = None


def _judge(
    pod: PodWish, direction: Direction, location: Location | None, view: _View
) -> tuple[Judgement, Action | None] | str:
    """A judgement and what would mend it; or a text, when it is too early to judge."""
    wish = pod.wishes[direction]
    ruling: _Ruling | str
    if wish.rate_bps is None:
        ruling = _Ruling("invalid", wish.problem)
    elif pod.host_network:
        ruling = _Ruling("not-applicable", "the pod uses the node's network")
    elif not pod.has_address:
        ruling = "the pod has no address yet"
    elif location is None:
        ruling = "none of its processes was found"
    else:
        ruling = _rule(pod, direction, wish.rate_bps, location, view)
    if isinstance(ruling, str):
        return ruling
    return _judgement(pod, direction, ruling), ruling.action


def _rule(pod: PodWish, direction: Direction, rate_bps: int, location: Location, view: _View) -> _Ruling:
    device = find_device(location, view.devices)
    if device is None:
        detail = "the pod has no veth pair on this node (macvlan, ipvlan, SR-IOV or alike)"
        return _Ruling("not-applicable", detail)
    other = _other_enforcer(pod, device, view)
    if other:
        return _Ruling("other-enforcer", other, device)
    if _is_bypassed(device, view):
        detail = "Cilium carries packets past this device, and its bandwidth manager is off"
        return _Ruling("missing", detail, device)
    if direction == "ingress":
        return _rule_ingress(rate_bps, device, view)
    return _rule_egress(pod, rate_bps, device, location, view)


def _other_enforcer(pod: PodWish, device: Device, view: _View) -> str:
    if pod.calico:
        return "Calico limits pods with annotations of its own (qos.projectcalico.org)"
    if _is_cilium(device, view) and view.paced_uplinks:
        return "Cilium's bandwidth manager paces packets by their departure time"
    root = view.roots.get(device.index)
    if root is not None and root.kind != "tbf" and root.kind not in _PASSIVE:
        return f"somebody set up {root.kind} on {device.name}"
    return ""


def _is_cilium(device: Device, view: _View) -> bool:
    return view.cilium and device.name.startswith("lxc")


def _is_bypassed(device: Device, view: _View) -> bool:
    """Cilium redirects from the uplink straight into the pod (bpf_redirect_peer), so a bucket on the veth limits nothing."""
    return _is_cilium(device, view) and not view.paced_uplinks


def _rule_ingress(rate_bps: int, device: Device, view: _View) -> _Ruling:
    action = LimitIngress(device.index, device.name, tbf.bounded_shape(rate_bps, device.mtu))
    shape = view.shape_at(device.index)
    if shape is None:
        root = view.roots.get(device.index)
        detail = f"no limit on {device.name}" + (f", its root is {root.kind}" if root is not None else "")
        return _Ruling("missing", detail, device, None, action)
    verdict, detail = _judge_shape(shape, rate_bps, device.mtu)
    return _Ruling(verdict, detail, device, shape, action)


def _rule_egress(pod: PodWish, rate_bps: int, device: Device, location: Location, view: _View) -> _Ruling:
    redirect = view.redirect_of(device.index)
    shape = tbf.bounded_shape(rate_bps, device.mtu)
    name = intermediate_name(view.network, location.sandbox or pod.uid)
    action = LimitEgress(device.index, device.name, name, device.mtu, shape, ALIAS_PREFIX + pod.uid)
    if redirect is None:
        return _rule_without_redirect(device, action, view)
    through = view.devices.get(redirect.redirects_to or 0)
    if through is None:
        detail = f"{device.name} redirects to device {redirect.redirects_to}, which is not there"
        return _Ruling("filter-missing", detail, device, None, action)
    if through.kind != "ifb":
        return _Ruling("other-enforcer", f"the traffic is redirected to {through.name}", through)
    action = msgspec.structs.replace(action, through=through.name, redirect=False)
    limit = view.shape_at(through.index)
    if limit is None:
        return _Ruling("missing", f"{through.name} has no limit", through, None, action)
    verdict, detail = _judge_shape(limit, rate_bps, device.mtu)
    return _Ruling(verdict, detail, through, limit, action)


def _rule_without_redirect(device: Device, action: LimitEgress, view: _View) -> _Ruling:
    if any(f.polices for f in view.filters.get(device.index, ())):
        return _Ruling("other-enforcer", "a filter polices the traffic", device)
    made = view.by_name.get(action.through)
    limit = view.shape_at(made.index) if made is not None else None
    if made is None or limit is None:
        return _Ruling("missing", f"nothing limits what {device.name} receives", device, None, action)
    detail = f"{made.name} has a limit, but no filter sends it what {device.name} receives"
    return _Ruling("filter-missing", detail, made, limit, action)


def _judge_shape(shape: Shape, rate_bps: int, mtu: int) -> tuple[Verdict, str]:
    wanted = rate_bps // 8
    if abs(shape.rate_bytes_per_s - wanted) > 1:
        return "wrong-rate", f"limited to {shape.rate_bytes_per_s * 8} bit/s instead of {rate_bps}"
    if tbf.is_bounded(shape, mtu):
        return "enforced", ""
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


def _judgement(pod: PodWish, direction: Direction, ruling: _Ruling) -> Judgement:
    device, shape = ruling.device, ruling.shape
    found = Judgement(
        pod=pod,
        direction=direction,
        verdict=ruling.verdict,
        device=device.name if device is not None else "",
        received=direction == "egress" and device is not None and device.kind != "ifb",
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


def _leftovers_of(pod: PodWish, location: Location | None, view: _View) -> list[Action]:
    """Limits of ours on a pod that does not ask for them any more. Those that a plugin made are not ours to remove."""
    if location is None or pod.host_network or not pod.has_address:
        return []
    device = find_device(location, view.devices)
    if device is None:
        return []
    found: list[Action] = []
    root = view.shape_at(device.index)
    if "ingress" not in pod.wishes and root is not None and tbf.is_bounded(root, device.mtu):
        found.append(Unlimit(device.index, device.name, "ingress"))
    redirect = view.redirect_of(device.index)
    through = view.devices.get(redirect.redirects_to or 0) if redirect is not None else None
    if "egress" not in pod.wishes and through is not None and through.kind == "ifb":
        limit = view.shape_at(through.index)
        if limit is not None and tbf.is_bounded(limit, device.mtu):
            found.append(Unlimit(device.index, device.name, "egress", through.name))
    return found


def _orphans(view: _View, pods: tuple[PodWish, ...]) -> list[Action]:
    """Intermediate devices of ours whose pod is gone, and to which nothing is redirected."""
    used = {f.redirects_to for filters in view.filters.values() for f in filters}
    living = {ALIAS_PREFIX + pod.uid for pod in pods}
    return [
        RemoveDevice(device.index, device.name)
        for device in view.devices.values()
        if device.kind == "ifb"
        and device.alias.startswith(ALIAS_PREFIX)
        and device.alias not in living
        and device.index not in used
    ]
