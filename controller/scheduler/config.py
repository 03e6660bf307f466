"""Settings of scheduling: the section ``scheduler`` of the controller's configuration file.

Arguments that upstream's plugins have keep their names and defaults; what is ours has a name of its own, and ``parity:
upstream`` turns all of ours off at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from controller.cluster.config import NetworkOverheadArgs, NetworkOverheadConfig
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
        weight: of this score beside the network's, 100 each at most, in plans and in the extender's answers; 0 leaves it out.
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
        missing_workload_timeout_s: how long a pod waits for earlier workloads that have no pods at all, or fewer than they declare.
    """

    max_wait_s: Annotated[float, Range(1, 3600)] = 120.0
    missing_workload_timeout_s: Annotated[float, Range(0, 3600)] = 15.0

    def check(self, field: str) -> None:
        """Raise ConfigError when a part of the wait is longer than all of it."""
        Range(0, self.max_wait_s).check(self.missing_workload_timeout_s, join(field, "missingWorkloadTimeoutS"))


class ExtenderConfig(Section, frozen=True):
    """TLS of the HTTP service.

    Attributes:
        tls_cert_file: PEM certificate chain; needed off localhost.
        tls_key_file: its key.
    """

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
    network_overhead: NetworkOverheadConfig = NetworkOverheadConfig()
    allocatable: AllocatableArgs = AllocatableArgs()
    gates: GatesConfig = GatesConfig()
    extender: ExtenderConfig = ExtenderConfig()

    @property
    def rules(self) -> NetworkOverheadArgs:
        """NetworkOverhead's arguments after parity."""
        return NetworkOverheadArgs.of(self.network_overhead, parity=self.parity == "upstream")

    @property
    def by_answer(self) -> bool:
        """Whether a dependency is judged by the replica that answers; else, as upstream does, by every pair of caller and callee."""
        return self.parity != "upstream"

    @property
    def plans(self) -> bool:
        """Whether groups are planned."""
        return self.parity != "upstream"
