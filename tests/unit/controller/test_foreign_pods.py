"""Pods outside a group decide where its pods may go: one answer of the leader and of ``simulate --offline``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cli.offline import Given, plan_offline
from controller.cli.offline_objects import ClusterFile
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod
from kubekit.wire import Node
from tests.unit.controller.leader import World

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NOISY, WORKLOAD = {"app": "noisy"}, {"appgroup.diktyo.x-k8s.io.workload": "P1"}


def term(labels: dict[str, str], key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key, **more}


def required(kind: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


NOBODY: dict[str, Any] = {}


class Both(World):
    """A leader's cluster that is a file, too; nodes n00 to n05 in zones z0 to z2."""

    def __init__(self) -> None:
        super().__init__(0, 4)
        self.file = ClusterFile()
        for i in range(6):
            labels = {ZONE: f"z{i % 3}", "topology.kubernetes.io/region": "r", HOST: f"n{i:02d}"}
            body = {
                "metadata": {"name": f"n{i:02d}", "labels": labels},
                "status": {"allocatable": {"cpu": "4", "memory": "64Gi", "pods": "110"}},
            }
            node = msgspec.convert(body, Node)
            self.file.nodes.append(node)
            self.state.take_node(f"n{i:02d}", None, node)
            self.fleet.take_node(f"n{i:02d}", None, node)
        self.add_group("d/g", 2)
        self.file.groups.append(self.state.groups["d/g"])

    def add_foreign(self, node: str, spec: dict[str, Any], namespace: str = "d", labels: Any = NOISY) -> None:
        name = f"foreign-{node}"
        body = {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, **spec},
            "status": {"phase": "Running"},
        }
        pod = msgspec.convert(body, GroupPod)
        self.file.pods.append(pod)
        self.fleet.take_pod(pod.metadata.key, None, PodReader().read(pod))

    async def zones(self, spec: dict[str, Any]) -> set[str]:
        """Where both put P1, whose pod has this spec; empty where they find no place."""
        self.add_pod("d/g", "p1", "P1", 1)
        self.change("d/p1", spec=spec)
        self.file.pods.append(self.pods["d/p1"])
        await self.plans.make("d/g")
        leader = self.plans.look("d/g", self.of("d/g")).plan
        offline, _ = plan_offline(self.file, Given())
        assert leader is not None
        assert {key: target.zone for key, target in leader.targets.items()} == {
            key: self.fleet.hosts[node].location.zone for key, node in offline.placements.items()
        }
        assert dict(leader.why) == offline.unplaced
        return {target.zone for target in leader.targets.values()}


@pytest.mark.parametrize(
    ("spec", "foreign", "zones"),
    [
        (required("podAntiAffinity", term(NOISY)), [("n00", NOBODY), ("n02", NOBODY)], {"z1"}),
        (required("podAffinity", term(NOISY)), [("n02", NOBODY)], {"z2"}),
        (
            NOBODY,
            [
                ("n00", required("podAntiAffinity", term(WORKLOAD))),
                ("n02", required("podAntiAffinity", term(WORKLOAD))),
                ("n01", NOBODY),
                ("n04", NOBODY),
            ],
            {"z1"},
        ),
        (required("podAffinity", term(NOISY)), [], set()),
        (required("podAntiAffinity", term(NOISY)), [(f"n0{i}", NOBODY) for i in range(3)], set()),
    ],
)
async def test_required_affinity_with_foreign_pods_in_either_direction(
    spec: Any, foreign: Any, zones: set[str]
) -> None:
    both = Both()
    for node, theirs in foreign:
        both.add_foreign(node, theirs)
    assert await both.zones(spec) == zones


async def test_foreign_pods_count_by_their_namespace() -> None:
    both = Both()
    both.add_foreign("n00", NOBODY, "elsewhere")
    both.add_foreign("n01", NOBODY)
    assert "z1" not in await both.zones(required("podAntiAffinity", term(NOISY), term(NOISY, namespaces=["elsewhere"])))


async def test_a_plan_is_made_anew_when_a_foreign_pod_comes_into_its_way() -> None:
    both = Both()
    both.add_foreign("n00", NOBODY)
    both.add_foreign("n02", NOBODY)
    assert await both.zones(required("podAntiAffinity", term(NOISY))) == {"z1"}
    both.fleet.take_pod("d/foreign-n02", None, None)
    both.add_foreign("n01", NOBODY)
    both.now += 60
    assert both.plans.look("d/g", both.of("d/g")).pending
    await both.plans.make("d/g")
    moved = both.plans.look("d/g", both.of("d/g")).plan
    assert moved is not None
    assert moved.targets["d/p1"].zone == "z2"
