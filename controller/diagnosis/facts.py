"""What a diagnosis looks at: one moment of the cluster, as plain data that a command or a program can gather."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller.cluster.pods import DEFAULT_SCHEDULER, OUR_SCHEDULER, GroupPodSpec, found_no_node
from controller.cluster.resources import AppGroup
from kubekit.wire import FINISHED, Condition, Taint
from netperf.contract import HOME_NAMESPACE

Program = Literal["controller", "extender", "scheduler", "agent"]


class ProgramPod(msgspec.Struct, frozen=True):
    """A pod of one of our programs.

    Attributes:
        why: what its containers say while they do not run: ``ImagePullBackOff``, ``CrashLoopBackOff``, ``Error``; the scheduler's words while it
            has no node; empty otherwise.
        template: the hash of the template that its Deployment made it from; empty where nobody says.
    """

    program: Program
    name: str
    node: str = ""
    phase: str = ""
    ready: bool = False
    why: str = ""
    since: float | None = None
    template: str = ""


class LeaseFact(msgspec.Struct, frozen=True):
    """The leader's Lease. ``renewed`` is unix seconds; None when it was never renewed."""

    holder: str = ""
    renewed: float | None = None
    duration_s: float = 10.0


class Surroundings(msgspec.Struct, frozen=True):
    """How our own programs fare, as far as the one who looks may read it.

    Attributes:
        installed: whether the cluster knows our definitions.
        topologies_known: whether NetworkTopologies could be listed.
        programs: pods of our programs; None when they may not be listed, so that nothing is concluded from their absence.
        lease: None when there is none; ``lease_known`` tells whether it could be read.
        complaints: what the controller's replicas say is wrong with themselves, a line each.
    """

    installed: bool = True
    topologies_known: bool = True
    programs: tuple[ProgramPod, ...] | None = None
    lease: LeaseFact | None = None
    lease_known: bool = True
    complaints: tuple[str, ...] = ()


class PodFact(msgspec.Struct, frozen=True, gc=False):
    """A pod that waits, or that belongs to an AppGroup.

    Attributes:
        group: the AppGroup that its label names.
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty for none.
        gates: names of its scheduling gates.
        scheduled: its condition PodScheduled, None before anybody looked at it.
        target: the node that the plan wants it on, empty without a plan.
        spec: what may hold it back.
        leaving: being deleted.
        created: unix seconds.
        told: its place is handed over on the pod itself (affinity), so that its scheduler need not ask us.
        owner: kind and name of what made it, a Deployment rather than its ReplicaSet; None for a bare pod.
    """

    namespace: str
    name: str
    group: str = ""
    group_key: str = ""
    workload: str = ""
    node: str = ""
    phase: str = ""
    scheduler: str = ""
    gates: tuple[str, ...] = ()
    scheduled: Condition | None = None
    target: str = ""
    spec: GroupPodSpec = GroupPodSpec()
    leaving: bool = False
    created: float | None = None
    owner: tuple[str, str] | None = None
    told: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def placed_by(self) -> str:
        """Name of the scheduler that is to place it."""
        return self.scheduler or DEFAULT_SCHEDULER

    @property
    def stays(self) -> bool:
        """Neither over nor being deleted."""
        return not self.leaving and self.phase not in FINISHED

    @property
    def waits(self) -> bool:
        """Not bound, and not over."""
        return not self.node and self.stays

    @property
    def found_no_node(self) -> bool:
        """The scheduler tried it in vain."""
        return self.waits and not self.gates and found_no_node(self.scheduled)


class NodeFact(msgspec.Struct, frozen=True, gc=False):
    """A node as far as pods may go there: its labels, and the taints that keep pods away (a cordon is one)."""

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zone: str = ""


class AgentFact(msgspec.Struct, frozen=True, gc=False):
    """A node as far as its agent is concerned. ``heard`` is when a sample last named it, unix seconds."""

    node: str
    zone: str
    state: Literal["up", "down", "away"]
    reason: str = ""
    heard: float | None = None
    version: str = ""

    @property
    def wanted(self) -> bool:
        """Whether the node is in use, so that its agent is to work."""
        return self.state != "away"


class Facts(msgspec.Struct, frozen=True):
    """One moment.

    Attributes:
        now: unix seconds.
        around: our own programs.
        topologies: the conditions of each NetworkTopology, by ``namespace/name``.
        has_topology: whether there is a NetworkTopology, or nobody may know.
        unreachable: (origin, destination) zones whose path is known to be dead.
        inferred, absent: zone pairs whose cost is inferred, or not known.
        interval_s: length of a round of probes; None without a plan.
        max_wait_s: a gate is opened after this time whatever is missing.
        our_schedulers: names of schedulers that ask us; empty for all.
    """

    now: float
    around: Surroundings = Surroundings()
    groups: tuple[AppGroup, ...] = ()
    pods: tuple[PodFact, ...] = ()
    agents: tuple[AgentFact, ...] = ()
    nodes: Mapping[str, NodeFact] = {}
    topologies: Mapping[str, tuple[Condition, ...]] = {}
    has_topology: bool = True
    unreachable: tuple[tuple[str, str], ...] = ()
    inferred: tuple[tuple[str, str], ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    interval_s: float | None = None
    max_wait_s: float = 120.0
    our_schedulers: tuple[str, ...] = (OUR_SCHEDULER,)
    home: str = HOME_NAMESPACE
