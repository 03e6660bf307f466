"""Objects with the field names of KEP-260 and of its slides become objects that the API server accepts."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.crds import AppGroup, NetworkTopology
from controller.cluster.dependency_graph import build_graph
from controller.convert.spellings import convert_documents
from tests.support.field_spellings import PROPOSAL_GROUP, PROPOSAL_TOPOLOGY, SLIDES_GROUP

CONFIGMAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
NAMES_IN_EXAMPLES = set(re.findall(r"(\w+):", PROPOSAL_GROUP + SLIDES_GROUP + PROPOSAL_TOPOLOGY))
FIELDS = sorted({*NAMES_IN_EXAMPLES, "topologyList", "originList"})
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=25,
)


def convert_one(document: str) -> tuple[dict[str, Any], list[str]]:
    """The converted object of a document, and its changes."""
    objects, changes = convert_documents([yaml.safe_load(document)])
    assert len(objects) == 1
    assert convert_documents(objects) == (objects, []), "accepted objects stay as they are"
    return objects[0], [str(change) for change in changes]


def list_edges(converted: dict[str, Any]) -> list[tuple[str, str, int]]:
    graph = build_graph(msgspec.convert(converted, AppGroup).spec)
    assert graph.faults == ()
    selectors = graph.selectors
    return [(selectors[edge.caller], selectors[edge.callee], edge.max_network_cost) for edge in graph.edges]


@pytest.mark.parametrize("api_group", ["scheduling.sigs.x-k8s.io", "scheduling.sigs.k8s.io", "diktyo.k8s.io"])
def test_the_group_of_the_kep_gets_selectors_from_names(api_group: str) -> None:
    converted, changes = convert_one(PROPOSAL_GROUP.replace("scheduling.sigs.x-k8s.io", api_group))
    assert converted["apiVersion"] == "appgroup.diktyo.x-k8s.io/v1alpha1"
    assert list_edges(converted) == [("P1", "P2", 30)]
    assert any("spec.workloads[0].workload.selector: was missing, is 'P1'" in change for change in changes)
    assert changes[0].startswith(f"AppGroup a1: apiVersion: was '{api_group}/v1alpha1'")


def test_dependencies_of_the_slides_group_move_out_of_references() -> None:
    converted, changes = convert_one(SLIDES_GROUP)
    assert list_edges(converted) == [("P1", "P2", 30)]
    reference = {"kind": "Deployment", "name": "P1-deployment", "selector": "P1"}
    assert converted["spec"]["workloads"][0]["workload"] == reference
    assert converted["spec"]["workloads"][0]["dependencies"][0]["minBandwidth"] == "100Mi"
    assert any("moved out of the workload's reference" in change for change in changes)

    without_selector, _ = convert_one(SLIDES_GROUP.replace("              selector: P2\n", ""))
    assert list_edges(without_selector) == [("P1", "P2", 30)], "found by its name"


def test_the_topology_of_the_kep_gets_the_names_of_the_crd() -> None:
    converted, changes = convert_one(PROPOSAL_TOPOLOGY)
    topology = msgspec.convert(converted, NetworkTopology)
    assert topology.spec.configmap_name == "netperf-metrics"
    weight = topology.weight("UserDefined")
    assert weight is not None
    assert [level.topology_key.rpartition("/")[2] for level in weight.topology_list] == ["region", "zone"]
    assert weight.topology_list[1].origin_list[0].cost_list[0].network_cost == 5
    for name in ("configMapName", "costList", "originCosts", "costs"):
        assert any(change.endswith(f"was spelled {name}") for change in changes)


def test_lists_are_split_and_items_that_are_not_objects_are_reported() -> None:
    group = yaml.safe_load(PROPOSAL_GROUP)
    group_without_kind = {name: group[name] for name in ("metadata", "spec")}
    group_list = {"apiVersion": group["apiVersion"], "kind": "AppGroupList", "items": [group_without_kind, None]}
    documents = [
        [CONFIGMAP],
        {"items": [CONFIGMAP]},
        {"kind": "List", "items": [[CONFIGMAP], group_list, "text"]},
        None,
        3,
    ]
    objects, changes = convert_documents(documents)
    assert [object_["kind"] for object_ in objects] == ["ConfigMap", "ConfigMap", "ConfigMap", "AppGroup"]
    assert objects[3]["apiVersion"] == "appgroup.diktyo.x-k8s.io/v1alpha1"
    assert [str(change) for change in changes if change.field == "items"] == [
        "document 3: items: left out: str instead of an object",
        "document 5: items: left out: int instead of an object",
    ]


@pytest.mark.parametrize("kind", ["AppGroup", [], {}, [1], 3, True])
def test_other_kinds_and_api_groups_are_unchanged(kind: Any) -> None:
    foreign = {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "x"}, "spec": {"x": 1}}
    assert convert_documents([foreign]) == ([foreign], [])


@given(
    st.sampled_from(["AppGroup", "NetworkTopology"]),
    st.dictionaries(st.sampled_from(["workloads", "weights", "numMembers", "configMapName"]), ANY_JSON, max_size=4),
)
def test_a_second_conversion_of_any_document_changes_nothing(kind: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "diktyo.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    objects, _ = convert_documents([document])
    assert convert_documents(objects) == (objects, [])
