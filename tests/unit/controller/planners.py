"""A cluster in which all planners say where a pod may run: the leader, `simulate`, `simulate --offline` and the descheduler."""

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
from kubekit.wire import Node
from tests.unit.controller.leader import World

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NOISY = {"app": "noisy"}


class Planners(World):
    """Nodes n00 to n05 in zones z0 to z2, whose group has one pod that waits."""

    def __init__(self) -> None:
        super().__init__(0, 4)
        self.file = ClusterFile()
        for i in range(6):
            labels = {ZONE: f"z{i % 3}", "topology.kubernetes.io/region": "r", HOST: f"n{i:02d}"}
            self.put_node(f"n{i:02d}", labels=labels)
        self.add_group("d/g", 2)
        self.file.groups.append(self.state.groups["d/g"])

    def put_node(self, name: str, labels: Any = None, **spec: Any) -> None:
        """A node as it is from now on; labels that are not told stay."""
        known = {node.metadata.name: node for node in self.file.nodes}
        before = known.get(name)
        body = {
            "metadata": {"name": name, "labels": labels or (before.metadata.labels if before else {})},
            "spec": spec,
            "status": {"allocatable": {"cpu": "4", "memory": "64Gi", "pods": "110"}},
        }
        known[name] = msgspec.convert(body, Node)
        self.file.nodes[:] = known.values()
        self.state.on_node_change(name, before, known[name])
        self.node_cache.on_node_change(name, before, known[name])

    def add_foreign(self, node: str, spec: dict[str, Any], namespace: str = "d", labels: Any = NOISY) -> None:
        name = f"foreign-{node}"
        body = {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, **spec},
            "status": {"phase": "Running"},
        }
        pod = msgspec.convert(body, Pod)
        self.file.pods.append(pod)
        self.node_cache.on_pod_change(pod.metadata.key, None, PodReader().read(pod))

    def add_volumes(self, class_: Any, claims: Sequence[Any] = (), volumes: Sequence[Any] = ()) -> None:
        self.file = msgspec.structs.replace(self.file, storage_classes=[class_], claims=[*claims], volumes=[*volumes])
        self.volumes.on_storage_class_change(class_.metadata.name, None, class_)
        for claim in claims:
            self.volumes.on_claim_change(claim.metadata.key, None, claim)
        for volume in volumes:
            self.volumes.on_volume_change(volume.metadata.name, None, volume)

    async def zones(self, spec: dict[str, Any], *, preempting: bool = False) -> set[str]:
        """Where all of them put P1, whose pod has this spec; empty where they find no place. Only plans expect evictions."""
        pod = self.add_pod("d/g", "p1", "P1", 1)
        self.change("d/p1", spec=spec)
        pod = self.pods["d/p1"]
        self.file.pods.append(pod)
        await self.plans.make_plan("d/g")
        leader = self.plans.get_or_request("d/g", self.pods_of("d/g")).plan
        offline, _ = plan_offline(self.file)
        assert leader is not None
        assert dict(leader.unplaced_reasons) == offline.unplaced
        found = {
            "leader": {target.zone for target in leader.targets.values()},
            "offline": self._zones_of(offline.placements.values()),
            "simulate": self._zones_of(self._simulated(pod)),
        }
        if not preempting:
            found["descheduler"] = self._zones_of(self._fitting(pod))
        assert all(zones == found["leader"] for zones in found.values()), found
        explained = PlanInputs(self.state, self.node_cache, self.volumes).ineligible_nodes(pod)
        eligible = self._zones_of(self.node_cache.hosts.keys() - explained.keys())
        assert preempting or eligible == found["leader"], explained
        return found["leader"]

    def _zones_of(self, nodes: Iterable[str]) -> set[str]:
        return {self.node_cache.hosts[node].location.zone for node in nodes}

    def _read(self) -> list[PodInfo]:
        return [PodReader().read(pod) for pod in self.file.pods]

    def _simulated(self, pod: Pod) -> list[str]:
        """By `simulate`, of a template like the pod."""
        snapshot = ClusterSnapshot(now_s=0, nodes=tuple(self.file.nodes))
        volumes = Volumes.from_objects(self.file.volumes, self.file.claims, self.file.storage_classes)
        made = WorkloadController()
        spec = msgspec.structs.replace(pod.spec, scheduling_gates=None)
        template = msgspec.structs.replace(made.spec.template, metadata=pod.metadata, spec=spec)
        one = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, template=template))
        none = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, replicas=0))
        inputs = build_inputs(snapshot, self._read(), volumes)
        answer = simulate(inputs, self.state.groups["d/g"], {"P1": one, "P2": none})
        ours, default = (
            [n for nodes in outcome.nodes_by_workload.values() for n in nodes if n]
            for outcome in (answer.network_aware, answer.default_scheduler)
        )
        if not any(known.spec.affinity or known.spec.priority for known in self.file.pods):
            assert self._zones_of(default) == self._zones_of(ours), "the model of the default scheduler"
        return ours

    def _fitting(self, pod: Pod) -> list[str]:
        """Where the descheduler would let the replacement of an evicted pod go."""
        inputs = PlanInputs(self.state, self.node_cache, self.volumes)
        snapshot = take_snapshot(inputs, {info.key: info for info in self._read()}, [], "netaware-system")
        fit, info = FitChecker(snapshot), PodReader().read(pod)
        nodes = snapshot.nodes.values()
        return [
            n.name
            for n in nodes
            if not (fit.static_unschedulable_reason(n, info) or fit.dynamic_unschedulable_reason(n, info))
        ]
