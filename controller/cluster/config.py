"""Settings of several packages: which AppGroups, NetworkTopologies and weights count."""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller.cluster.resources import NETPERF_COSTS, USER_DEFINED
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join


class NetworkOverheadConfig(Section, frozen=True):
    """Arguments of NetworkOverhead (docs/contracts.md, section 4).

    Attributes:
        namespaces: where AppGroups and NetworkTopologies are looked for, in this order.
        weights_name: weight of the NetworkTopology to use; NetperfCosts if it has none of this name.
        network_topology_name: name of the NetworkTopology.
        score_dependents: also count placed pods that depend on the pod, unlike upstream.
        weight: factor of this score in the extender's answer.
    """

    namespaces: tuple[str, ...] = ("default",)
    weights_name: str = USER_DEFINED
    network_topology_name: str = "nt-default"
    score_dependents: bool = True
    weight: Annotated[int, Range(0, 100)] = 1

    def check(self, field: str) -> None:
        """Raise ConfigError if a name is empty."""
        for name, text in (("weightsName", self.weights_name), ("networkTopologyName", self.network_topology_name)):
            if not text:
                raise ConfigError(join(field, name), "is empty", "name what to look for")
        if not self.namespaces or not all(self.namespaces):
            raise ConfigError(join(field, "namespaces"), "names no namespace", "default is upstream's")


class NetworkOverheadArgs(NetworkOverheadConfig, frozen=True):
    """NetworkOverhead's arguments, with those that follow from ``scheduler.parity``.

    Attributes:
        fallback_weights_name: taken when the NetworkTopology has no weight of `weights_name`; empty for none.
        search_everywhere: a pod's own namespace comes before `namespaces`, then groups that name the pod's namespace; for
            the NetworkTopology, the group's namespace comes first, then netaware's, then the only one there is.
        counts_finished_pods: finished and terminating pods count as placed, as upstream has it.
        rejects_deleted_nodes: a dependency's pod on a node that is gone fails the pod, as upstream has it.
    """

    fallback_weights_name: str = NETPERF_COSTS
    search_everywhere: bool = True
    counts_finished_pods: bool = False
    rejects_deleted_nodes: bool = False

    @classmethod
    def from_config(cls, config: NetworkOverheadConfig, *, parity: bool) -> NetworkOverheadArgs:
        """The rules of a configuration; in ``parity`` with upstream everything of ours is off."""
        args = cls(**msgspec.structs.asdict(config))
        if not parity:
            return args
        return msgspec.structs.replace(
            args,
            fallback_weights_name="",
            search_everywhere=False,
            score_dependents=False,
            counts_finished_pods=True,
            rejects_deleted_nodes=True,
        )
