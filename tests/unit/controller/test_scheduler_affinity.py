"""The decision as node affinity says what the extender would say, and leaves the user's own words in place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.cluster.costs import Location
from controller.cluster.eligibility import may_run_on
from controller.cluster.pods import (
    GATE,
    Affinity,
    GroupPod,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PreferredTerm,
    Target,
)
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.scheduler.affinity import (
    NARROWED_ANNOTATION,
    ZoneVerdicts,
    as_asked,
    is_daemon_pod,
    is_replaceable,
    narrow_node_affinity,
    preferred_terms,
    requirement,
    zone_verdicts,
)
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.explain import DECISION_ANNOTATION, decision_of
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.patches import Handover, mode_of, release_patch
from controller.scheduler.rules import Tally, Weighing
from controller.scheduler.state import State
from kubekit.owners import controller_of
from kubekit.selectors import MatchExpression
from kubekit.wire import Node, Object, ObjectMeta, OwnerReference

GROUP, WORKLOAD = "appgroup.diktyo.x-k8s.io", "appgroup.diktyo.x-k8s.io.workload"
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
OWNED = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u-rs", "controller": True}]
CONFIG = SchedulerConfig(placement="affinity")


def cluster(
    nodes: dict[str, tuple[str, str]], placed: list[str], costs: dict[tuple[str, str], int], most: int
) -> State:
    """P1 depends on P2, whose pods are on the nodes of ``placed``."""
    state = State(CONFIG, "netaware-system")
    for name, (region, zone) in nodes.items():
        labels = {k: v for k, v in ((REGION, region), (ZONE, zone)) if v}
        state.take_node(name, None, msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node))
    origins = [{"origin": a, "costList": [{"destination": b, "networkCost": c}]} for (a, b), c in costs.items()]
    weights = [{"name": "UserDefined", "topologyList": [{"topologyKey": ZONE, "originList": origins}]}]
    body = {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": {"weights": weights}}
    state.take_topology("default/nt-default", None, msgspec.convert(body, NetworkTopology))
    references = {s: {"kind": "Deployment", "name": s, "selector": s} for s in ("P1", "P2")}
    workloads = [
        {"workload": references["P1"], "dependencies": [{"workload": references["P2"], "maxNetworkCost": most}]},
        {"workload": references["P2"]},
    ]
    group = {"metadata": {"name": "a1", "namespace": "default"}, "spec": {"workloads": workloads}}
    state.take_group("default/a1", None, msgspec.convert(group, AppGroup))
    for i, where in enumerate(placed):
        metadata = {"name": f"p2-{i}", "namespace": "default", "labels": {GROUP: "a1", WORKLOAD: "P2"}}
        bound = {"metadata": metadata, "spec": {"nodeName": where}, "status": {"phase": "Running"}}
        state.take_pod(f"default/p2-{i}", None, msgspec.convert(bound, GroupPod))
    return state


def gated(owned: bool = False, **spec: Any) -> GroupPod:
    metadata: dict[str, Any] = {"name": "p1", "namespace": "default", "resourceVersion": "7", "uid": "u1"}
    metadata["labels"] = {GROUP: "a1", WORKLOAD: "P1"}
    if owned:
        metadata["ownerReferences"] = OWNED
    spec = {"schedulingGates": [{"name": GATE}], "schedulerName": "network-aware-scheduler", **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, GroupPod)


def patched(pod: GroupPod, patch: dict[str, Any]) -> GroupPod:
    """The pod after a strategic merge patch of ours."""
    body = msgspec.to_builtins(pod)
    body["metadata"]["annotations"] = patch["metadata"].get("annotations")
    affinity = body["spec"].get("affinity", {})
    body["spec"] = {
        **body["spec"],
        "schedulingGates": [],
        "affinity": {**affinity, **patch["spec"].get("affinity", {})},
    }
    return msgspec.convert(body, GroupPod)


def allowed(pod: GroupPod, nodes: dict[str, tuple[str, str]]) -> set[str]:
    labels = {n: {k: v for k, v in ((REGION, r), (ZONE, z)) if v} for n, (r, z) in nodes.items()}
    return {n for n in nodes if may_run_on(pod.spec, n, labels[n])}


NODES = {"n1": ("r", "z1"), "n2": ("r", "z2"), "n3": ("r", "z3"), "n4": ("r", "z3")}


@settings(max_examples=200, deadline=None)
@given(
    placed=st.lists(st.sampled_from(list(NODES)), max_size=4),
    costs=st.dictionaries(
        st.tuples(st.sampled_from(["z1", "z2", "z3"]), st.sampled_from(["z1", "z2", "z3"])),
        st.integers(0, 50),
        max_size=9,
    ),
    most=st.integers(0, 50),
)
def test_affinity_allows_what_the_extender_passes_and_prefers_what_it_scores(
    placed: list[str], costs: dict[tuple[str, str], int], most: int
) -> None:
    state = cluster(NODES, placed, costs, most)
    extender = Extender(state, SchedulerConfig(), ExtenderMetrics(CollectorRegistry()), lambda: "")
    pod = gated()
    question = {"pod": msgspec.to_builtins(pod), "nodenames": list(NODES)}
    passed = msgspec.json.decode(extender.answer_filter(msgspec.json.encode(question)))["nodenames"]
    after = patched(pod, release_patch(state, CONFIG, pod, None, 0))
    if passed:
        assert allowed(after, NODES) == set(passed)
    question["nodenames"] = passed
    answer = msgspec.json.decode(extender.answer_prioritize(msgspec.json.encode(question)))
    scores: dict[str, int] = {}
    for entry in answer:
        zone = NODES[entry["host"]][1]
        if entry["host"] not in placed:  # a dependency's own host has a row of its own
            scores[zone] = entry["score"]
    weighing = state.weigh("default", "a1", "P1")
    verdicts = zone_verdicts(weighing, state.places, sorted(set(state.place_of.values())))
    ranked = sorted(scores, key=lambda zone: scores[zone])
    assert [verdicts.scores.get(zone, 0) for zone in ranked] == sorted(verdicts.scores.get(zone, 0) for zone in ranked)


def test_unlabelled_nodes_stay_possible_unless_they_are_refused() -> None:
    nodes = {**NODES, "bare": ("", "")}
    pod = gated()
    near = cluster(nodes, ["n1"], {("z2", "z1"): 5, ("z3", "z1"): 50}, 10)
    after = patched(pod, release_patch(near, CONFIG, pod, None, 0))
    assert allowed(after, nodes) == {"n1", "n2", "bare"}  # its cost is unknown, which refuses nobody
    refused = cluster(nodes, ["n1", "n1", "bare", "bare", "bare"], {}, 10)
    after = patched(pod, release_patch(refused, CONFIG, pod, None, 0))
    assert "bare" not in allowed(after, nodes) or not refused.weigh("default", "a1", "P1").by_class[0].passes


def test_the_planned_zone_is_required_and_the_planned_host_preferred() -> None:
    state, owned = cluster(NODES, [], {}, 10), gated(owned=True)
    patch = release_patch(state, CONFIG, owned, Target("z2", "r", "n2"), 0, handover=Handover("host-2"))
    assert allowed(patched(owned, patch), NODES) == {"n2"}
    wishes = patch["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    # Karpenter makes no node for a pod with matchFields.
    assert wishes[0] == {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-2"]}]},
    }


def owned_by(kind: str) -> GroupPod:
    pod = gated()
    owner = OwnerReference("v1", kind, "o", "u-o", controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=[owner]))


def test_a_pod_without_a_place_and_one_of_a_daemon_set_keep_the_words_of_their_user() -> None:
    """An autoscaler makes a node for what it reads in the pod; a DaemonSet has chosen the node already."""
    state, target = cluster(NODES, ["n1"], {("z2", "z1"): 5, ("z3", "z1"): 50}, 10), Target("z2", "r", "n2")
    plain = release_patch(state, CONFIG, gated(owned=True), None, 0, handover=Handover(as_asked=True))
    tied = release_patch(state, CONFIG, owned_by("DaemonSet"), target, 0)
    for patch in (plain, tied):
        assert patch["spec"] == {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
        assert NARROWED_ANNOTATION not in patch["metadata"]["annotations"]


def test_what_could_not_be_met_before_is_wished_for_and_not_demanded() -> None:
    state, pod = cluster(NODES, [], {}, 10), gated(owned=True)
    patch = release_patch(state, CONFIG, pod, Target("z2", "r", "n2"), 0, handover=Handover("n2", demands=False))
    assert allowed(patched(pod, patch), NODES) == set(NODES)
    assert list(patch["spec"]["affinity"]["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1", "z2"]}]}],
        [
            {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n4"]}]},
        ],
        [{}],
    ],
    ids=["none", "one", "two", "empty-term"],
)
def test_the_users_requirements_are_narrowed_and_can_be_read_back(terms: list[dict[str, Any]]) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}} if terms else {}
    pod = gated(owned=True, affinity={"nodeAffinity": required})
    state = cluster(NODES, ["n1"], {("z2", "z1"): 5, ("z3", "z1"): 50}, 10)
    after = patched(pod, release_patch(state, CONFIG, pod, None, 0))
    assert allowed(after, NODES) == allowed(pod, NODES) & {"n1", "n2"}
    before, back = pod.spec, as_asked(after).spec
    for name in NODES:
        labels = {REGION: NODES[name][0], ZONE: NODES[name][1]}
        assert may_run_on(back, name, labels) == may_run_on(before, name, labels)


def test_the_gate_is_opened_and_the_pod_as_we_saw_it_is_meant_in_every_mode() -> None:
    state, target = cluster(NODES, [], {}, 10), Target("z2", "r", "n2")
    for config in (CONFIG, SchedulerConfig()):
        patch = release_patch(state, config, gated(), target, 0)
        assert patch["metadata"]["resourceVersion"] == "7"
        assert patch["spec"]["schedulingGates"] == [{"$patch": "delete", "name": GATE}]
        assert ("affinity" in patch["spec"]) == (config is CONFIG)
        annotated = msgspec.json.decode(patch["metadata"]["annotations"]["netaware.io/target"])
        assert annotated == {"zone": "z2", "region": "r", "node": "n2"}


def test_in_parity_nothing_but_the_gate_is_touched() -> None:
    config = SchedulerConfig(parity="upstream")
    state = State(config, "netaware-system")
    assert release_patch(state, config, gated(), None, 0) == {
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
    ],
)
def test_pods_choose_their_mode_and_schedulers_without_us_get_affinity(
    scheduler: str, label: str, placement: Any, mode: str
) -> None:
    pod = gated(schedulerName=scheduler)
    labels = {**(pod.metadata.labels or {}), **({"netaware.io/placement": label} if label else {})}
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))
    config = SchedulerConfig(placement=placement)
    state = State(config, "netaware-system")
    assert mode_of(pod, config, state) == mode
    labels = {"netaware.io/placement": "affinity"}
    state.take_namespace("default", None, Object(metadata=ObjectMeta(name="default", labels=labels)))
    assert mode_of(pod, config, state) == (label or "affinity")


def test_the_decision_is_kept_on_the_pod() -> None:
    state = cluster(NODES, ["n1"], {("z2", "z1"): 5, ("z3", "z1"): 50}, 10)
    pod = gated()
    patch = release_patch(state, CONFIG, pod, Target("z2", "r", "n2"), 1_700_000_000)
    assert len(patch["metadata"]["annotations"][DECISION_ANNOTATION]) < 1000
    kept = decision_of(patched(pod, patch))
    assert kept is not None
    assert kept.by == "plan"
    assert kept.zones == {"z1": (0, True), "z2": (5, True), "z3": (50, False)}
    assert kept.refused == 2
    assert decision_of(pod) is None


def said(
    passing: tuple[str, ...], refused: tuple[str, ...], *, unlabelled: bool | None, scores: dict[str, int] | None = None
) -> ZoneVerdicts:
    return ZoneVerdicts(passing, refused, unlabelled, scores or {})


PLACES = (Location("", ""), Location("r1", "z1"), Location("r2", "z1"), Location("r1", "z2"), Location("r1", "z3"))


def weighed(*tallies: tuple[int, int, int]) -> Weighing:
    """Satisfied, violated and cost per place."""
    return Weighing("", tuple(Tally(*tally) for tally in tallies))


def test_verdicts_of_zones_are_those_of_their_best_places() -> None:
    found = zone_verdicts(
        weighed((1, 0, 3), (0, 1, 90), (1, 0, 40), (1, 1, 20), (0, 1, 1)), PLACES, populated=[0, 1, 2, 3, 4]
    )
    assert found == said(("z1", "z2"), ("z3",), unlabelled=True, scores={"z1": 0, "z2": 100})
    of_both = zone_verdicts(
        weighed((0, 1, 3), (1, 0, 40), (0, 1, 90), (1, 0, 60), (1, 0, 50)), PLACES, populated=[1, 2, 3, 4]
    )
    assert of_both == said(("z1", "z2", "z3"), (), unlabelled=None, scores={"z1": 100, "z2": 0, "z3": 50})
    dear_first = zone_verdicts(
        weighed((0, 1, 0), (1, 0, 90), (1, 0, 40), (1, 0, 20), (1, 0, 60)), PLACES, populated=[1, 2, 3, 4]
    )
    assert dear_first.scores == {"z1": 50, "z2": 100, "z3": 0}, "of a zone in two regions the cheaper place counts"
    two = (*PLACES, Location("", ""))
    either = zone_verdicts(weighed((1, 0, 0), *[(0, 1, 9)] * 4, (0, 1, 0)), two, populated=[0, 5])
    assert either == said((), (), unlabelled=True, scores={})
    assert zone_verdicts(weighed((0, 1, 0), *[(0, 1, 9)] * 4), PLACES, populated=[0, 4]).unlabelled_passes is False
    assert zone_verdicts(Weighing("no dependency"), PLACES, populated=[0, 1]) == ZoneVerdicts()


ZONE_1, NO_ZONE = Target("z1", "r", "n1"), Target("", "", "n1")


@pytest.mark.parametrize(
    ("verdicts", "target", "wanted"),
    [
        (said(("z1",), ("z2",), unlabelled=True), ZONE_1, ("In", ["z1"])),
        (said(("z1",), ("z2",), unlabelled=True), None, ("NotIn", ["z2"])),
        (said(("z1",), ("z2",), unlabelled=True), NO_ZONE, ("NotIn", ["z2"])),
        (said(("z1", "z3"), ("z2",), unlabelled=False), None, ("In", ["z1", "z3"])),
        (said((), ("z2",), unlabelled=False), None, ("NotIn", ["z2"])),
        (said(("z1",), ("z2",), unlabelled=None), None, ("NotIn", ["z2"])),
        (said(("z1",), (), unlabelled=None), None, None),
        (ZoneVerdicts(), None, None),
    ],
)
def test_one_requirement_stands_for_the_filter(
    verdicts: ZoneVerdicts, target: Target | None, wanted: tuple[str, list[str]] | None
) -> None:
    found = requirement(verdicts, target)
    assert (None if found is None else (found.key, found.operator, found.values)) == (
        None if wanted is None else (ZONE, *wanted)
    )


def wishes(verdicts: ZoneVerdicts, target: Target | None, hostname: str = "") -> list[tuple[int, str, list[str]]]:
    found = []
    for term in preferred_terms(verdicts, target, hostname):
        assert not term.preference.match_fields, "Karpenter makes no node for a pod that has these"
        assert term.preference.match_expressions is not None
        (expression,) = term.preference.match_expressions
        assert expression.operator == "In"
        found.append((term.weight, expression.key, expression.values or []))
    return found


def test_wishes_weigh_the_planned_host_its_zone_and_what_the_rule_prefers() -> None:
    verdicts = ZoneVerdicts(
        ("z1", "z2", "z3", "z4"), scores={"z4": 30, "z3": 30, "z2": 100, "z1": 100, "z5": 2, "z6": 3}
    )
    host = (100, "kubernetes.io/hostname", ["h1"])
    others = [(33, ZONE, ["z2"]), (10, ZONE, ["z3"]), (10, ZONE, ["z4"]), (1, ZONE, ["z6"])]
    assert wishes(verdicts, ZONE_1, "h1") == [host, (60, ZONE, ["z1"]), *others]
    assert wishes(verdicts, ZONE_1) == [(60, ZONE, ["z1"]), *others]
    assert wishes(verdicts, NO_ZONE, "h1") == [host, (33, ZONE, ["z1"]), *others]
    assert wishes(verdicts, None, "h1") == [(33, ZONE, ["z1"]), *others], "no host is wished for without a plan"
    assert wishes(ZoneVerdicts(), None) == []
    many = ZoneVerdicts(scores={f"z{i:02}": 100 for i in range(30)})
    assert [values for _, _, values in wishes(many, None)] == [[f"z{i:02}"] for i in range(20)]


def test_the_users_wishes_and_terms_stand_beside_ours() -> None:
    mine = PreferredTerm(7, NodeSelectorTerm(match_expressions=[MatchExpression("pool", "Exists")]))
    by_name = NodeSelectorTerm(match_fields=[MatchExpression("metadata.name", "In", ["n1"])])
    silent, ours = NodeSelectorTerm(), MatchExpression(ZONE, "In", ["z1"])
    own = NodeAffinity(NodeSelector([by_name, silent]), [mine])
    pod = gated(affinity=msgspec.to_builtins(Affinity(own)))
    wish = PreferredTerm(60, NodeSelectorTerm(match_expressions=[ours]))
    found = narrow_node_affinity(pod, ours, [wish])
    assert found.preferred_during_scheduling_ignored_during_execution == [mine, wish]
    narrowed = NodeSelectorTerm([ours], by_name.match_fields)
    assert found.required_during_scheduling_ignored_during_execution == NodeSelector([narrowed, silent])
    assert narrow_node_affinity(pod, None, ()) == own
    assert narrow_node_affinity(gated(), None, ()) == NodeAffinity()
    assert narrow_node_affinity(gated(), ours, ()) == NodeAffinity(NodeSelector([NodeSelectorTerm([ours])]))
    only_wishes = gated(affinity=msgspec.to_builtins(Affinity(NodeAffinity(None, [mine]))))
    assert narrow_node_affinity(only_wishes, ours, ()) == NodeAffinity(NodeSelector([NodeSelectorTerm([ours])]), [mine])


def narrowed_pod(said: str, *terms: NodeSelectorTerm) -> GroupPod:
    pod = gated(affinity=msgspec.to_builtins(Affinity(NodeAffinity(NodeSelector(list(terms))))))
    metadata = msgspec.structs.replace(pod.metadata, annotations={NARROWED_ANNOTATION: said})
    return msgspec.structs.replace(pod, metadata=metadata)


def test_what_we_narrowed_is_taken_out_again_and_the_rest_is_the_users() -> None:
    ours, theirs = MatchExpression(ZONE, "In", ["z1"]), MatchExpression("pool", "Exists")
    said = msgspec.json.encode(ours).decode()

    def asked(*terms: NodeSelectorTerm) -> NodeSelector | None:
        affinity = as_asked(narrowed_pod(said, *terms)).spec.affinity
        assert affinity is not None
        assert affinity.node_affinity is not None
        return affinity.node_affinity.required_during_scheduling_ignored_during_execution

    assert asked(NodeSelectorTerm([theirs, ours])) == NodeSelector([NodeSelectorTerm([theirs])])
    assert asked(NodeSelectorTerm([ours])) is None, "the term was ours alone"
    silent = NodeSelectorTerm()
    assert asked(NodeSelectorTerm([theirs, ours]), silent) == NodeSelector(
        [NodeSelectorTerm([theirs]), NodeSelectorTerm([])]
    )
    for odd in ("", "{", "[" * 100_000):
        pod = narrowed_pod(odd, NodeSelectorTerm([ours]))
        assert as_asked(pod) is pod
    bare = gated()
    marked = msgspec.structs.replace(
        bare, metadata=msgspec.structs.replace(bare.metadata, annotations={NARROWED_ANNOTATION: said})
    )
    assert as_asked(marked) is marked
    apart = gated(affinity={"podAntiAffinity": {}})
    apart = msgspec.structs.replace(apart, metadata=marked.metadata)
    assert as_asked(apart) is apart


@pytest.mark.parametrize(
    ("kind", "controller", "replaceable", "tied"),
    [
        ("ReplicaSet", True, True, False),
        ("StatefulSet", True, True, False),
        ("Job", True, False, False),
        ("DaemonSet", True, False, True),
        ("ReplicaSet", False, False, False),
        ("DaemonSet", False, False, False),
    ],
)
def test_only_the_owner_that_controls_a_pod_makes_it_anew(
    kind: str, controller: bool, replaceable: bool, tied: bool
) -> None:
    owner = OwnerReference(kind=kind, uid="u", controller=controller)
    pod = GroupPod(ObjectMeta(name="p", owner_references=[OwnerReference(kind="Other"), owner]))
    assert controller_of(pod.metadata) == (owner if controller else None)
    assert (is_replaceable(pod), is_daemon_pod(pod)) == (replaceable, tied)
    assert not is_replaceable(GroupPod())
    assert not is_daemon_pod(GroupPod())
