"""The decision as node affinity says what the extender would say, and leaves the user's own words in place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.resources import AppGroup, NetworkTopology
from controller.scheduler.affinity import as_asked, zone_verdicts
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.eligibility import may_run_on
from controller.scheduler.explain import DECISION_ANNOTATION, decision_of
from controller.scheduler.extender import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.patches import mode_of, release_patch
from controller.scheduler.pods import GATE, GroupPod, Target
from controller.scheduler.state import State
from kubekit.wire import Node

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


def test_the_planned_zone_is_required_of_pods_that_an_owner_would_make_anew_and_of_no_others() -> None:
    state = cluster(NODES, [], {}, 10)
    target = Target("z2", "r", "n2")
    bare, owned = gated(), gated(owned=True)
    assert allowed(patched(bare, release_patch(state, CONFIG, bare, target, 0)), NODES) == set(NODES)
    assert allowed(patched(owned, release_patch(state, CONFIG, owned, target, 0)), NODES) == {"n2"}
    patch = release_patch(state, CONFIG, owned, target, 0)
    wishes = patch["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wishes[0] == {
        "weight": 100,
        "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]},
    }


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
    ],
)
def test_pods_choose_their_mode_and_schedulers_without_us_get_affinity(
    scheduler: str, label: str, placement: Any, mode: str
) -> None:
    pod = gated(schedulerName=scheduler)
    labels = {**(pod.metadata.labels or {}), **({"netaware.io/placement": label} if label else {})}
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))
    assert mode_of(pod, SchedulerConfig(placement=placement)) == mode


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
