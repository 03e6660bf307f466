"""Every spelling of the field becomes an object of ours, everything that changed is told, and what is right stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.graph import build_graph
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.convert.spellings import KNOWN_GROUPS, ConvertError, convert

# The proposal's example, in the spelling of its text.
PROPOSAL_GROUP = """
apiVersion: scheduling.sigs.x-k8s.io/v1alpha1
kind: AppGroup
metadata:
  name: a1
spec:
  numMembers: 3
  topologySortingAlgorithm: KahnSort
  workloads:
    - workload:
        kind: Deployment
        apiVersion: apps/v1
        namespace: default
        name: P1
      dependencies:
        - workload:
            kind: Deployment
            apiVersion: apps/v1
            namespace: default
            name: P2
          minBandwidth: "100Mi"
          maxNetworkCost: 30
    - workload:
        kind: Deployment
        apiVersion: apps/v1
        namespace: default
        name: P2
      dependencies:
        - workload:
            kind: Deployment
            apiVersion: apps/v1
            namespace: default
            name: P3
          minBandwidth: "250Mi"
          maxNetworkCost: 20
    - workload:
        kind: Deployment
        apiVersion: apps/v1
        namespace: default
        name: P3
"""
# The slides' example: selectors, but dependencies inside the reference.
SLIDES_GROUP = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: AppGroup
metadata:
  name: a1
spec:
  numMembers: 3
  topologySortingAlgorithm: KahnSort
  workloads:
    - workload:
        kind: Deployment
        name: P1-deployment
        selector: P1
        apiVersion: apps/v1
        namespace: default
        dependencies:
          - workload:
              kind: Deployment
              name: P2-deployment
              selector: P2
              apiVersion: apps/v1
              namespace: default
              minBandwidth: "100Mi"
              maxNetworkCost: 30
    - workload:
        kind: Deployment
        name: P2-deployment
        selector: P2
        apiVersion: apps/v1
        namespace: default
"""
PROPOSAL_TOPOLOGY = """
# Example Network CRD
apiVersion: diktyo.k8s.io/v1alpha1
kind: NetworkTopology
metadata:
  name: net-topology-test
  namespace: default
spec:
  configMapName: "netperfMetrics"
  weights:
    - name: "UserDefined"
      costList: # between regions or between zones
        - topologyKey: "topology.kubernetes.io/region" # region costs
          originCosts:
            - origin: "us-west-1"
              costs:
                - destination: "us-east-1"
                  bandwidthCapacity: "10Gi"
                  networkCost: 20
            - origin: "us-east-1"
              costs:
                - destination: "us-west-1"
                  bandwidthCapacity: "10Gi"
                  networkCost: 20
        - topologyKey: "topology.kubernetes.io/zone"
          originCosts:
            - origin: "z1"
              costs:
                - destination: "z2"
                  bandwidthCapacity: "1Gi"
                  networkCost: 5
"""


def only(text: str) -> tuple[dict[str, Any], list[str]]:
    objects, changes = convert([yaml.safe_load(text)])
    assert len(objects) == 1
    return objects[0], [str(change) for change in changes]


def as_group(found: dict[str, Any]) -> AppGroup:
    return msgspec.convert(found, AppGroup)


def edges(found: dict[str, Any]) -> list[tuple[str, str, int]]:
    graph = build_graph(as_group(found).spec)
    assert graph.faults == ()
    names = graph.selectors
    return [(names[e.dependant], names[e.dependency], e.max_network_cost) for e in graph.edges]


def test_the_proposals_group_gets_selectors_from_its_names() -> None:
    found, changes = only(PROPOSAL_GROUP)
    assert found["apiVersion"] == "appgroup.diktyo.x-k8s.io/v1alpha1"
    assert edges(found) == [("P1", "P2", 30), ("P2", "P3", 20)]
    assert any("spec.workloads[0].workload.selector: was missing, is 'P1'" in change for change in changes)
    assert any(
        change.startswith("AppGroup a1: apiVersion: was 'scheduling.sigs.x-k8s.io/v1alpha1'") for change in changes
    )


def test_the_slides_group_gets_its_dependencies_out_of_the_reference() -> None:
    found, changes = only(SLIDES_GROUP)
    assert edges(found) == [("P1", "P2", 30)]
    assert found["spec"]["workloads"][0]["workload"] == {
        "kind": "Deployment", "name": "P1-deployment", "selector": "P1", "apiVersion": "apps/v1", "namespace": "default",
    }  # fmt: skip
    assert found["spec"]["workloads"][0]["dependencies"][0]["minBandwidth"] == "100Mi"
    assert any("moved out of the workload's reference" in change for change in changes)


def test_the_proposals_topology_gets_todays_names() -> None:
    found, changes = only(PROPOSAL_TOPOLOGY)
    topology = msgspec.convert(found, NetworkTopology)
    assert topology.spec.configmap_name == "netperf-metrics"
    weight = topology.weight("UserDefined")
    assert weight is not None
    assert [level.topology_key.rpartition("/")[2] for level in weight.topology_list] == ["region", "zone"]
    assert weight.topology_list[1].origin_list[0].cost_list[0].network_cost == 5
    assert sum("was spelled costList" in change for change in changes) == 1
    assert sum("was spelled originCosts" in change for change in changes) == 2
    assert sum("was spelled costs" in change for change in changes) == 3


def test_several_documents_and_lists_are_taken_apart_and_other_kinds_pass_untouched() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(PROPOSAL_GROUP), other]}
    objects, _ = convert([*yaml.safe_load_all(PROPOSAL_GROUP + "\n---\n" + PROPOSAL_TOPOLOGY), listed, None, other])
    assert [o["kind"] for o in objects] == ["AppGroup", "NetworkTopology", "AppGroup", "ConfigMap", "ConfigMap"]
    assert objects[-1] is other


def told_apart(*documents: Any) -> list[tuple[Any, Any, Any]]:
    objects, _ = convert(documents)
    return [(o.get("apiVersion"), o.get("kind"), o["metadata"]["name"]) for o in objects]


def test_items_of_a_list_of_one_kind_are_of_that_kind_and_version_though_they_do_not_say_so() -> None:
    group = {"metadata": {"name": "a"}, "spec": {}}
    ours = [("appgroup.diktyo.x-k8s.io/v1alpha1", "AppGroup", "a")]
    for version in ("appgroup.diktyo.x-k8s.io/v1alpha1", "scheduling.sigs.x-k8s.io/v1alpha1"):
        assert told_apart({"apiVersion": version, "kind": "AppGroupList", "items": [group, None]}) == ours
    stranger = {"apiVersion": "example.com/v1", "kind": "AppGroupList", "items": [group]}
    assert told_apart(stranger) == [("example.com/v1", "AppGroup", "a")]
    service = {"metadata": {"name": "s"}}
    assert told_apart({"apiVersion": "v1", "kind": "ServiceList", "items": [service]}) == [("v1", "Service", "s")]
    assert service == {"metadata": {"name": "s"}}


def test_bare_arrays_lists_in_lists_and_lists_without_a_kind_are_taken_apart() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    one = [("v1", "ConfigMap", "c")]
    for document in (
        [config],
        {"items": [config]},
        [[config]],
        {"kind": "List", "items": [{"kind": "List", "items": [config]}]},
    ):
        assert told_apart(document) == one
    assert told_apart([], {"kind": "List", "items": []}) == []


@pytest.mark.parametrize("odd", [[], {}, [1], 3, True])
def test_a_kind_or_version_that_is_no_text_passes_untouched(odd: Any) -> None:
    found = {"apiVersion": odd, "kind": odd, "metadata": {"name": "x"}}
    assert convert([found, {"kind": "AppGroupList", "items": [{**found, "kind": odd or [0]}]}])[0][0] == found


def test_what_is_no_object_among_others_is_left_out_and_told() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    objects, changes = convert([config, {"kind": "List", "items": [config, "text", 3]}])
    assert objects == [config, config]
    assert list(map(str, changes)) == [
        "document 2: items: left out: a str where an object should be",
        "document 2: items: left out: a int where an object should be",
    ]


def test_a_kind_of_that_name_in_a_strangers_group_passes_untouched() -> None:
    stranger = {"apiVersion": "example.com/v1", "kind": "AppGroup", "spec": {"x": 1}}
    assert convert([stranger]) == ([stranger], [])


@pytest.mark.parametrize("group", sorted(KNOWN_GROUPS))
def test_every_known_group_becomes_ours(group: str) -> None:
    document = {**yaml.safe_load(PROPOSAL_GROUP), "apiVersion": f"{group}/v1alpha1"}
    assert convert([document])[0][0]["apiVersion"] == "appgroup.diktyo.x-k8s.io/v1alpha1"


def test_what_is_right_already_stays_and_nothing_is_told() -> None:
    for text in (PROPOSAL_GROUP, SLIDES_GROUP, PROPOSAL_TOPOLOGY):
        once, _ = only(text)
        again, changes = convert([once])
        assert again == [once]
        assert changes == []


def group(**spec: Any) -> dict[str, Any]:
    base = {"numMembers": 1, "topologySortingAlgorithm": "KahnSort", "workloads": []}
    return {
        "apiVersion": "diktyo.k8s.io/v1alpha1",
        "kind": "AppGroup",
        "metadata": {"name": "g"},
        "spec": {**base, **spec},
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kahn", "KahnSort"),
        ("Reverve Kahn", "ReverseKahn"),
        ("alternate_tarjan", "AlternateTarjan"),
        ("TarjanSort", "TarjanSort"),
        (None, "KahnSort"),
        ("Bogus", "KahnSort"),
    ],
)
def test_algorithms_are_recognised(written: str | None, meant: str) -> None:
    objects, changes = convert([group(topologySortingAlgorithm=written)])
    assert objects[0]["spec"]["topologySortingAlgorithm"] == meant
    assert any("topologySortingAlgorithm" in c.field for c in changes) == (written != meant)


def test_a_reference_that_lies_flat_beside_its_key_is_an_object() -> None:
    item = {"workload": "redis-cart", "kind": "Deployment", "name": "redis-cart-deployment", "selector": "redis-cart"}
    objects, _ = convert([group(workloads=[item, {"workload": "web"}])])
    assert objects[0]["spec"]["workloads"] == [
        {"workload": {"kind": "Deployment", "name": "redis-cart-deployment", "selector": "redis-cart"}},
        {"workload": {"kind": "Deployment", "name": "web", "selector": "web"}},
    ]


def test_what_the_api_server_would_refuse_is_mended_and_told() -> None:
    reference = {"kind": "Deployment", "name": "a", "selector": "a"}
    needs = [
        {"workload": {"name": "b"}, "maxNetworkCost": 20_000, "minBandwidth": "100 Mbps"},
        {"workload": {"name": "b"}, "maxNetworkCost": "7", "minBandwidth": "lots"},
        {"workload": {"name": "a"}},
        "nonsense",
    ]
    twin = {"workload": {**reference, "name": "twin"}}
    document = group(
        numMembers="2",
        workloads=[{"workload": reference, "dependencies": needs}, {"workload": {"name": "b"}}, twin],
        extra=1,
    )
    document["status"] = {"runningWorkloads": 1}
    objects, changes = convert([document])
    spec = objects[0]["spec"]
    assert spec["numMembers"] == 2
    assert [w["workload"]["selector"] for w in spec["workloads"]] == ["a", "b"]
    assert [(d["maxNetworkCost"], d.get("minBandwidth")) for d in spec["workloads"][0]["dependencies"]] == [
        (10_000, "100M"),
        (7, None),
    ]
    assert "status" not in objects[0]
    fields = " ".join(change.field for change in changes)
    for field in (
        "numMembers",
        "spec.extra",
        "status",
        "workloads[2]",
        "dependencies[2]",
        "dependencies[3]",
        "minBandwidth",
        "maxNetworkCost",
    ):
        assert field in fields


def topology(*entries: Any, name: str = "UserDefined") -> dict[str, Any]:
    level = {
        "topologyKey": "topology.kubernetes.io/zone",
        "originList": [{"origin": "z2", "costList": list(entries)}, {"origin": "z1", "costList": []}],
    }
    spec = {"configmapName": "c", "weights": [{"name": name, "topologyList": [level]}]}
    return {
        "apiVersion": "networktopology.diktyo.x-k8s.io/v1alpha1",
        "kind": "NetworkTopology",
        "metadata": {"name": "n"},
        "spec": spec,
    }


def test_a_cost_that_is_missing_or_negative_is_left_out_and_never_becomes_0() -> None:
    entries = [
        {"destination": "a"},
        {"destination": "b", "networkCost": -1},
        {"networkCost": 3},
        {"destination": "c", "networkCost": "4"},
    ]
    objects, changes = convert([topology(*entries)])
    costs = objects[0]["spec"]["weights"][0]["topologyList"][0]["originList"][0]["costList"]
    assert costs == [{"destination": "c", "networkCost": 4}]
    assert len(changes) == 4


def test_netperf_costs_are_sorted_and_the_users_weights_are_not() -> None:
    for name, expected in (("NetperfCosts", ["z1", "z2"]), ("UserDefined", ["z2", "z1"])):
        objects, _ = convert([topology(name=name)])
        origins = objects[0]["spec"]["weights"][0]["topologyList"][0]["originList"]
        assert [o["origin"] for o in origins] == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("just a text", "document 1 is no object"),
        ("kind: AppGroup\nspec: {}", "metadata.name is missing"),
        ("kind: AppGroup\nmetadata: {name: a}", "spec is missing"),
        (
            "kind: AppGroup\nmetadata: {name: a}\nspec: {workloads: [{workload: {kind: Pod}}]}",
            "neither name nor selector",
        ),
        (
            "kind: NetworkTopology\nmetadata: {name: a}\nspec: {weights: [{name: w, topologyList: [{originList: []}]}]}",
            "topologyKey is missing",
        ),
    ],
)
def test_what_cannot_be_converted_is_told_by_document_and_field(text: str, told: str) -> None:
    with pytest.raises(ConvertError, match=told):
        convert([yaml.safe_load(text)])


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["workload", "name", "selector", "dependencies", "minBandwidth", "maxNetworkCost", "kind", "weights", "topologyList", "costList",
         "topologyKey", "originList", "origin", "costs", "destination", "networkCost", "bandwidthCapacity", "workloads", "numMembers"]
    ), inner, max_size=4),
    max_leaves=25,
)  # fmt: skip


@given(
    st.sampled_from(["AppGroup", "NetworkTopology"]),
    st.dictionaries(st.sampled_from(["workloads", "weights", "numMembers", "configMapName"]), junk, max_size=4),
)
def test_any_junk_is_converted_to_something_stable_or_refused(kind: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "diktyo.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    try:
        objects, _ = convert([document])
    except ConvertError:
        return
    assert convert(objects) == (objects, [])
