"""Rollouts: while Deployments replace their pods, groups stay in the zones that their plans chose."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from controller.cluster.pods import Pod, target_of
from controller.scheduler.gating.planner_time import MIN_SEARCH_S
from controller.scheduler.gating.release import ReleaseInputs, decide_releases
from kubekit.wire import format_time
from tests.unit.controller.groups import (
    make_bound_pod,
    make_chain,
    make_nodes,
    make_waiting_pod,
    map_zones_by_pod,
    plan_case,
)
from tests.unit.controller.planning_cluster import PlanningCluster

GROUPS, WORKLOADS, REPLICAS, HOSTS = 3, 6, 2, 9
POD_CPU = 2


class RolloutCluster(PlanningCluster):
    """Groups of chains of workloads on nodes in three zones; workloads are restarted one pod more at a time (maxSurge 1).

    Attributes:
        ready_s: time from the binding of a pod until it is ready.
        revision: revision of the pod template of all workloads; changing it starts a rollout.
        refused: number of pods that were bound to a full node.
    """

    def __init__(
        self, cpu: int, ready_s: float, *, groups: int = GROUPS, workloads: int = WORKLOADS, hosts: int = HOSTS
    ) -> None:
        super().__init__(hosts, cpu)
        self.ready_s = ready_s
        self.revision = self.created_count = self.refused = 0
        self.rng = random.Random(1)
        self.group_by_workload = {f"w{g}x{i}": f"d/g{g}" for g in range(groups) for i in range(workloads)}
        self.bound_at_s: dict[str, float] = {}
        for g in range(groups):
            names = [name for name, group in self.group_by_workload.items() if group == f"d/g{g}"]
            calls: dict[str, dict[str, int]] = {caller: {callee: 0} for caller, callee in pairwise(names)}
            calls[names[-1]] = {}
            self.put_group(f"d/g{g}", calls, workloads * REPLICAS)
        self.declared.by_workload = dict.fromkeys(self.group_by_workload, REPLICAS)

    def roll(self, workload: str) -> None:
        """Create or delete a pod of a workload as the Deployment and ReplicaSet controllers would now."""
        group, new_hash = self.group_by_workload[workload], f"h{self.revision}"
        pods = [pod for pod in self.list_pods(group) if pod.workload == workload]
        new = [pod for pod in pods if pod.metadata.label("pod-template-hash") == new_hash]
        old = [pod for pod in pods if pod not in new]
        if len(new) < REPLICAS and len(pods) < REPLICAS + bool(old):
            self.created_count += 1
            name, replica_set = f"{workload}-{self.created_count}", f"{workload}-{new_hash}"
            created = self.add_pod(group, name, workload, POD_CPU)
            owner = {"kind": "ReplicaSet", "name": replica_set, "uid": replica_set, "controller": True}
            labels = {**(created.metadata.labels or {}), "pod-template-hash": new_hash}
            times = {"creationTimestamp": format_time(self.now_s)}
            self.update_pod(created.metadata.key, metadata={"labels": labels, "ownerReferences": [owner], **times})
        elif old and len(pods) > REPLICAS and all(pod.is_ready for pod in pods):
            # The ReplicaSet controller deletes first where most replicas are.
            nodes = [pod.spec.node_name for pod in pods]
            deleted = max(old, key=lambda pod: (nodes.count(pod.spec.node_name), self.rng.random()))
            self.delete_pod(deleted.metadata.key)

    def mark_ready(self) -> None:
        """Mark the pods ready that were bound `ready_s` ago."""
        for key, pod in self.pods.items():
            if not pod.is_ready and self.now_s - self.bound_at_s.get(key, self.now_s) >= self.ready_s:
                self.update_pod(key, status={"conditions": [{"type": "Ready", "status": "True"}]})

    async def lead(self, group: str) -> None:
        """Reconcile one group, as the leader does."""
        pods = self.list_pods(group)
        if not any(pod.is_waiting for pod in pods):
            self.plans.drop_plan(group, pods)
            return
        plan_state = self.plans.get_or_request(group, pods)
        positions = {selector: i for i, selector in enumerate(reversed(self.state.graph(group).selectors), 1)}
        inputs = plan_state.add_to(ReleaseInputs(pods, positions))
        for release in decide_releases(inputs, self.now_s, self.config.gates).releases:
            self.plans.reservations.mark_released(release.pod.metadata.key)
            assert plan_state.plan is not None
            self.open_gate(release.pod.metadata.key, plan_state.plan.targets[release.pod.metadata.key])
        if plan_state.is_pending:
            await self.plans.make_plan(group)

    def schedule(self) -> None:
        """Bind released pods to their targets; ``refused`` counts those whose node is full, as FailedScheduling would."""
        for key, pod in self.pods.items():
            target = target_of(pod)
            if pod.is_waiting and not pod.is_gated and target is not None:
                self.refused += self.choose_node(pod, self.rng) != target.node
                self.bind(key, target.node)
                self.count_on_node(key)
                self.bound_at_s[key] = self.now_s

    async def step(self) -> None:
        """One second of all controllers."""
        self.mark_ready()
        for workload in self.group_by_workload:
            self.roll(workload)
        for group in self.state.groups:
            await self.lead(group)
        self.schedule()
        self.now_s += 1.0

    @property
    def is_rolled_out(self) -> bool:
        new = [pod for pod in self.pods.values() if pod.metadata.label("pod-template-hash") == f"h{self.revision}"]
        return len(new) == len(self.pods) == REPLICAS * len(self.group_by_workload) and all(pod.is_bound for pod in new)

    async def roll_out(self, max_steps: int) -> None:
        for _ in range(max_steps):
            await self.step()
            if self.is_rolled_out:
                return
        raise AssertionError([pod.metadata.key for pod in self.pods.values() if pod.is_waiting])

    def list_workloads_across_zones(self) -> list[str]:
        """Workloads of which a replica is in another zone than one that it calls."""
        zones_by_workload: dict[str, set[str]] = {workload: set() for workload in self.group_by_workload}
        for pod in self.pods.values():
            zones_by_workload[pod.workload].add(self.node_cache.hosts[pod.spec.node_name].location.zone)
        calls = [pair for pair in pairwise(zones_by_workload) if len({self.group_by_workload[w] for w in pair}) == 1]
        return [caller for caller, callee in calls if len(zones_by_workload[caller] | zones_by_workload[callee]) > 1]


def with_revision(pod: Pod, revision: str, minute: int, node_name: str = "") -> Pod:
    """A copy of a pod with this template's hash, made in this minute; w2 is a StatefulSet, others are Deployments."""
    kind, owner, label = "ReplicaSet", f"{pod.workload}-{revision}", "pod-template-hash"
    if pod.workload == "w2":
        kind, owner, label = "StatefulSet", pod.workload, "controller-revision-hash"
    body = msgspec.to_builtins(pod)
    body["metadata"]["labels"][label] = revision
    body["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02d}:00Z"
    body["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "uid": owner, "controller": True}]
    body["spec"]["nodeName"] = node_name
    return msgspec.convert(body, Pod)


async def test_a_restart_of_everything_keeps_what_the_plan_gained_in_a_full_cluster() -> None:
    """Capacity for 45 pods, of which 36 are bound when 18 more are created; each zone has free capacity for 3 of its 6."""
    cluster = RolloutCluster(cpu=5 * POD_CPU + 1, ready_s=2)
    await cluster.roll_out(20)
    assert cluster.list_workloads_across_zones() == []
    for cluster.revision in (1, 2):  # two restarts
        cluster.searches.clear()
        await cluster.roll_out(120)
        assert cluster.list_workloads_across_zones() == []
        first_searches = [search_s for _, search_s in cluster.searches if search_s > MIN_SEARCH_S]
        assert len(first_searches) < 36, "no plan is made again because a pod was replaced"
    assert cluster.refused == 0


async def test_pods_go_elsewhere_if_the_replaced_pods_stay() -> None:
    """New pods never get ready, so that the 36 old pods stay beside 18 new ones, one for each workload."""
    cluster = RolloutCluster(cpu=6 * POD_CPU, ready_s=1)
    await cluster.roll_out(20)
    cluster.revision, cluster.ready_s = 1, float("inf")
    for _ in range(int(cluster.config.gates.max_wait_s) - 10):
        await cluster.step()
    assert len(cluster.pods) == 36 + 18
    assert [pod.metadata.key for pod in cluster.pods.values() if pod.is_waiting] == []


async def test_pods_give_up_full_nodes_one_at_a_time() -> None:
    """All old pods are on one full node; the nodes of the other zones have capacity for three pods each."""
    cluster = RolloutCluster(cpu=8 * POD_CPU, ready_s=1, groups=1, workloads=4, hosts=1)
    cluster.cpu = 3 * POD_CPU
    for name, zone in (("n01", "z1"), ("n02", "z2")):
        cluster.add_node(name, zone)
    await cluster.roll_out(20)
    assert {pod.spec.node_name for pod in cluster.pods.values()} == {"n00"}
    cluster.revision = 1
    await cluster.roll_out(120)
    assert sorted(pod.spec.node_name for pod in cluster.pods.values())[:7] == ["n00"] * 7


async def test_a_pod_takes_a_free_node_near_its_group_instead_of_waiting() -> None:
    """The group is on one full node; a node of its zone has capacity for one pod, and one of another zone for three."""
    cluster = RolloutCluster(cpu=8 * POD_CPU, ready_s=1, groups=1, workloads=4, hosts=1)
    await cluster.roll_out(20)
    for name, zone, cluster.cpu in (("n01", "z0", POD_CPU), ("n02", "z1", 3 * POD_CPU)):
        cluster.add_node(name, zone)
    cluster.revision = 1
    for _ in range(5):
        await cluster.step()
    assert {pod.spec.node_name for pod in cluster.pods.values() if pod.is_bound} == {"n00", "n01"}
    await cluster.roll_out(60)
    assert cluster.list_workloads_across_zones() == []


@pytest.mark.parametrize("workload", ["w1", "w2"])
@pytest.mark.parametrize("rolls_back", [False, True])
@pytest.mark.parametrize("is_outdated", [False, True])
def test_outdated_replicas_do_not_count_for_spread_over_zones(
    workload: str, *, rolls_back: bool, is_outdated: bool
) -> None:
    """The caller and one new replica are in z0. Only if the replica in z1 is new may the other new replica be in z0."""
    caller = make_bound_pod("caller", {"w1": "w0", "w2": "w1"}[workload], "a")
    old, new = ("b", "a") if rolls_back else ("a", "b")
    pods = [
        caller,
        with_revision(make_waiting_pod("x", workload), new, 5, node_name="a"),
        with_revision(make_waiting_pod("y", workload), old if is_outdated else new, 1, node_name="b"),
        with_revision(make_waiting_pod("z", workload), new, 6),
    ]
    plan = plan_case(make_chain((0, 0, 0)), make_nodes(a=8, b=8, c=8), pods=pods, objective="time", spread="zone")
    assert (map_zones_by_pod(plan)["z"] != "z0") == is_outdated
