"""`simulate --offline` against CP-SAT on one random cluster."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec

from controller.cli.cluster_file import read_cluster
from controller.cli.offline import OfflinePlan, plan_offline
from tests.unit.controller.clusters import Json, Style, random_objects, style_of
from tests.unit.controller.oracle import PlacementValue, evaluate, find_best, place_most
from tests.unit.controller.oracle_cluster import OracleCluster


class Comparison(msgspec.Struct, frozen=True):
    """Values of our plan and of the best one of CP-SAT, whether the best is proven, and the violations that our plan reports."""

    seed: int
    style: Style
    ours: PlacementValue
    best: PlacementValue
    is_proven: bool
    reported_violations: int

    @property
    def matches_on_limits(self) -> bool:
        """Whether the plan is as good as the best one in all but cost."""
        return self.ours.limits == self.best.limits

    @property
    def ratio(self) -> float:
        """Our cost divided by the best; 1 if the best is 0."""
        return self.ours.cost / self.best.cost if self.best.cost else 1.0


def plan_file(objects: list[Json]) -> OfflinePlan:
    """The plan of a cluster, read from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        return plan_offline(read_cluster(str(path)))[0]


def fitting_objects(seed: int, seconds: float = 10.0) -> list[Json]:
    """A cluster's objects without the pods that CP-SAT cannot place, so that the cluster is full and all pods can be placed."""
    objects = random_objects(seed)
    cluster = OracleCluster(objects)
    placed = place_most(cluster, seconds)
    unplaced = {key for keys in cluster.pod_keys_by_class for key in keys if key not in placed}
    return [item for item in objects if item["kind"] != "Pod" or f"default/{item['metadata']['name']}" not in unplaced]


def compare(seed: int, seconds: float, *, fitting: bool = False) -> Comparison:
    """Plan a random cluster, and search for a better plan for this time per goal; ``fitting`` removes pods that CP-SAT cannot place.

    Raises BrokenRuleError if our plan breaks a rule of Kubernetes.
    """
    objects = fitting_objects(seed) if fitting else random_objects(seed)
    plan, cluster = plan_file(objects), OracleCluster(objects)
    best, is_proven = find_best(cluster, plan.placements, seconds)
    return Comparison(seed, style_of(seed), evaluate(cluster, plan.placements), best, is_proven, plan.violations)
