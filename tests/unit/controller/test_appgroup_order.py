"""The six orders: the rows of the contract, validity on any graph, cycles kept together, and no dependence on hashes."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.appgroups.order import ALGORITHMS, Algorithm, order, strong_components

BOUTIQUE_NEEDS = {"P1": "P2 P3 P4 P6 P8 P9 P10", "P2": "P11", "P8": "P2 P3 P4 P5 P6 P7", "P9": "P3"}
BOUTIQUE = [f"P{i}" for i in range(1, 12)]
ROWS = {
    "KahnSort": "P1 P10 P9 P8 P7 P6 P5 P4 P3 P2 P11",
    "AlternateKahn": "P1 P11 P10 P2 P9 P3 P8 P4 P7 P5 P6",
    "ReverseKahn": "P11 P2 P3 P4 P5 P6 P7 P8 P9 P10 P1",
    "TarjanSort": "P1 P10 P9 P8 P7 P5 P6 P4 P3 P2 P11",
}


def adjacency(names: list[str], needs: dict[str, str]) -> list[list[int]]:
    return [[names.index(child) for child in needs.get(name, "").split()] for name in names]


@pytest.mark.parametrize("algorithm", sorted(ROWS))
def test_online_boutique_has_the_contracts_order(algorithm: str) -> None:
    found = order(adjacency(BOUTIQUE, BOUTIQUE_NEEDS), algorithm)
    assert " ".join(BOUTIQUE[i] for i in found.sequence) == ROWS[algorithm]


@pytest.mark.parametrize("base", ["Kahn", "Tarjan"])
def test_reverse_and_alternate_are_made_of_the_plain_order(base: str) -> None:
    children = adjacency(BOUTIQUE, BOUTIQUE_NEEDS)
    plain = order(children, f"{base}Sort").sequence
    assert order(children, f"Reverse{base}").sequence == plain[::-1]
    alternate = order(children, f"Alternate{base}").sequence
    assert alternate[::2] == plain[: len(alternate[::2])]
    assert alternate[1::2] == plain[::-1][: len(alternate[1::2])]


@st.composite
def graphs(draw: st.DrawFn, *, acyclic: bool) -> list[list[int]]:
    """Random adjacency lists, nodes shuffled, so that an acyclic graph's edges point both up and down the spec."""
    count = draw(st.integers(0, 25))
    names = draw(st.permutations(range(count)))
    edges = draw(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=80))
    children: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if a < count and b < count and (a < b if acyclic else a != b):
            children[names[a]].append(names[b])
    return children


@given(graphs(acyclic=False), st.sampled_from(ALGORITHMS))
def test_a_cyclic_graph_is_ordered_all_the_same_with_its_parts_together(
    children: list[list[int]], algorithm: Algorithm
) -> None:
    found = order(children, algorithm)
    assert sorted(found.sequence) == list(range(len(children)))
    parts = strong_components(children)
    if not algorithm.startswith("Alternate"):
        place = {node: i for i, node in enumerate(found.sequence)}
        for part in parts:
            places = sorted(place[node] for node in part)
            assert places == list(range(places[0], places[0] + len(part))), "members of a cycle stand together"
        part_of = {node: i for i, part in enumerate(parts) for node in part}
        for node, below in enumerate(children):
            for child in below:
                if part_of[node] != part_of[child]:
                    assert (place[node] < place[child]) != algorithm.startswith("Reverse")


@given(graphs(acyclic=False))
def test_every_cycle_is_told_by_a_path_that_exists(children: list[list[int]]) -> None:
    found = order(children, "KahnSort")
    assert len(found.cycles) == sum(len(part) > 1 for part in strong_components(children))
    for cycle in found.cycles:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(after in children[before] for before, after in itertools.pairwise(cycle))


@given(graphs(acyclic=False))
def test_parts_are_the_classes_of_mutual_reachability(children: list[list[int]]) -> None:
    reach = [_reachable(children, node) for node in range(len(children))]
    parts = strong_components(children)
    assert sorted(node for part in parts for node in part) == list(range(len(children)))
    for part in parts:
        for a in part:
            assert {b for b in reach[a] if a in reach[b]} | {a} == set(part)


def _reachable(children: list[list[int]], start: int) -> set[int]:
    seen, waiting = set(), list(children[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += children[node]
    return seen


def test_a_chain_of_5000_needs_no_recursion() -> None:
    children = [[i + 1] for i in range(4999)] + [[]]
    assert order(children, "TarjanSort").sequence == tuple(range(5000))


def test_an_unknown_algorithm_is_taken_for_kahn() -> None:
    children = adjacency(BOUTIQUE, BOUTIQUE_NEEDS)
    assert order(children, "Bogus").sequence == order(children, "KahnSort").sequence


def test_orders_do_not_depend_on_the_seed_of_hashes() -> None:
    program = (
        "from controller.appgroups.order import ALGORITHMS, order\n"
        "c = [[1, 2, 5], [3], [3, 1], [4], [2], [], [0, 5], []]\n"
        "print([order(c, a) for a in ALGORITHMS])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
