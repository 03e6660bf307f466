"""Node affinity that affinity mode adds to gated pods: it allows the nodes that the extender passes, and keeps the user's terms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.cluster.costs import Location
from controller.cluster.eligibility import Constraints
from controller.cluster.pods import GATE, Pod, Target
from controller.scheduler.affinity import NARROWED_ANNOTATION, ZoneScores, score_zones, without_added_requirement
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.handler import Extender
from controller.scheduler.gating.patches import build_release_patch, placement_mode_of_pod
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import NodeScore, ScoreTable
from controller.scheduler.state import State
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import ZONE
from tests.unit.controller.scheduler_objects import (
    Costs,
    make_gated_pod,
    make_group_state,
    make_node,
    make_topology,
    make_zone_labels,
)

CONFIG = SchedulerConfig(placement="affinity")
NODES = {"n1": ("r", "z1"), "n2": ("r", "z2"), "n3": ("r", "z3"), "n4": ("r", "z3")}
NEAR = {("z2", "z1"): 5, ("z3", "z1"): 50}
TARGET = Target("z2", "r", "n2")
# Weight, label and values of preferred terms: the planned host and zone, then zones by score, of 33 at most.
HOST_TERM, PLANNED_ZONE_TERM = (100, "kubernetes.io/hostname", ["h2"]), (60, ZONE, ["z2"])
Z1_TERM, Z2_TERM = (33, ZONE, ["z1"]), (23, ZONE, ["z2"])


def make_state_with_p2_on(
    nodes_of_p2: Iterable[str] = (),
    costs: Costs = NEAR,
    max_cost: int = 10,
    locations: dict[str, tuple[str, str]] = NODES,
    region_costs: Costs | None = None,
) -> State:
    """A state in which P1 depends on P2, with pods of P2 on these nodes."""
    nodes = [make_node(name, *location) for name, location in locations.items()]
    bound = [("P2", name) for name in nodes_of_p2]
    return make_group_state(
        nodes, make_topology(costs, region_costs), {"P1": {"P2": max_cost}, "P2": {}}, bound, CONFIG
    )


def make_owned_pod(kind: str, *, is_controller: bool = True, **spec: Any) -> Pod:
    """A gated pod with an owner of this kind."""
    owner = {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u-o", "controller": is_controller}
    return make_gated_pod(metadata={"ownerReferences": [owner]}, **spec)


def apply_patch(pod: Pod, patch: dict[str, Any]) -> Pod:
    """The pod after a strategic merge patch by `build_release_patch`."""
    body = msgspec.to_builtins(pod)
    body["metadata"]["annotations"] = patch["metadata"].get("annotations")
    affinity = {**body["spec"].get("affinity", {}), **patch["spec"].get("affinity", {})}
    body["spec"] = {**body["spec"], "schedulingGates": [], "affinity": affinity}
    return msgspec.convert(body, Pod)


def make_zone_term(*zones: str) -> dict[str, Any]:
    """A node selector term."""
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(zones)}]}


def make_required_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """Node affinity with these required terms."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


def list_allowed_nodes(pod: Pod, locations: dict[str, tuple[str, str]] = NODES) -> set[str]:
    """The nodes that a pod's node affinity allows."""
    unmet = Constraints(pod.spec).unmet_constraint
    return {name for name, location in locations.items() if not unmet(name, make_zone_labels(*location))}


def list_preferred_terms(patch: dict[str, Any]) -> list[tuple[int, str, list[str]]]:
    """Weight, label and values of each preferred term that we wrote; hosts are never named by matchFields."""
    affinity = patch["spec"].get("affinity", {"nodeAffinity": {}})["nodeAffinity"]
    terms = []
    for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []):
        assert list(term["preference"]) == ["matchExpressions"], "Karpenter makes no node for a pod with matchFields"
        (expression,) = term["preference"]["matchExpressions"]
        assert expression["operator"] == "In"
        terms.append((term["weight"], expression["key"], expression["values"]))
    return terms


def test_a_zone_in_several_regions_is_scored_by_a_location_that_passes() -> None:
    table = ScoreTable("", [NodeScore(violated=1, cost=1), NodeScore(cost=9), NodeScore(cost=5)])
    locations = [Location("r1", "z1"), Location("r2", "z1"), Location("r1", "z2")]
    assert score_zones(table, locations, range(3)) == ZoneScores({"z1": 0, "z2": 100})


@settings(max_examples=200, deadline=None)
@given(
    nodes_of_p2=st.lists(st.sampled_from(list(NODES)), max_size=4),
    costs=st.dictionaries(
        st.tuples(st.sampled_from(["z1", "z2", "z3"]), st.sampled_from(["z1", "z2", "z3"])),
        st.integers(0, 50),
        max_size=9,
    ),
    max_cost=st.integers(0, 50),
)
def test_affinity_allows_what_the_extender_passes_and_prefers_what_it_scores(
    nodes_of_p2: list[str], costs: dict[tuple[str, str], int], max_cost: int
) -> None:
    state, pod = make_state_with_p2_on(nodes_of_p2, costs, max_cost), make_gated_pod()
    extender = Extender(state, SchedulerConfig(), ExtenderMetrics(CollectorRegistry()), lambda: "")
    request = {"pod": msgspec.to_builtins(pod), "nodenames": list(NODES)}
    passed = msgspec.json.decode(extender.answer_filter(msgspec.json.encode(request)))["nodenames"]
    patch = build_release_patch(state, CONFIG, pod, None)
    if passed:
        assert list_allowed_nodes(apply_patch(pod, patch)) == set(passed)

    request["nodenames"] = passed
    priorities = msgspec.json.decode(extender.answer_prioritize(msgspec.json.encode(request)))
    # A node with a pod of P2 has a score of its own.
    score_by_zone = {
        NODES[entry["host"]][1]: entry["score"] for entry in priorities if entry["host"] not in nodes_of_p2
    }
    weight_by_zone = {zone: weight for weight, _, (zone,) in list_preferred_terms(patch)}
    weights = [weight_by_zone.get(zone, 0) for zone in sorted(score_by_zone, key=lambda zone: score_by_zone[zone])]
    assert weights == sorted(weights), "weights rise with the scores"


@pytest.mark.parametrize(
    ("nodes_of_p2", "allowed"), [(["n1"], {"n1", "n2", "bare", "other"}), (["n1", "bare"], {"n1", "n2"})]
)
def test_nodes_without_zone_label_are_excluded_only_if_refused(nodes_of_p2: list[str], allowed: set[str]) -> None:
    """Unknown costs to a zone exclude no node; a pod on such a node satisfies a dependency only on that node."""
    locations, pod = {**NODES, "bare": ("", ""), "other": ("", "")}, make_gated_pod()
    state = make_state_with_p2_on(nodes_of_p2, locations=locations)
    assert list_allowed_nodes(apply_patch(pod, build_release_patch(state, CONFIG, pod, None)), locations) == allowed


@pytest.mark.parametrize("order", ["abcde", "badce", "edcba"])
def test_a_zone_in_two_regions_gets_the_score_of_its_best_location(order: str) -> None:
    location_by_node = {"a": ("r1", "z1"), "b": ("r2", "z1"), "c": ("r1", "z2"), "d": ("r1", "z3"), "e": ("r1", "z4")}
    locations = {name: location_by_node[name] for name in order}
    costs, region_costs = {("z1", "z2"): 40, ("z3", "z2"): 50, ("z4", "z2"): 10}, {("r2", "r1"): 5}
    state, pod = make_state_with_p2_on(["c"], costs, locations=locations, region_costs=region_costs), make_gated_pod()
    patch = build_release_patch(state, CONFIG, pod, None)
    assert list_allowed_nodes(apply_patch(pod, patch), locations) == {"a", "b", "c", "e"}
    assert list_preferred_terms(patch) == [(33, ZONE, ["z2"]), (18, ZONE, ["z1"])]


@pytest.mark.parametrize(
    ("target", "hostname", "terms"),
    [
        pytest.param(TARGET, "h2", [HOST_TERM, PLANNED_ZONE_TERM, Z1_TERM], id="host and zone"),
        pytest.param(TARGET, "", [PLANNED_ZONE_TERM, Z1_TERM], id="zone without the host's label"),
        pytest.param(Target(node="n2"), "h2", [HOST_TERM, Z1_TERM, Z2_TERM], id="host without a zone"),
        pytest.param(None, "h2", [Z1_TERM, Z2_TERM], id="no target"),
    ],
)
def test_preferred_terms_weigh_the_planned_host_its_zone_and_other_zones_by_score(
    target: Target | None, hostname: str, terms: list[tuple[int, str, list[str]]]
) -> None:
    state = make_state_with_p2_on(["n1"], {("z2", "z1"): 31, ("z3", "z1"): 101}, max_cost=200)
    patch = build_release_patch(state, CONFIG, make_gated_pod(), target, hostname=hostname, may_require_zones=False)
    assert list_preferred_terms(patch) == terms


def test_twenty_zones_at_most_are_preferred() -> None:
    zones = [f"z{i:02}" for i in range(30)]
    locations = {name: ("r", name) for name in ("far", "hub", *zones)}
    costs = {(zone, "hub"): 2 for zone in zones} | {("far", "hub"): 100}
    patch = build_release_patch(make_state_with_p2_on(["hub"], costs, 200, locations), CONFIG, make_gated_pod(), None)
    assert [zone for _, _, (zone,) in list_preferred_terms(patch)] == ["hub", *zones[:19]]


def test_the_planned_zone_is_required_unless_required_terms_failed_before() -> None:
    state, owned = make_state_with_p2_on(), make_owned_pod("ReplicaSet")
    assert list_allowed_nodes(apply_patch(owned, build_release_patch(state, CONFIG, owned, TARGET))) == {"n2"}
    patch = build_release_patch(state, CONFIG, owned, TARGET, hostname="n2", may_require_zones=False)
    assert list_allowed_nodes(apply_patch(owned, patch)) == set(NODES)
    assert list(patch["spec"]["affinity"]["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert NARROWED_ANNOTATION not in patch["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("constraint", "is_required"),
    [
        ({"minDomains": 2}, False),
        ({"minDomains": 1}, True),
        ({"minDomains": 2, "nodeAffinityPolicy": "Ignore"}, True),
        ({"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"}, True),
    ],
)
def test_no_zone_is_required_of_a_pod_with_min_domains(constraint: dict[str, Any], *, is_required: bool) -> None:
    """kube-scheduler counts only the domains that the node affinity allows: with one zone of two, the minimum counts as 0."""
    pod = make_owned_pod("ReplicaSet", topologySpreadConstraints=[{"topologyKey": ZONE, "maxSkew": 1, **constraint}])
    patch = build_release_patch(make_state_with_p2_on(), CONFIG, pod, TARGET)
    assert list_allowed_nodes(apply_patch(pod, patch)) == ({"n2"} if is_required else set(NODES))
    assert list_preferred_terms(patch)[0][1:] == (ZONE, ["z2"])


def test_unplaced_pods_and_daemon_pods_keep_the_users_affinity() -> None:
    """An autoscaler makes a node for what it reads in the pod; a DaemonSet has chosen the node already."""
    state = make_state_with_p2_on(["n1"])
    patch_of_unplaced = build_release_patch(state, CONFIG, make_owned_pod("ReplicaSet"), None, keep_user_affinity=True)
    patch_of_daemon = build_release_patch(state, CONFIG, make_owned_pod("DaemonSet"), TARGET)
    for patch in (patch_of_unplaced, patch_of_daemon):
        assert patch["spec"] == {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
        assert NARROWED_ANNOTATION not in patch["metadata"].get("annotations", {})
    other_owner = make_owned_pod("DaemonSet", is_controller=False)
    assert "affinity" in build_release_patch(state, CONFIG, other_owner, TARGET)["spec"]


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [make_zone_term("z1", "z2")],
        [make_zone_term("z1"), {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n4"]}]}],
        [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, {}],
        [{}],
        [{"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["z3"]}]}],
    ],
    ids=["none", "one", "two", "one-and-empty", "empty-term", "equal-to-ours"],
)
def test_the_users_terms_are_narrowed_and_can_be_restored(terms: list[dict[str, Any]]) -> None:
    """An empty term matches no node; with a requirement of ours it would match some."""
    users_preference = {"weight": 7, "preference": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}}
    preferred_terms = {"preferredDuringSchedulingIgnoredDuringExecution": [users_preference]}
    affinity = preferred_terms | (make_required_affinity(*terms) if terms else {})
    pod = make_owned_pod("ReplicaSet", affinity={"nodeAffinity": affinity})
    patch = build_release_patch(make_state_with_p2_on(["n1"]), CONFIG, pod, None)
    narrowed = apply_patch(pod, patch)
    assert list_allowed_nodes(narrowed) == list_allowed_nodes(pod) & {"n1", "n2"}
    assert patch["spec"]["affinity"]["nodeAffinity"][next(iter(preferred_terms))][0] == users_preference
    assert list_allowed_nodes(without_added_requirement(narrowed)) == list_allowed_nodes(pod)


@pytest.mark.parametrize("annotation", ["", "{", "[" * 100_000, '{"key":"other","operator":"Exists"}'])
def test_affinity_without_our_requirement_is_unchanged(annotation: str) -> None:
    affinities: tuple[Any, ...] = (
        None,
        {"podAntiAffinity": {}},
        {"nodeAffinity": make_required_affinity(make_zone_term("z1"))},
    )
    for affinity in affinities:
        pod = make_gated_pod(metadata={"annotations": {NARROWED_ANNOTATION: annotation}}, affinity=affinity)
        assert without_added_requirement(pod) == pod


def test_in_parity_a_patch_only_opens_the_gate() -> None:
    parity = SchedulerConfig(parity="upstream")
    pod = make_gated_pod(metadata={"resourceVersion": "7", "uid": "u1"})
    assert build_release_patch(State(parity, "netaware-system"), parity, pod, None) == {
        "metadata": {"resourceVersion": "7", "uid": "u1"},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]},
    }


@pytest.mark.parametrize(
    ("scheduler", "label", "placement", "mode"),
    [
        ("network-aware-scheduler", "", "extender", "extender"),
        ("network-aware-scheduler", "", "affinity", "affinity"),
        ("network-aware-scheduler", "affinity", "extender", "affinity"),
        ("network-aware-scheduler", "extender", "affinity", "extender"),
        ("default-scheduler", "", "extender", "affinity"),
        ("default-scheduler", "", "affinity", "affinity"),
        ("default-scheduler", "extender", "extender", "affinity"),
    ],
)
def test_labels_choose_the_placement_and_other_schedulers_get_affinity(
    scheduler: str, label: str, placement: Any, mode: str
) -> None:
    labels = {"netaware.io/placement": label} if label else {}
    pod = make_gated_pod(schedulerName=scheduler, metadata={"labels": labels})
    config = SchedulerConfig(placement=placement)
    state = State(config, "netaware-system")
    assert placement_mode_of_pod(pod, config, state) == mode

    namespace_labels = {"netaware.io/placement": "affinity"}
    state.on_namespace_change("default", None, Object(metadata=ObjectMeta(name="default", labels=namespace_labels)))
    assert placement_mode_of_pod(pod, config, state) == (mode if label else "affinity")
