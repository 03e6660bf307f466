"""What a view is made from: the objects as they were at one moment, read by a command or taken from a program's caches."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.resources import AppGroup, NetworkTopology
from controller.scheduler.config import NetworkOverheadArgs
from controller.scheduler.fleet import BoundPodSpec
from kubekit.wire import Node, Object, ObjectMeta, OwnerReference, Pod, Wire
from netperf.plans import ZonePlan
from netperf.policy import CostPolicy


class _SlimMeta(ObjectMeta, frozen=True):
    """Metadata without what nobody reads here; of 100,000 pods it would be most of the memory.

    A field is left out of decoding by a name that no object has.
    """

    labels: dict[str, str] | None = msgspec.field(name="netaware.io/unread-labels", default=None)
    owner_references: list[OwnerReference] | None = msgspec.field(name="netaware.io/unread-owners", default=None)


class BandwidthPodSpec(BoundPodSpec, frozen=True):
    """What a pod holds and where, and whether it has a network of its own."""

    host_network: bool = False


class BandwidthPodStatus(Wire, frozen=True):
    """The phase."""

    phase: str = ""


class BandwidthPod(Object, frozen=True):
    """A pod as far as bandwidth is concerned."""

    metadata: _SlimMeta = _SlimMeta()
    spec: BandwidthPodSpec = BandwidthPodSpec()
    status: BandwidthPodStatus = BandwidthPodStatus()

    @property
    def over(self) -> bool:
        """Finished: it holds nothing any more."""
        return self.status.phase in {"Succeeded", "Failed"}


class PodReading(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent reports of one pod, by way of Prometheus; None where it reports nothing.

    Attributes:
        ingress_verdict, egress_verdict: as the agent names them, for example ``enforced`` or ``wrong-rate``.
        ingress_used_bps, egress_used_bps: mean rates of the last minutes, bits per second.
    """

    ingress_verdict: str | None = None
    egress_verdict: str | None = None
    ingress_used_bps: float | None = None
    egress_used_bps: float | None = None


class NodeReading(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rates of a node's uplinks over the last minutes, bits per second; None where nothing is known."""

    transmit_bps: float | None = None
    receive_bps: float | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that Prometheus says is firing."""

    name: str
    severity: str = ""
    labels: dict[str, str] = {}


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What Prometheus adds. ``source`` is its address, empty when none was asked; ``error`` says why nothing came."""

    source: str = ""
    error: str = ""
    nodes: dict[str, NodeReading] = {}
    pods: dict[str, PodReading] = {}
    alerts: tuple[Alert, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a view may ask for.

    Attributes:
        now_s: wall clock, unix seconds.
        home: the namespace that netaware lives in.
        pods: at least those of AppGroups; others are ignored.
        bandwidth_pods: those that may ask for bandwidth; others are ignored.
        agent_pods: pods of the agent's DaemonSet; empty where agents run outside pods.
        results: ``data`` of the results ConfigMaps by ``namespace/name``, shards included.
        plans: the probe plan, one per origin zone.
        policy: the controller's default cost policy.
        rules: the scheduler's: which NetworkTopology and which of its weights count.
    """

    now_s: float
    home: str = "netaware-system"
    nodes: tuple[Node, ...] = ()
    topologies: tuple[NetworkTopology, ...] = ()
    groups: tuple[AppGroup, ...] = ()
    pods: tuple[Pod, ...] = ()
    bandwidth_pods: tuple[BandwidthPod, ...] = ()
    agent_pods: tuple[Pod, ...] = ()
    results: Mapping[str, Mapping[str, str]] = {}
    plans: tuple[ZonePlan, ...] = ()
    policy: CostPolicy = CostPolicy()
    rules: NetworkOverheadArgs = NetworkOverheadArgs()
    readings: Readings = Readings()
