"""Settings of scheduling: the section ``scheduler`` of the controller's configuration file.

Arguments of upstream's plugins keep their names and defaults. ``parity: upstream`` turns off what upstream's plugins lack.
"""

from __future__ import annotations

from typing import Annotated, Literal

from controller.cluster.config import NetworkOverheadArgs, NetworkOverheadConfig
from controller.cluster.pods import OUR_SCHEDULER, PlacementMode
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join_path

Parity = Literal["none", "upstream"]


class ResourceWeight(Section, frozen=True):
    """A resource and its factor.

    Attributes:
        name: the resource, such as ``cpu``.
        weight: its factor, above 0.
    """

    name: str
    weight: int


class AllocatableArgs(Section, frozen=True):
    """Arguments of NodeResourcesAllocatable (docs/contracts.md, section 5).

    Attributes:
        mode: prefer nodes with little (``Least``) or much (``Most``) allocatable.
        resources: resources that are added up, each with a factor.
        weight: factor of this score, in plans and in the extender's answer; 0 disables it.
    """

    mode: Literal["Least", "Most"] = "Least"
    resources: tuple[ResourceWeight, ...] = (
        ResourceWeight(name="cpu", weight=1 << 20),
        ResourceWeight(name="memory", weight=1),
    )
    weight: Annotated[int, Range(0, 100)] = 0

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if there are no resources, or one has no name or no positive weight."""
        path = join_path(field, "resources")
        if not self.resources:
            raise ConfigError(path, "is empty", "name at least one resource")
        for resource in self.resources:
            if resource.weight <= 0 or not resource.name:
                fault = f"{resource.name!r} has weight {resource.weight}"
                raise ConfigError(path, fault, "give every resource a name and a weight above 0")


class GatesConfig(Section, frozen=True):
    """TopologicalSort by scheduling gates.

    Attributes:
        max_wait_s: longest time that a pod stays gated after its creation, or after the last gate of another owner opened.
        missing_workload_timeout_s: how long a pod waits for earlier workloads with fewer pods than declared; at most maxWaitS.
    """

    max_wait_s: Annotated[float, Range(1, 3600)] = 120.0
    missing_workload_timeout_s: Annotated[float, Range(0, 3600)] = 15.0

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if ``missingWorkloadTimeoutS`` is longer than ``maxWaitS``."""
        path = join_path(field, "missingWorkloadTimeoutS")
        Range(0, self.max_wait_s).check_value(self.missing_workload_timeout_s, path)


class SchedulerConfig(Section, frozen=True):
    """Placement and gates.

    Attributes:
        scheduler_names: schedulers whose pods the extender scores; empty for all. Pods of others than network-aware-scheduler are
            gated only if their template has the gate.
        placement: how plans reach pods without the label ``netaware.io/placement``.
        parity: ``upstream`` for exactly the behaviour of upstream's plugins, without plans.
        network_overhead, allocatable: arguments of upstream's plugins NetworkOverhead and NodeResourcesAllocatable.
        gates: limits of waits at scheduling gates.
    """

    scheduler_names: tuple[str, ...] = (OUR_SCHEDULER,)
    placement: PlacementMode = "extender"
    parity: Parity = "none"
    network_overhead: NetworkOverheadConfig = NetworkOverheadConfig()
    allocatable: AllocatableArgs = AllocatableArgs()
    gates: GatesConfig = GatesConfig()

    @property
    def network_overhead_args(self) -> NetworkOverheadArgs:
        """NetworkOverhead's arguments, as ``parity`` changes them."""
        return NetworkOverheadArgs.from_config(self.network_overhead, parity=self.has_upstream_parity)

    @property
    def has_upstream_parity(self) -> bool:
        """Whether to behave exactly as upstream: no plans, and dependencies are checked for all replicas, whatever Services route to."""
        return self.parity == "upstream"
