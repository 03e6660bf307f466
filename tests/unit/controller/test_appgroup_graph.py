"""Specs become graphs: selectors and names are both honoured, and whatever is wrong is told and stops nothing else."""

from __future__ import annotations

from controller.cluster.graph import Edge, build_graph, namespaces_of
from controller.cluster.resources import AppGroupSpec, Dependency, Workload, WorkloadRef


def ref(selector: str = "", name: str = "", kind: str = "Deployment", namespace: str = "") -> WorkloadRef:
    return WorkloadRef(kind=kind, name=name, selector=selector, namespace=namespace)


def needs(
    selector: str = "", name: str = "", cost: int = 0, rate: str | int | None = None, kind: str = ""
) -> Dependency:
    return Dependency(workload=ref(selector, name, kind), max_network_cost=cost, min_bandwidth=rate)


def spec(*workloads: tuple[WorkloadRef, list[Dependency]]) -> AppGroupSpec:
    return AppGroupSpec(
        num_members=1,
        topology_sorting_algorithm="KahnSort",
        workloads=[Workload(workload=w, dependencies=d or None) for w, d in workloads],
    )


def test_a_dependency_is_found_by_its_selector_whatever_its_name() -> None:
    graph = build_graph(spec((ref("a", "x"), [needs("b", "another-name", cost=5, rate="1M")]), (ref("b", "y"), [])))
    assert graph.edges == (Edge(0, 1, 1_000_000, 5),)
    assert graph.faults == ()
    assert graph.children == [[1], []]


def test_a_dependency_without_selector_is_found_by_name() -> None:
    graph = build_graph(spec((ref("a", "web"), [needs(name="db")]), (ref("b", "db"), [])))
    assert graph.edges == (Edge(0, 1),)


def test_names_may_repeat_and_kind_tells_which_is_meant() -> None:
    workloads: tuple[tuple[WorkloadRef, list[Dependency]], ...] = (
        (ref("a", "web"), [needs(name="db", kind="StatefulSet")]),
        (ref("b", "db"), []),
        (ref("c", "db", "StatefulSet"), []),
    )
    assert build_graph(spec(*workloads)).edges == (Edge(0, 2),)


def test_a_name_that_several_workloads_have_is_told_and_not_guessed() -> None:
    graph = build_graph(spec((ref("a", "web"), [needs(name="db")]), (ref("b", "db"), []), (ref("c", "db"), [])))
    assert graph.edges == ()
    assert [f.problem for f in graph.faults] == ["AmbiguousDependency"]


def test_a_workload_that_is_not_there_is_told_and_the_rest_stands() -> None:
    graph = build_graph(spec((ref("a"), [needs("nowhere"), needs("b")]), (ref("b"), [])))
    assert graph.edges == (Edge(0, 1),)
    assert [(f.problem, f.detail) for f in graph.faults] == [
        ("UnknownDependency", "a: depends on an unknown workload, nowhere")
    ]


def test_a_workload_that_depends_on_itself_is_told() -> None:
    graph = build_graph(spec((ref("a", "x"), [needs(name="x")])))
    assert graph.edges == ()
    assert [f.problem for f in graph.faults] == ["SelfDependency"]


def test_a_repeated_selector_keeps_the_first_workload() -> None:
    graph = build_graph(spec((ref("a", "one"), []), (ref("a", "two"), [needs("a")]), (ref("b"), [])))
    assert [w.name for w in graph.workloads] == ["one", ""]
    assert [f.problem for f in graph.faults] == ["DuplicateSelector"]


def test_a_workload_without_selector_has_no_pods_and_is_told() -> None:
    graph = build_graph(spec((ref("", "x"), []), (ref("b"), [])))
    assert graph.selectors == ("b",)
    assert [f.problem for f in graph.faults] == ["NoSelector"]


def test_of_a_repeated_dependency_the_strictest_demands_count() -> None:
    graph = build_graph(
        spec((ref("a"), [needs("b", cost=9, rate="1k"), needs("b", cost=4, rate="500")]), (ref("b"), []))
    )
    assert graph.edges == (Edge(0, 1, 1000, 4),)


def test_bad_numbers_are_told_and_replaced_by_what_bounds_them() -> None:
    graph = build_graph(
        spec((ref("a"), [needs("b", cost=20_000, rate="much"), needs("c", rate="-5")]), (ref("b"), []), (ref("c"), []))
    )
    assert graph.edges == (Edge(0, 1, 0, 10_000), Edge(0, 2, 0, 0))
    assert [f.problem for f in graph.faults] == ["BadCost", "BadBandwidth", "BadBandwidth"]


def test_an_empty_spec_is_an_empty_graph() -> None:
    assert build_graph(AppGroupSpec()).workloads == ()


def test_a_group_of_500_workloads_is_read() -> None:
    workloads = [(ref(f"w{i}"), [needs(f"w{j}") for j in range(i + 1, min(i + 5, 500))]) for i in range(500)]
    graph = build_graph(spec(*workloads))
    assert len(graph.workloads) == 500
    assert graph.faults == ()


def test_pods_are_looked_for_in_the_groups_namespace_and_in_those_its_workloads_name() -> None:
    assert namespaces_of("shop", [ref("a"), ref("b", namespace="db")]) == {"shop", "db"}
