"""Objects as a diagnosis reads them: what of our programs' pods, the Lease and a group's pods says how they fare. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from controller.cluster.membership import Membership
from controller.cluster.pods import GroupPod, Placement, placement_of, target_of
from controller.diagnosis.facts import LeaseFact, PodFact, Program, ProgramPod
from kubekit.conditions import find
from kubekit.lease import Lease
from kubekit.owners import HASH_LABEL, owner_of
from kubekit.wire import Condition, Object, Wire, parse_time
from netperf.contract import CONTROLLER, NAME_LABEL, SCHEDULER

PROGRAMS: dict[str, Sequence[Program]] = {
    CONTROLLER: ("controller",),
    # The extender is a container beside the scheduler.
    SCHEDULER: ("scheduler", "extender"),
}
PROGRAM_SELECTOR = f"{NAME_LABEL} in ({', '.join(PROGRAMS)})"


class _Reason(Wire, frozen=True):
    reason: str = ""


class _State(Wire, frozen=True):
    waiting: _Reason | None = None
    terminated: _Reason | None = None


class _Container(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    state: _State = _State()


class _Status(Wire, frozen=True):
    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_Container] | None = None


class _Spec(Wire, frozen=True):
    node_name: str = ""


class ProgramPodObject(Object, frozen=True):
    """A pod of ours with what its containers say."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


def read_lease(lease: Lease | None) -> LeaseFact | None:
    """The leader's Lease."""
    if lease is None:
        return None
    spec = lease.spec
    return LeaseFact(spec.holder_identity or "", seconds(spec.renew_time), float(spec.lease_duration_seconds or 10))


def read_programs(pods: Iterable[ProgramPodObject]) -> tuple[ProgramPod, ...] | None:
    """Pods of controller and scheduler; None where there are none at all, since our programs need not run as pods."""
    found = []
    for pod in pods:
        for program in PROGRAMS.get(pod.metadata.label(NAME_LABEL), ()):
            mine = [c for c in pod.status.container_statuses or () if program in c.name]
            containers = mine or pod.status.container_statuses or []
            ready = bool(containers) and all(c.ready for c in containers) and pod.metadata.deletion_timestamp is None
            states = [state for c in containers for state in (c.state.waiting, c.state.terminated) if state is not None]
            why = next((state.reason for state in states), "")
            scheduled, turned = (find(pod.status.conditions, type_) for type_ in ("PodScheduled", "Ready"))
            if not why and not pod.spec.node_name and scheduled is not None:
                why = scheduled.message
            since = seconds(turned.last_transition_time) if turned is not None else None
            made_from = pod.metadata.label(HASH_LABEL)
            name, node = pod.metadata.name, pod.spec.node_name
            found.append(ProgramPod(program, name, node, pod.status.phase, ready, why, since, made_from))
    return tuple(found) or None


def read_pod(pod: GroupPod, membership: Membership, placement: Placement = "extender") -> PodFact:
    """A pod of an AppGroup, or one that somebody asked about; ``placement`` counts where its own label says nothing."""
    meta, spec, target = pod.metadata, pod.spec, target_of(pod)
    return PodFact(
        namespace=meta.namespace,
        name=meta.name,
        group=pod.group,
        group_key=membership.group_of(meta.namespace, pod.group),
        workload=pod.workload,
        node=spec.node_name,
        phase=pod.status.phase,
        # The API server takes any text, and it comes into lines that people paste into a shell.
        scheduler=re.sub(r"[^A-Za-z0-9._/-]", "?", spec.scheduler_name),
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
        scheduled=pod.condition("PodScheduled"),
        target=target.node if target is not None else "",
        spec=spec,
        leaving=meta.deletion_timestamp is not None,
        created=seconds(meta.creation_timestamp),
        owner=owner_of(meta),
        told=target is not None or placement_of(meta.labels, placement) != "extender",
    )


def seconds(text: str | None) -> float | None:
    """A time of the API as unix seconds; None for none, or one that is no time."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
