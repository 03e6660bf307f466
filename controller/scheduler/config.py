"""Settings of scheduling: the section ``scheduler`` of the controller's configuration file.

Arguments that upstream's plugins have keep their names and defaults; what is ours has a name of its own, and ``parity:
upstream`` turns all of ours off at once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from controller.resources import NETPERF_COSTS, USER_DEFINED
from kubekit.errors import ConfigError

Parity = Literal["none", "upstream"]
Placement = Literal["extender", "affinity"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of this file's sections."""


class NetworkOverheadArgs(_Section, frozen=True):
    """Arguments of NetworkOverhead (docs/contracts, section 4).

    Attributes:
        namespaces: where AppGroups and NetworkTopologies are looked for, in order; the first hit wins.
        weights_name: which costs of the NetworkTopology count.
        network_topology_name: its name.
        fallback_weights_name: taken when the NetworkTopology has no weight of `weights_name`; empty for none. Ours.
        search_everywhere: a pod's own namespace comes before `namespaces`, then groups that name the pod's namespace; for
            the NetworkTopology, the group's namespace comes first, then netaware's, then the only one there is. Ours.
        dependants_weigh: placed pods that depend on the pod add their cost to a node's score. Ours.
        finished_pods_count: finished and terminating pods count as placed, as upstream has it.
        deleted_nodes_block: a dependency's pod on a node that is gone fails the pod, as upstream has it.
        bandwidth_filter: refuse a node when the free bandwidth towards a dependency's pod is below minBandwidth. Ours.
        weight: factor of this score in the extender's answer.
    """

    namespaces: tuple[str, ...] = ("default",)
    weights_name: str = USER_DEFINED
    network_topology_name: str = "nt-default"
    fallback_weights_name: str = NETPERF_COSTS
    search_everywhere: bool = True
    dependants_weigh: bool = True
    finished_pods_count: bool = False
    deleted_nodes_block: bool = False
    bandwidth_filter: bool = False
    weight: int = 1

    def in_parity(self) -> NetworkOverheadArgs:
        """The same with everything of ours off."""
        return msgspec.structs.replace(
            self,
            fallback_weights_name="",
            search_everywhere=False,
            dependants_weigh=False,
            finished_pods_count=True,
            deleted_nodes_block=True,
            bandwidth_filter=False,
        )


class ResourceWeight(_Section, frozen=True):
    """A resource and its factor."""

    name: str
    weight: int


class AllocatableArgs(_Section, frozen=True):
    """Arguments of NodeResourcesAllocatable (docs/contracts, section 5).

    Attributes:
        mode: ``Least`` prefers nodes with little allocatable, ``Most`` those with much.
        resources: what counts, and how much.
        weight: factor of this score in the extender's answer; 0, the default, leaves it out.
    """

    mode: Literal["Least", "Most"] = "Least"
    resources: tuple[ResourceWeight, ...] = (
        ResourceWeight(name="cpu", weight=1 << 20),
        ResourceWeight(name="memory", weight=1),
    )
    weight: int = 0


class GatesConfig(_Section, frozen=True):
    """TopologicalSort by scheduling gates.

    Attributes:
        max_wait_s: no pod stays gated for longer than this after it was created, whatever is missing.
        absent_wait_s: how long a pod waits for earlier workloads that have no pods at all, or fewer than they declare.
        settle_s: a group whose pods were just created is planned after this pause, so that the plan knows all of them.
        replace_after_s: in affinity mode, how long a pod must have been unschedulable before it is replaced through its owner
            because costs have moved; doubles for each replacement of the same owner's pods.
    """

    max_wait_s: float = 120.0
    absent_wait_s: float = 15.0
    settle_s: float = 0.5
    replace_after_s: float = 10.0


class PlanningConfig(_Section, frozen=True):
    """Planning of whole groups.

    Attributes:
        enabled: off, every pod is judged by itself.
        most_sites: how many candidate hosts of each zone a plan considers.
    """

    enabled: bool = True
    most_sites: int = 20


class ExtenderConfig(_Section, frozen=True):
    """Limits of the HTTP service.

    Attributes:
        max_request_bytes: larger requests are refused; 15,000 nodes need about half a megabyte.
        request_timeout_s: for one request to arrive.
        reasons_limit: refused nodes that are named with a sentence each; further ones share a sentence per zone, because
            kube-scheduler writes every different sentence into the pod's status.
        tls_cert_file: PEM certificate chain; needed off localhost.
        tls_key_file: its key.
    """

    max_request_bytes: int = 16 << 20
    request_timeout_s: float = 5.0
    reasons_limit: int = 50
    tls_cert_file: str = ""
    tls_key_file: str = ""


class SchedulerConfig(_Section, frozen=True):
    """The whole section.

    Attributes:
        scheduler_names: whose pods the extender answers for; others get a neutral answer, since kube-scheduler sends the
            pods of all its profiles. Empty for all.
        placement: how decisions reach the scheduler; ``affinity`` needs no extender. Pods choose for themselves with the
            label ``netaware.io/placement``.
        parity: ``upstream`` for exactly what upstream's plugins do, without plans.
    """

    scheduler_names: tuple[str, ...] = ("network-aware-scheduler",)
    placement: Placement = "extender"
    parity: Parity = "none"
    network_overhead: NetworkOverheadArgs = NetworkOverheadArgs()
    allocatable: AllocatableArgs = AllocatableArgs()
    gates: GatesConfig = GatesConfig()
    planning: PlanningConfig = PlanningConfig()
    extender: ExtenderConfig = ExtenderConfig()

    @property
    def rules(self) -> NetworkOverheadArgs:
        """NetworkOverhead's arguments after parity."""
        return self.network_overhead.in_parity() if self.parity == "upstream" else self.network_overhead

    @property
    def plans(self) -> bool:
        """Whether groups are planned."""
        return self.planning.enabled and self.parity != "upstream"

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        overhead = self.network_overhead
        for field, text in (
            ("weightsName", overhead.weights_name),
            ("networkTopologyName", overhead.network_topology_name),
        ):
            if not text:
                raise ConfigError(f"scheduler.networkOverhead.{field}", "is empty", "name what to look for")
        if not overhead.namespaces or not all(overhead.namespaces):
            raise ConfigError("scheduler.networkOverhead.namespaces", "names no namespace", "default is upstream's")
        self._validate_ranges()
        if not self.allocatable.resources:
            raise ConfigError("scheduler.allocatable.resources", "is empty", "name at least one resource")
        for resource in self.allocatable.resources:
            if resource.weight <= 0 or not resource.name:
                raise ConfigError(
                    "scheduler.allocatable.resources", f"{resource.name!r} has weight {resource.weight}", "above 0"
                )
        if bool(self.extender.tls_cert_file) != bool(self.extender.tls_key_file):
            raise ConfigError("scheduler.extender.tlsCertFile", "and tlsKeyFile go together", "give both or neither")

    def _validate_ranges(self) -> None:
        gates, extender = self.gates, self.extender
        for field, value, low, high in (
            ("networkOverhead.weight", self.network_overhead.weight, 0, 100),
            ("allocatable.weight", self.allocatable.weight, 0, 100),
            ("gates.maxWaitS", gates.max_wait_s, 1, 3600),
            ("gates.absentWaitS", gates.absent_wait_s, 0, gates.max_wait_s),
            ("gates.settleS", gates.settle_s, 0, gates.max_wait_s),
            ("gates.replaceAfterS", gates.replace_after_s, 1, 3600),
            ("planning.mostSites", self.planning.most_sites, 1, 500),
            ("extender.maxRequestBytes", extender.max_request_bytes, 1 << 12, 1 << 30),
            ("extender.requestTimeoutS", extender.request_timeout_s, 0.1, 600),
            ("extender.reasonsLimit", extender.reasons_limit, 0, 10_000),
        ):
            if not low <= value <= high:
                raise ConfigError(f"scheduler.{field}", f"{value:g} is out of range", f"{low:g} to {high:g}")
