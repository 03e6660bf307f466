"""`simulate --offline`: the plan of a cluster in a file, also of one that is edited by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.cli import main
from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from tests.unit.controller import groups


def make_manifest(version: str, kind: str, decoded: Any, **metadata: Any) -> dict[str, Any]:
    """An object as a file has it."""
    body = msgspec.to_builtins(decoded)
    return {"apiVersion": version, "kind": kind, **body, "metadata": {**body["metadata"], **metadata}}


def make_node(name: str, zone: str = "z0", cpu: str = "8", **spec: Any) -> dict[str, Any]:
    return make_manifest("v1", "Node", groups.make_zone_node(name, zone, cpu, **spec))


def make_pod(name: str, workload: str = "", *, cpu: str = "1", metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """A pod that waits without a gate, of the group when it has a workload."""
    body = make_manifest("v1", "Pod", groups.make_waiting_pod(name, workload, cpu, **{"schedulingGates": None, **spec}))
    labels = body["metadata"]["labels"] if workload else {}
    return {**body, "metadata": {**body["metadata"], "labels": labels, **(metadata or {})}}


def make_group(*edges: tuple[int, int, int], workloads: int = 2, name: str = "g", **annotations: str) -> dict[str, Any]:
    """An AppGroup with edges of caller, callee and maxNetworkCost."""
    case = groups.GroupCase(replicas=(1,) * workloads, edges=edges, cost=(), slots=())
    return make_manifest(APPGROUPS.api_version, "AppGroup", groups.make_group(case, name=name, **annotations))


def make_topology(*cost_rows: tuple[int, ...]) -> dict[str, Any]:
    """Costs between the zones z0, z1, ..."""
    metadata = {"name": "nt-default", "namespace": "default"}
    spec = {"configmapName": "c", "weights": [groups.make_weight(groups.GroupCase((), (), cost_rows, ()))]}
    return make_manifest(
        "networktopology.diktyo.x-k8s.io/v1alpha1", "NetworkTopology", {"metadata": metadata, "spec": spec}
    )


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on objects or on a text; its answer as JSON."""

    def run(*objects: dict[str, Any], text: str = "") -> dict[str, Any]:
        path = tmp_path / "cluster"
        path.write_text(text or json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        code = main(["simulate", "--offline", str(path), "-o", "json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        answer: dict[str, Any] = json.loads(out)
        answer["notes"] = err
        return answer

    return run


TWO_ZONES = (make_node("a0"), make_node("a1"), make_node("b0", "z1"), make_node("b1", "z1"))
EXPENSIVE = make_topology((0, 5), (5, 0))


def test_answer_has_the_stable_fields(simulate: Any) -> None:
    answer = simulate(*TWO_ZONES, EXPENSIVE, make_group((0, 1, 2)), make_pod("p", "w0"), make_pod("q", "w1"))
    assert set(answer) - {"notes"} == {"placements", "unplaced", "cost", "violations", "latency_us", "seconds"}
    assert set(answer["placements"]) == {"default/p", "default/q"}
    assert answer["unplaced"] == {}
    assert answer["violations"] == 0
    assert 0 < answer["latency_us"] <= 100


def test_yaml_and_lists_of_one_kind_are_read(simulate: Any) -> None:
    nodes = {"kind": "NodeList", "items": [{**node, "kind": None} for node in TWO_ZONES]}
    pending_pod = make_pod("p", "w0", metadata={"creationTimestamp": None})
    documents = yaml.safe_dump_all([nodes, {"kind": "List", "items": [make_group(workloads=1)]}, pending_pod])
    documents += "---\nkind: ConfigMap\nmetadata: {name: other, creationTimestamp: 2026-01-01T00:00:00Z}\n"
    assert set(simulate(text=documents)["placements"]) == {"default/p"}


def test_unplaced_pods_have_reasons_and_pods_without_a_group_are_left_out(
    simulate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod_of_absent_group = make_pod("lost", "w0", metadata={"labels": {APPGROUP_LABEL: "absent", WORKLOAD_LABEL: "w0"}})
    answer = simulate(
        make_node("n", taints=[{"key": "k", "effect": "NoSchedule"}]),
        make_node("m", cpu="2"),
        make_group(),
        make_pod("big", "w0", cpu="64"),
        make_pod("picky", "w1", nodeSelector={"pool": "db"}),
        make_pod("held", "w0", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        make_pod("ours", "w1", schedulingGates=[{"name": "netaware.io/topological-order"}]),
        make_pod("alone"),
        pod_of_absent_group,
    )
    assert answer["placements"] == {"default/ours": "m"}
    assert set(answer["unplaced"]) == {"default/big", "default/picky", "default/held"}
    assert "1 insufficient cpu" in answer["unplaced"]["default/big"]
    assert "1 taint k" in answer["unplaced"]["default/big"]
    assert "nodeSelector pool=db" in answer["unplaced"]["default/picky"]
    assert "kueue" in answer["unplaced"]["default/held"]
    assert main(["simulate", "--offline", str(tmp_path / "cluster")]) == 0
    assert "3 pods unplaced" in capsys.readouterr().out


def test_a_plan_counts_the_placements_of_earlier_plans(simulate: Any) -> None:
    hosts = (make_node("n0", cpu="4"), make_node("n1", cpu="4"))
    group, other = make_group(workloads=1), make_group(name="h", workloads=1, objective="parity")
    pods = (
        make_pod("p", "w0", cpu="3"),
        make_pod("q", "w0", cpu="3", metadata={"labels": {APPGROUP_LABEL: "h", WORKLOAD_LABEL: "w0"}}),
    )
    assert set(simulate(*hosts, group, other, *pods)["placements"].values()) == {"n0", "n1"}


def test_malformed_objects_are_left_out_with_a_note(simulate: Any) -> None:
    odd_node = make_node("Node.With-Capitals", "Zone.A", cpu="4")
    odd_node["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    nameless_pod: dict[str, Any] = {"kind": "Pod", "metadata": {}, "spec": {}}
    broken_pod = {"kind": "Pod", "metadata": {"name": "broken", "namespace": "default"}, "spec": {"containers": "none"}}
    bare_node: dict[str, Any] = {"kind": "Node", "metadata": {"name": "bare"}}
    no_requests = make_pod("No.Requests", metadata={"labels": {APPGROUP_LABEL: "My.Group", WORKLOAD_LABEL: "Svc.One"}})
    no_requests["spec"] = {"containers": [{"name": "c", "resources": None}], "nodeName": None}
    group = make_group(name="My.Group", workloads=0)
    group["spec"] = {"workloads": [{"workload": {"name": "x", "selector": "Svc.One"}, "dependencies": None}]}
    group["metadata"]["annotations"] = {"netaware.io/weights": "{", "netaware.io/spread": "everywhere"}
    odd_version = {**make_group(name="version"), "apiVersion": []}
    service = {"kind": "Service", "metadata": {"name": "s"}}
    answer = simulate(odd_node, bare_node, nameless_pod, broken_pod, no_requests, group, odd_version, service)
    assert answer["placements"] == {"default/No.Requests": "Node.With-Capitals"}
    assert "Pod broken" in answer["notes"]
    assert "netaware.io/spread" in answer["notes"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "List"}', "kind: List\nitems:\n"])
def test_nothing_to_plan_is_an_answer(simulate: Any, text: str) -> None:
    answer = simulate(text=text or "\n")
    assert answer["placements"] == answer["unplaced"] == {}
    assert answer["cost"] == answer["violations"] == answer["latency_us"] == 0


def test_wrong_usage_names_the_flag_or_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("{: [")
    for name, text in (("", "--filename"), ("absent", "absent"), ("bad", "neither JSON nor YAML")):
        assert main(["simulate", *(["--offline", str(tmp_path / name)] if name else [])]) == 2
        assert text in capsys.readouterr().err
