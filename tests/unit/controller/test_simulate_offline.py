"""`simulate --offline`: the plan of a cluster in a file, whoever wrote the file and however."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.cli import main
from tests.unit.controller import groups

GROUP = "appgroup.diktyo.x-k8s.io"


def plain(version: str, kind: str, made: Any, **metadata: Any) -> dict[str, Any]:
    """An object as a file has it."""
    body = msgspec.to_builtins(made)
    return {"apiVersion": version, "kind": kind, **body, "metadata": {**body["metadata"], **metadata}}


def node(name: str, zone: str = "z0", cpu: str = "8", **more: Any) -> dict[str, Any]:
    return plain("v1", "Node", groups.node(name, zone, cpu, **more))


def pod(name: str, workload: str = "", *, cpu: str = "1", metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """A pod that waits without a gate, of the group when it has a workload."""
    made = plain("v1", "Pod", groups.waiting_pod(name, workload, cpu, **{"schedulingGates": None, **spec}))
    labels = made["metadata"]["labels"] if workload else {}
    return {**made, "metadata": {**made["metadata"], "labels": labels, **(metadata or {})}}


def app_group(*edges: tuple[int, int, int], workloads: int = 2, name: str = "g", **annotations: str) -> dict[str, Any]:
    case = groups.Case((1,) * workloads, edges, (), ())
    return plain(f"{GROUP}/v1alpha1", "AppGroup", groups.group_of(case, name=name, **annotations))


def service(workload: str, distribution: str = "") -> dict[str, Any]:
    return plain("v1", "Service", groups.service(workload, distribution))


def topology(*cost: tuple[int, ...], weight: str = "UserDefined", **annotations: str) -> dict[str, Any]:
    """Costs between the zones z0, z1, ..."""
    body = {"metadata": {"name": "nt-default", "namespace": "default", "annotations": annotations}}
    spec = {"configmapName": "netperf-metrics", "weights": [groups.weight_of(groups.Case((), (), cost, ()), weight)]}
    return plain("networktopology.diktyo.x-k8s.io/v1alpha1", "NetworkTopology", {**body, "spec": spec})


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on objects, on a text, or on a file; its answer as JSON."""

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


TWO_ZONES = (node("a0"), node("a1"), node("b0", "z1"), node("b1", "z1"))
FAR = topology((0, 5), (5, 0))


def test_answer_has_the_stable_fields(simulate: Any) -> None:
    answer = simulate(*TWO_ZONES, FAR, app_group((0, 1, 2)), pod("p", "w0"), pod("q", "w1"))
    assert set(answer) - {"notes"} == {"placements", "unplaced", "cost", "violations", "latency_us", "seconds"}
    assert set(answer["placements"]) == {"default/p", "default/q"}
    assert answer["unplaced"] == {}
    assert answer["violations"] == 0
    assert 0 < answer["latency_us"] <= 100


def test_yaml_and_lists_of_one_kind_are_read(simulate: Any) -> None:
    nodes = {"kind": "NodeList", "items": [{**n, "kind": None} for n in TWO_ZONES]}
    made = pod("p", "w0", metadata={"creationTimestamp": None})
    text = yaml.safe_dump_all([nodes, {"kind": "List", "items": [app_group(workloads=1)]}, made])
    text += "---\nkind: ConfigMap\nmetadata: {name: other, creationTimestamp: 2026-01-01T00:00:00Z}\n"
    assert set(simulate(text=text)["placements"]) == {"default/p"}


def test_a_version_that_is_no_text_is_left_out_with_a_note(simulate: Any) -> None:
    odd = {**app_group(name="odd"), "apiVersion": []}
    answer = simulate(node("n"), app_group(workloads=1), odd, pod("p", "w0"))
    assert set(answer["placements"]) == {"default/p"}


def test_pods_of_no_group_are_left_alone(simulate: Any) -> None:
    lost = pod("lost", "w0", metadata={"labels": {GROUP: "nobody", f"{GROUP}.workload": "w0"}})
    answer = simulate(node("n"), app_group(workloads=1), pod("alone"), lost, pod("p", "w0"))
    assert set(answer["placements"]) == {"default/p"}
    assert not answer["unplaced"]


def test_unplaced_says_why_and_the_command_still_succeeds(simulate: Any) -> None:
    picky = pod("picky", "w1", nodeSelector={"pool": "db"})
    answer = simulate(
        node("n", taints=[{"key": "k", "effect": "NoSchedule"}]),
        node("m", cpu="2"),
        app_group(),
        pod("big", "w0", cpu="64"),
        picky,
    )
    assert answer["placements"] == {}
    assert "1 insufficient cpu" in answer["unplaced"]["default/big"]
    assert "1 taint k" in answer["unplaced"]["default/big"]
    assert "nodeSelector pool=db" in answer["unplaced"]["default/picky"]


@pytest.mark.parametrize(
    ("special", "asked"),
    [
        (node("db", labels={"pool": "db"}), {"nodeSelector": {"pool": "db"}}),
        (
            {**node("db"), "status": {"allocatable": {"cpu": "8", "memory": "1Gi", "pods": 9, "nvidia.com/gpu": 1}}},
            {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
        ),
    ],
)
def test_one_that_asks_for_more_leaves_nobody_unplaced(simulate: Any, special: Any, asked: Any) -> None:
    """One pod with a GPU, a bandwidth or a selector used to make the mean request what no idle host could bear."""
    hosts = [node(f"n{i}", cpu="64") for i in range(3)]
    pods = [pod(f"p{i}", "w0") for i in range(9)]
    answer = simulate(*hosts, special, app_group(), *pods, pod("q", "w1", **asked))
    assert answer["unplaced"] == {}
    assert answer["placements"]["default/q"] == "db"


def test_pods_behind_another_gate_are_planned_around(simulate: Any) -> None:
    held = pod("held", "w0", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    ours = pod("ours", "w1", schedulingGates=[{"name": "netaware.io/topological-order"}])
    answer = simulate(node("n"), app_group(), held, ours)
    assert answer["placements"] == {"default/ours": "n"}
    assert "kueue" in answer["unplaced"]["default/held"]


def test_spread_zone_keeps_a_replica_in_each_of_two_zones(simulate: Any) -> None:
    pods = [pod(f"{w}{i}", w) for w in ("w0", "w1") for i in range(3)]
    objects = (*TWO_ZONES, FAR, *pods)

    def group(spread: str) -> dict[str, Any]:
        return app_group((0, 1, 2), spread=spread)

    def zones(answer: dict[str, Any], workload: str) -> set[str]:
        return {answer["placements"][f"default/{workload}{i}"][0] for i in range(3)}

    spread = simulate(*objects, group("zone"), service("w1", "PreferSameZone"))
    assert zones(spread, "w0") == zones(spread, "w1") == {"a", "b"}
    assert spread["violations"] == 0, "every caller has a replica in its zone, which answers it"
    near = simulate(*objects, group("none"))
    assert len(zones(near, "w0") | zones(near, "w1")) == 1, "where any replica answers, all are together"


@pytest.mark.parametrize(
    ("weight", "node_of_a", "latency_us"), [("NetperfCosts", "n2", 700), ("UserDefined", "n1", 2000)]
)
def test_measured_latency_decides_where_costs_are_flat_and_measured(
    simulate: Any, weight: str, node_of_a: str, latency_us: int
) -> None:
    hosts = (node("n0", cpu="1"), node("n1", "z1"), node("n2", "z2", cpu="2"))
    measured = {"zones": ["z0", "z1", "z2"], "us": [[None, 1900, 700], [1900, None, 900], [700, 900, None]]}
    latencies = {"netaware.io/latency-us": json.dumps(measured)}
    answer = simulate(
        *hosts,
        topology((0, 2, 2), (2, 0, 2), (2, 2, 0), weight=weight, **latencies),
        app_group((0, 1, 10)),
        pod("b", "w1", nodeName="n0"),
        pod("a", "w0"),
    )
    assert answer["placements"] == {"default/a": node_of_a}
    assert answer["latency_us"] == latency_us


def test_what_one_plan_has_given_away_is_taken_for_the_next(simulate: Any) -> None:
    hosts = (node("n0", cpu="4"), node("n1", cpu="4"))
    group, other = app_group(workloads=1), app_group(name="h", workloads=1, objective="parity")
    pods = (
        pod("p", "w0", cpu="3"),
        pod("q", "w0", cpu="3", metadata={"labels": {GROUP: "h", f"{GROUP}.workload": "w0"}}),
    )
    assert set(simulate(*hosts, group, other, *pods)["placements"].values()) == {"n0", "n1"}


def test_odd_files_are_read_as_far_as_they_go(simulate: Any) -> None:
    odd = node("Node.With-Capitals", "Zone.A", cpu="4")
    odd["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    nameless: dict[str, Any] = {"kind": "Pod", "metadata": {}, "spec": {}}
    broken = {"kind": "Pod", "metadata": {"name": "broken", "namespace": "default"}, "spec": {"containers": "none"}}
    bare: dict[str, Any] = {"kind": "Node", "metadata": {"name": "bare"}}
    no_requests = pod("No.Requests", metadata={"labels": {GROUP: "My.Group", f"{GROUP}.workload": "Svc.One"}})
    no_requests["spec"] = {"containers": [{"name": "c", "resources": None}], "nodeName": None}
    group = app_group(name="My.Group", workloads=0)
    group["spec"] = {"workloads": [{"workload": {"name": "x", "selector": "Svc.One"}, "dependencies": None}]}
    group["metadata"]["annotations"] = {"netaware.io/weights": "{", "netaware.io/spread": "everywhere"}
    answer = simulate(odd, bare, nameless, broken, no_requests, group, {"kind": "Service", "metadata": {"name": "s"}})
    assert answer["placements"] == {"default/No.Requests": "Node.With-Capitals"}
    assert "Pod default/broken" in answer["notes"] or "Pod broken" in answer["notes"]
    assert "netaware.io/spread" in answer["notes"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "List"}', "kind: List\nitems:\n"])
def test_nothing_to_plan_is_an_answer(simulate: Any, text: str) -> None:
    answer = simulate(text=text or "\n")
    assert answer["placements"] == answer["unplaced"] == {}
    assert answer["cost"] == answer["violations"] == answer["latency_us"] == 0


def test_same_file_gives_the_same_plan(simulate: Any) -> None:
    pods = [pod(f"{w}{i}", w) for w in ("w0", "w1", "w2") for i in range(4)]
    objects = (*TWO_ZONES, FAR, app_group((0, 1, 2), (1, 2, 3), workloads=3), *pods)
    one, other = simulate(*objects), simulate(*reversed(objects))
    assert one["placements"] == other["placements"]


def test_parity_counts_all_pairs(simulate: Any) -> None:
    bound = [pod("b0", "w1", nodeName="a0"), pod("b1", "w1", nodeName="b0")]
    objects = (*TWO_ZONES, FAR, service("w1", "PreferSameNode"), *bound, pod("a", "w0"))
    parity, time = (simulate(*objects, app_group((0, 1, 2), objective=objective)) for objective in ("parity", "time"))
    assert (parity["cost"], parity["violations"], time["violations"]) == (5, 1, 0)


def test_wrong_usage_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "--filename" in capsys.readouterr().err
    assert main(["simulate", "--offline", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err
    (tmp_path / "bad").write_text("{: [")
    assert main(["simulate", "--offline", str(tmp_path / "bad")]) == 2
    assert "neither JSON nor YAML" in capsys.readouterr().err


def test_a_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps([node("n"), app_group(workloads=1), pod("p", "w0"), pod("q", "w0", cpu="99")]))
    assert main(["simulate", "--offline", str(path)]) == 0
    assert "1 pod without a place" in capsys.readouterr().out
