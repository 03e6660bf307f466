"""A cluster in which all planners place a pod: the leader, `simulate`, `simulate --offline` and the descheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from controller.cli.cluster_file import ClusterFile
from controller.cli.offline import plan_offline
from controller.cli.plan_inputs import build_inputs
from controller.cli.simulate import simulate
from controller.cli.workload_controller import WorkloadController
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.cluster.volumes import Volumes
from controller.descheduler.fit import FitChecker
from controller.descheduler.snapshot import take_snapshot
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.placement.inputs import PlanInputs
from tests.unit.controller.groups import make_zone_node
from tests.unit.controller.planning_cluster import PlanningCluster

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NOISY = {"app": "noisy"}


class Planners(PlanningCluster):
    """Nodes n00 to n05 in zones z0 to z2, and a group with one pending pod."""

    def __init__(self) -> None:
        super().__init__(0, 4)
        self.file = ClusterFile()
        for i in range(6):
            self.put_node(f"n0{i}")
        self.add_group("d/g", 2)
        self.file.groups.append(self.state.groups["d/g"])

    def put_node(self, name: str, **spec: Any) -> None:
        """Add or change a node; n00 and n03 are in z0, n01 and n04 in z1, n02 and n05 in z2."""
        node = make_zone_node(name, f"z{int(name[1:]) % 3}", "4", **spec)
        before = next((other for other in self.file.nodes if other.metadata.name == name), None)
        self.file.nodes[:] = [*(other for other in self.file.nodes if other is not before), node]
        self.state.on_node_change(name, before, node)
        self.node_cache.on_node_change(name, before, node)

    def add_foreign_pod(self, node: str, spec: dict[str, Any], namespace: str = "d") -> None:
        """Add a running pod with the label `NOISY` that belongs to no group."""
        body = {
            "metadata": {"name": f"foreign-{node}", "namespace": namespace, "labels": NOISY},
            "spec": {"nodeName": node, **spec},
            "status": {"phase": "Running"},
        }
        pod = msgspec.convert(body, Pod)
        self.file.pods.append(pod)
        self.node_cache.on_pod_change(pod.metadata.key, None, PodReader().read(pod))

    def add_volumes(self, storage_class: Any, claims: Sequence[Any] = (), volumes: Sequence[Any] = ()) -> None:
        self.file = msgspec.structs.replace(
            self.file, storage_classes=[storage_class], claims=[*claims], volumes=[*volumes]
        )
        self.volumes.on_storage_class_change(storage_class.metadata.name, None, storage_class)
        for claim in claims:
            self.volumes.on_claim_change(claim.metadata.key, None, claim)
        for volume in volumes:
            self.volumes.on_volume_change(volume.metadata.name, None, volume)

    async def find_zones(self, spec: dict[str, Any], *, is_preempting: bool = False) -> set[str]:
        """Zones in which all planners place a pod of P1 with this spec, and `explain` finds nodes for it.

        With ``is_preempting``, the descheduler and `explain` are not asked, because they expect no preemption.
        """
        self.add_pod("d/g", "p1", "P1", 1)
        self.update_pod("d/p1", spec=spec)
        pod = self.pods["d/p1"]
        self.file.pods.append(pod)
        await self.plans.make_plan("d/g")
        plan = self.request_plan("d/g").plan
        offline_plan, _ = plan_offline(self.file)
        assert plan is not None
        assert dict(plan.unplaced_reasons) == offline_plan.unplaced
        zones_by_planner = {
            "leader": {target.zone for target in plan.targets.values()},
            "offline": self._find_zones_of(offline_plan.placements.values()),
            "simulate": self._find_zones_of(self._simulate(pod)),
        }
        if not is_preempting:
            zones_by_planner["descheduler"] = self._find_zones_of(self._find_descheduler_nodes(pod))
            ineligible = PlanInputs(self.state, self.node_cache, self.volumes).ineligible_nodes(pod)
            zones_by_planner["explain"] = self._find_zones_of(self.node_cache.hosts.keys() - ineligible.keys())
        assert all(zones == zones_by_planner["leader"] for zones in zones_by_planner.values()), zones_by_planner
        return zones_by_planner["leader"]

    def _find_zones_of(self, nodes: Iterable[str]) -> set[str]:
        return {self.node_cache.hosts[node].location.zone for node in nodes}

    def _read_pods(self) -> list[PodInfo]:
        return [PodReader().read(pod) for pod in self.file.pods]

    def _simulate(self, pod: Pod) -> list[str]:
        """Nodes of `simulate` for one replica of a template like the pod; the model of the default scheduler has the same zones."""
        snapshot = ClusterSnapshot(now_s=0, nodes=tuple(self.file.nodes))
        volumes = Volumes.from_objects(self.file.volumes, self.file.claims, self.file.storage_classes)
        controller, replace = WorkloadController(), msgspec.structs.replace
        pod_spec = replace(pod.spec, scheduling_gates=None)
        template = replace(controller.spec.template, metadata=pod.metadata, spec=pod_spec)
        one_replica = replace(controller, spec=replace(controller.spec, template=template))
        no_replica = replace(controller, spec=replace(controller.spec, replicas=0))
        inputs = build_inputs(snapshot, self._read_pods(), volumes)
        simulation = simulate(inputs, self.state.groups["d/g"], {"P1": one_replica, "P2": no_replica})
        planned, by_default = (
            [node for nodes in outcome.nodes_by_workload.values() for node in nodes if node]
            for outcome in (simulation.network_aware, simulation.default_scheduler)
        )
        # The model knows neither required pod affinity nor preemption.
        if not any(other.spec.affinity or other.spec.priority for other in self.file.pods):
            assert self._find_zones_of(by_default) == self._find_zones_of(planned)
        return planned

    def _find_descheduler_nodes(self, pod: Pod) -> list[str]:
        """Nodes on which the descheduler expects the replacement of an evicted pod."""
        inputs = PlanInputs(self.state, self.node_cache, self.volumes)
        snapshot = take_snapshot(inputs, {info.key: info for info in self._read_pods()}, [], "netaware-system")
        fit, info = FitChecker(snapshot), PodReader().read(pod)
        reasons = {
            node.name: fit.static_unschedulable_reason(node, info) or fit.dynamic_unschedulable_reason(node, info)
            for node in snapshot.nodes.values()
        }
        return [name for name, reason in reasons.items() if not reason]
