"""`simulate --offline`: the plan of a cluster in a file, whoever wrote the file and however."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cli import main

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
GROUP = "appgroup.diktyo.x-k8s.io"


def node(
    name: str, zone: str = "z0", *, cpu: str = "8", labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A node of one region."""
    zones = {ZONE: zone, REGION: "r"} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**zones, "kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}},
    }


def pod(name: str, workload: str = "", *, group: str = "g", cpu: str = "1", **more: Any) -> dict[str, Any]:
    """A pod, of a group when it has a workload."""
    meta = more.pop("metadata", {})
    labels = {GROUP: group, f"{GROUP}.workload": workload, "app": workload} if workload else {}
    requests = {"cpu": cpu, **more.pop("requests", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels, **meta},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}], **more},
        "status": {"phase": "Running" if "nodeName" in more else "Pending"},
    }


def app_group(
    *edges: tuple[str, str, int], name: str = "g", workloads: str = "abc", **annotations: str
) -> dict[str, Any]:
    """A group of workloads; dependant, dependency, maxNetworkCost."""
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "AppGroup",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {f"netaware.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "numMembers": len(workloads),
            "topologySortingAlgorithm": "KahnSort",
            "workloads": [
                {
                    "workload": {"kind": "Deployment", "name": w, "selector": w},
                    "dependencies": [
                        {"workload": {"kind": "Deployment", "name": to, "selector": to}, "maxNetworkCost": most}
                        for of, to, most in edges
                        if of == w
                    ],
                }
                for w in workloads
            ],
        },
    }


def service(workload: str, distribution: str = "", **spec: Any) -> dict[str, Any]:
    """A Service of a workload's pods."""
    body = {"clusterIP": "10.0.0.9", "selector": {"app": workload}, **spec}
    if distribution:
        body["trafficDistribution"] = distribution
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{workload}-{distribution.lower()}-{len(spec)}", "namespace": "default"},
        "spec": body,
    }


def topology(
    costs: dict[tuple[str, str], int], weight: str = "UserDefined", namespace: str = "default", **annotations: str
) -> dict[str, Any]:
    """Costs between zones, both ways."""
    both = {**costs, **{(b, a): cost for (a, b), cost in costs.items()}}
    origins = sorted({a for a, _ in both})
    return {
        "apiVersion": "networktopology.diktyo.x-k8s.io/v1alpha1",
        "kind": "NetworkTopology",
        "metadata": {"name": "nt-default", "namespace": namespace, "annotations": annotations},
        "spec": {
            "configmapName": "netperf-metrics",
            "weights": [
                {
                    "name": weight,
                    "topologyList": [
                        {
                            "topologyKey": ZONE,
                            "originList": [
                                {
                                    "origin": o,
                                    "costList": [
                                        {"destination": b, "networkCost": c} for (a, b), c in both.items() if a == o
                                    ],
                                }
                                for o in origins
                            ],
                        }
                    ],
                }
            ],
        },
    }


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
FAR = topology({("z0", "z1"): 5})


def test_answer_has_the_stable_fields(simulate: Any) -> None:
    answer = simulate(*TWO_ZONES, FAR, app_group(("a", "b", 2), workloads="ab"), pod("p", "a"), pod("q", "b"))
    assert set(answer) - {"notes"} == {"placements", "unplaced", "cost", "violations", "latency_us", "seconds"}
    assert set(answer["placements"]) == {"default/p", "default/q"}
    assert answer["unplaced"] == {}
    assert answer["violations"] == 0
    assert 0 < answer["latency_us"] <= 100


def test_yaml_and_lists_of_one_kind_are_read(simulate: Any) -> None:
    nodes = {"kind": "NodeList", "items": [{**n, "kind": None} for n in TWO_ZONES]}
    made = pod("p", "a", metadata={"creationTimestamp": None})
    text = yaml.safe_dump_all([nodes, {"kind": "List", "items": [app_group(workloads="a")]}, made])
    text += "---\nkind: ConfigMap\nmetadata: {name: other, creationTimestamp: 2026-01-01T00:00:00Z}\n"
    assert set(simulate(text=text)["placements"]) == {"default/p"}


def test_a_version_that_is_no_text_is_left_out_with_a_note(simulate: Any) -> None:
    odd = {**app_group(name="odd"), "apiVersion": []}
    answer = simulate(node("n"), app_group(workloads="a"), odd, pod("p", "a"))
    assert set(answer["placements"]) == {"default/p"}


def test_pods_of_no_group_are_left_alone(simulate: Any) -> None:
    lost = pod("lost", "a", group="nobody")
    answer = simulate(node("n"), app_group(workloads="a"), pod("alone"), lost, pod("p", "a"))
    assert set(answer["placements"]) == {"default/p"}
    assert not answer["unplaced"]


def test_unplaced_says_why_and_the_command_still_succeeds(simulate: Any) -> None:
    picky = pod("picky", "b", nodeSelector={"pool": "db"})
    answer = simulate(
        node("n", taints=[{"key": "k", "effect": "NoSchedule"}]),
        node("m", cpu="2"),
        app_group(workloads="ab"),
        pod("big", "a", cpu="64"),
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
            {"requests": {"nvidia.com/gpu": "1"}},
        ),
    ],
)
def test_one_that_asks_for_more_leaves_nobody_unplaced(simulate: Any, special: Any, asked: Any) -> None:
    """One pod with a GPU, a bandwidth or a selector used to make the mean request what no idle host could bear."""
    hosts = [node(f"n{i}", cpu="64") for i in range(3)]
    pods = [pod(f"p{i}", "a") for i in range(9)]
    answer = simulate(*hosts, special, app_group(workloads="ab"), *pods, pod("q", "b", **asked))
    assert answer["unplaced"] == {}
    assert answer["placements"]["default/q"] == "db"


def test_pods_behind_another_gate_are_planned_around(simulate: Any) -> None:
    held = pod("held", "a", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    ours = pod("ours", "b", schedulingGates=[{"name": "netaware.io/topological-order"}])
    answer = simulate(node("n"), app_group(workloads="ab"), held, ours)
    assert answer["placements"] == {"default/ours": "n"}
    assert "kueue" in answer["unplaced"]["default/held"]


def test_spread_zone_keeps_a_replica_in_each_of_two_zones(simulate: Any) -> None:
    pods = [pod(f"{w}{i}", w) for w in "ab" for i in range(3)]
    objects = (*TWO_ZONES, FAR, *pods)

    def group(spread: str) -> dict[str, Any]:
        return app_group(("a", "b", 2), workloads="ab", spread=spread)

    def zones(answer: dict[str, Any], workload: str) -> set[str]:
        return {answer["placements"][f"default/{workload}{i}"][0] for i in range(3)}

    spread = simulate(*objects, group("zone"), service("b", "PreferSameZone"))
    assert zones(spread, "a") == zones(spread, "b") == {"a", "b"}
    assert spread["violations"] == 0, "every caller has a replica in its zone, which answers it"
    near = simulate(*objects, group("none"))
    assert len(zones(near, "a") | zones(near, "b")) == 1, "where any replica answers, all are together"


@pytest.mark.parametrize(
    ("weight", "node_of_a", "latency_us"), [("NetperfCosts", "n2", 700), ("UserDefined", "n1", 2000)]
)
def test_measured_latency_decides_where_costs_are_flat_and_measured(
    simulate: Any, weight: str, node_of_a: str, latency_us: int
) -> None:
    hosts = (node("n0", cpu="1"), node("n1", "z1"), node("n2", "z2", cpu="2"))
    flat = {("z0", "z1"): 2, ("z0", "z2"): 2, ("z1", "z2"): 2}
    measured = {"zones": ["z0", "z1", "z2"], "us": [[None, 1900, 700], [1900, None, 900], [700, 900, None]]}
    latencies = {"netaware.io/latency-us": json.dumps(measured)}
    answer = simulate(
        *hosts,
        topology(flat, weight, **latencies),
        app_group(("a", "b", 10), workloads="ab"),
        pod("b", "b", nodeName="n0"),
        pod("a", "a"),
    )
    assert answer["placements"] == {"default/a": node_of_a}
    assert answer["latency_us"] == latency_us


def test_what_one_plan_has_given_away_is_taken_for_the_next(simulate: Any) -> None:
    hosts = (node("n0", cpu="4"), node("n1", cpu="4"))
    group, other = app_group(workloads="a"), app_group(name="h", workloads="a", objective="parity")
    pods = (pod("p", "a", cpu="3"), pod("q", "a", group="h", cpu="3"))
    assert set(simulate(*hosts, group, other, *pods)["placements"].values()) == {"n0", "n1"}


def test_odd_files_are_read_as_far_as_they_go(simulate: Any) -> None:
    odd = node("Node.With-Capitals", "Zone.A", cpu="4")
    odd["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    nameless: dict[str, Any] = {"kind": "Pod", "metadata": {}, "spec": {}}
    broken = {"kind": "Pod", "metadata": {"name": "broken", "namespace": "default"}, "spec": {"containers": "none"}}
    bare: dict[str, Any] = {"kind": "Node", "metadata": {"name": "bare"}}
    no_requests = pod("No.Requests", "Svc.One", group="My.Group")
    no_requests["spec"] = {"containers": [{"name": "c", "resources": None}], "nodeName": None}
    group = app_group(name="My.Group", workloads="")
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
    pods = [pod(f"{w}{i}", w) for w in "abc" for i in range(4)]
    objects = (*TWO_ZONES, FAR, app_group(("a", "b", 2), ("b", "c", 3)), *pods)
    one, other = simulate(*objects), simulate(*reversed(objects))
    assert one["placements"] == other["placements"]


def test_parity_counts_all_pairs(simulate: Any) -> None:
    bound = [pod("b0", "b", nodeName="a0"), pod("b1", "b", nodeName="b0")]
    objects = (*TWO_ZONES, FAR, service("b", "PreferSameNode"), *bound, pod("a", "a"))
    parity, time = (
        simulate(*objects, app_group(("a", "b", 2), workloads="ab", objective=objective))
        for objective in ("parity", "time")
    )
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
    path.write_text(json.dumps([node("n"), app_group(workloads="a"), pod("p", "a"), pod("q", "a", cpu="99")]))
    assert main(["simulate", "--offline", str(path)]) == 0
    assert "1 pod without a place" in capsys.readouterr().out
