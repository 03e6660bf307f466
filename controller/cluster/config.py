"""Settings of NetworkOverhead: which AppGroups and costs it uses, and how it scores nodes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller.cluster.crds import NETPERF_COSTS, USER_DEFINED
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join_path


class NetworkOverheadConfig(Section, frozen=True):
    """Arguments of NetworkOverhead that users set (docs/contracts.md, section 4).

    Attributes:
        namespaces: namespaces in which AppGroups and NetworkTopologies are searched, in this order.
        weights_name: name of the table of costs in the NetworkTopology; if it lacks this one, `NetperfCosts` (not with parity `upstream`).
        network_topology_name: name of the NetworkTopology.
        score_dependents: also score costs to placed pods that depend on the pod, unlike upstream.
        weight: factor of this score in the extender's answer.
    """

    namespaces: tuple[str, ...] = ("default",)
    weights_name: str = USER_DEFINED
    network_topology_name: str = "nt-default"
    score_dependents: bool = True
    weight: Annotated[int, Range(0, 100)] = 1

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if a name or namespace is empty."""
        for key, name in (("weightsName", self.weights_name), ("networkTopologyName", self.network_topology_name)):
            if not name:
                raise ConfigError(join_path(field, key), "is empty", "write the name of the object")
        if not self.namespaces or not all(self.namespaces):
            path = join_path(field, "namespaces")
            raise ConfigError(path, "is empty, or has an empty name", "write [default], as upstream does")


class NetworkOverheadArgs(NetworkOverheadConfig, frozen=True):
    """All arguments of NetworkOverhead: those that users set, and those that follow from ``scheduler.parity``.

    Attributes:
        fallback_weights_name: used if the NetworkTopology has no weight of `weights_name`; empty for none.
        search_everywhere: search also outside `namespaces`. For an AppGroup: in the pod's namespace, in `namespaces`, then in those to
            which the pod's namespace consents. For a NetworkTopology: in the AppGroup's namespace, in `namespaces`, then in netaware's;
            else the only NetworkTopology of the cluster is used.
        counts_finished_pods: finished and terminating pods count as placed, as in upstream.
        rejects_deleted_nodes: all nodes are rejected for a pod while a dependency's pod is on a deleted node, as in upstream.
    """

    fallback_weights_name: str = NETPERF_COSTS
    search_everywhere: bool = True
    counts_finished_pods: bool = False
    rejects_deleted_nodes: bool = False

    @classmethod
    def from_config(cls, config: NetworkOverheadConfig, *, parity: bool) -> NetworkOverheadArgs:
        """The arguments for a configuration; with ``parity`` those that give upstream's behaviour."""
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
