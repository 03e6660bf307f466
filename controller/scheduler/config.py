"""Settings of scheduling: the section ``scheduler`` of the controller's configuration file.

Arguments that upstream's plugins have keep their names and defaults; what is ours has a name of its own, and ``parity:
upstream`` turns all of ours off at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.pods import OUR_SCHEDULER, Placement
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join

Parity = Literal["none", "upstream"]


class ResourceWeight(Section, frozen=True):
    """A resource and its factor."""

    name: str
    weight: int


class AllocatableArgs(Section, frozen=True):
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
    weight: Annotated[int, Range(0, 100)] = 0

    def check(self, field: str) -> None:
        """Raise ConfigError when nothing counts, or something less than nothing."""
        if not self.resources:
            raise ConfigError(join(field, "resources"), "is empty", "name at least one resource")
        for resource in self.resources:
            if resource.weight <= 0 or not resource.name:
                raise ConfigError(
                    join(field, "resources"), f"{resource.name!r} has weight {resource.weight}", "above 0"
                )


class GatesConfig(Section, frozen=True):
    """TopologicalSort by scheduling gates.

    Attributes:
        max_wait_s: no pod stays gated for longer than this after it was created, or after the last gate of others opened.
        absent_wait_s: how long a pod waits for earlier workloads that have no pods at all, or fewer than they declare.
        settle_s: a group whose pods were just created is planned after this pause, so that the plan knows all of them.
        replace_after_s: in affinity mode, how long a pod must have been unschedulable before it is replaced through its owner
            because costs have moved; doubles for each replacement of the same owner's pods.
    """

    max_wait_s: Annotated[float, Range(1, 3600)] = 120.0
    absent_wait_s: Annotated[float, Range(0, 3600)] = 15.0
    settle_s: Annotated[float, Range(0, 3600)] = 0.5
    replace_after_s: Annotated[float, Range(1, 3600)] = 10.0

    def check(self, field: str) -> None:
        """Raise ConfigError when a part of the wait is longer than all of it."""
        for name, part_s in (("absentWaitS", self.absent_wait_s), ("settleS", self.settle_s)):
            Range(0, self.max_wait_s).check(part_s, join(field, name))


class PlanningConfig(Section, frozen=True):
    """Planning of whole groups.

    Attributes:
        enabled: off, every pod is judged by itself.
        most_pods: groups with more pods, declared ones included, are placed by the plain rule.
        most_pods_per_namespace: the same for all groups of one namespace that wait at a time.
        deadline_s: a plan that takes longer is given up, and the group is placed by the plain rule.
    """

    enabled: bool = True
    most_pods: Annotated[int, Range(1, 100_000)] = 10_000
    most_pods_per_namespace: Annotated[int, Range(1, 1_000_000)] = 20_000
    deadline_s: Annotated[float, Range(0.1, 600)] = 30.0


class ExtenderConfig(Section, frozen=True):
    """Limits of the HTTP service.

    Attributes:
        max_request_bytes: larger requests are refused; 15,000 nodes need about half a megabyte.
        request_timeout_s: for one request to arrive.
        reasons_limit: refused nodes that are named with a sentence each; further ones share a sentence per zone, because
            kube-scheduler writes every different sentence into the pod's status.
        tls_cert_file: PEM certificate chain; needed off localhost.
        tls_key_file: its key.
    """

    max_request_bytes: Annotated[int, Range(1 << 12, 1 << 30)] = 16 << 20
    request_timeout_s: Annotated[float, Range(0.1, 600)] = 5.0
    reasons_limit: Annotated[int, Range(0, 10_000)] = 50
    tls_cert_file: str = ""
    tls_key_file: str = ""

    def check(self, field: str) -> None:
        """Raise ConfigError for half a pair."""
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError(join(field, "tlsCertFile"), "and tlsKeyFile go together", "give both or neither")


class SchedulerConfig(Section, frozen=True):
    """The whole section.

    Attributes:
        scheduler_names: whose pods the extender answers for; others get a neutral answer, since kube-scheduler sends the
            pods of all its profiles. Empty for all. The policy and the webhook that gate pods name ``network-aware-scheduler``
            alone; templates of others carry the gate themselves.
        placement: how decisions reach the scheduler; ``affinity`` needs no extender. Pods choose for themselves with the
            label ``netaware.io/placement``.
        parity: ``upstream`` for exactly what upstream's plugins do, without plans.
    """

    scheduler_names: tuple[str, ...] = (OUR_SCHEDULER,)
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
    def by_answer(self) -> bool:
        """Whether a dependency is judged by the replica that answers; else, as upstream does, by every pair of caller and callee."""
        return self.parity != "upstream"

    @property
    def plans(self) -> bool:
        """Whether groups are planned."""
        return self.planning.enabled and self.parity != "upstream"
