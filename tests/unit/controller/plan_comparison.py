"""Compares plans of `simulate --offline` with those of CP-SAT, the constraint solver of OR-tools, on random clusters."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec

from controller.cli.cluster_file import read_cluster
from controller.cli.offline import OfflinePlan, plan_offline
from tests.unit.controller.clusters import Json, Style, choose_style, draw_objects
from tests.unit.controller.oracle import PlacementValue, evaluate, find_best, place_most_pods
from tests.unit.controller.oracle_cluster import OracleCluster


class Comparison(msgspec.Struct, frozen=True):
    """Our plan of a random cluster beside the best one of CP-SAT.

    Attributes:
        our_value: value of our plan.
        best_value: value of the best plan that CP-SAT found.
        is_proven: whether CP-SAT proved that there is no better plan.
        reported_violations: violations that our plan reports.
    """

    seed: int
    style: Style
    our_value: PlacementValue
    best_value: PlacementValue
    is_proven: bool
    reported_violations: int

    @property
    def matches_on_limits(self) -> bool:
        """Whether the plan is as good as the best one in all but cost."""
        return self.our_value.limits == self.best_value.limits

    @property
    def cost_ratio(self) -> float:
        """Our cost divided by the best; 1 if the best is 0."""
        return self.our_value.cost / self.best_value.cost if self.best_value.cost else 1.0


def plan_from_file(objects: list[Json]) -> OfflinePlan:
    """The plan of `simulate --offline` for a file with these objects."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        return plan_offline(read_cluster(str(path)))[0]


def draw_objects_that_fit(seed: int, seconds_per_goal: float = 10.0) -> list[Json]:
    """A cluster's objects without the pods that CP-SAT cannot place, so that the cluster is full and all pods can be placed."""
    objects = draw_objects(seed)
    cluster = OracleCluster(objects)
    placements = place_most_pods(cluster, seconds_per_goal)
    unplaced = {key for keys in cluster.pod_keys_by_class for key in keys if key not in placements}
    return [item for item in objects if item["kind"] != "Pod" or f"default/{item['metadata']['name']}" not in unplaced]


def compare_with_best(seed: int, seconds_per_goal: float, *, only_fitting: bool = False) -> Comparison:
    """Plan a random cluster, and search with CP-SAT for a better plan; ``only_fitting`` removes pods that CP-SAT cannot place.

    Raises:
        BrokenRuleError: our plan breaks a rule of Kubernetes.
    """
    objects = draw_objects_that_fit(seed) if only_fitting else draw_objects(seed)
    plan, cluster = plan_from_file(objects), OracleCluster(objects)
    best_value, is_proven = find_best(cluster, plan.placements, seconds_per_goal)
    our_value = evaluate(cluster, plan.placements)
    return Comparison(seed, choose_style(seed), our_value, best_value, is_proven, plan.violations)
