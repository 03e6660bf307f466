"""The six orders: those of docs/contracts.md, how the others follow from them, and random graphs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.appgroups.order import ALGORITHMS, sort_workloads
from tests.support.online_boutique import BOUTIQUE, BOUTIQUE_CALLS, EXPECTED_ORDERS

BOUTIQUE_CALLEES = [[BOUTIQUE.index(callee) for callee in BOUTIQUE_CALLS.get(name, "").split()] for name in BOUTIQUE]


@pytest.mark.parametrize("algorithm", [*sorted(EXPECTED_ORDERS), "", "Reverse", "FooTarjan"])
def test_online_boutique_has_the_order_of_the_contract_and_unknown_algorithms_are_kahn_sort(algorithm: str) -> None:
    order = sort_workloads(BOUTIQUE_CALLEES, algorithm)
    expected_order = EXPECTED_ORDERS.get(algorithm, EXPECTED_ORDERS["KahnSort"])
    assert " ".join(BOUTIQUE[i] for i in order.sequence) == expected_order


def test_reverse_and_alternate_rearrange_the_plain_order() -> None:
    plain = sort_workloads(BOUTIQUE_CALLEES, "TarjanSort").sequence
    assert sort_workloads(BOUTIQUE_CALLEES, "ReverseTarjan").sequence == plain[::-1]
    alternate = sort_workloads(BOUTIQUE_CALLEES, "AlternateTarjan").sequence
    assert alternate[::2] == plain[: len(alternate[::2])]
    assert alternate[1::2] == plain[::-1][: len(alternate[1::2])]


@given(st.integers(0, 25), st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=80))
def test_orders_have_all_workloads_with_callers_first_unless_a_cycle_is_reported(
    count: int, edges: list[tuple[int, int]]
) -> None:
    callees: list[list[int]] = [[] for _ in range(count)]
    for caller, callee in dict.fromkeys(edges):
        if caller < count and callee < count and caller != callee:
            callees[caller].append(callee)

    for algorithm in ALGORITHMS:
        order = sort_workloads(callees, algorithm)
        assert sorted(order.sequence) == list(range(count))
        assert all(after in callees[before] for before, after in itertools.pairwise(order.cycle))
        assert order.cycle[:1] == order.cycle[-1:]
        rank = {workload: i for i, workload in enumerate(order.sequence)}
        if "Alternate" in algorithm:  # promises no order of callers and callees
            continue
        callers_come_first = [rank[caller] < rank[callee] for caller in range(count) for callee in callees[caller]]
        is_misplaced = any(callers_come_first) if "Reverse" in algorithm else not all(callers_come_first)
        assert is_misplaced == bool(order.cycle)


def test_a_chain_of_5000_needs_no_recursion() -> None:
    callees = [[i + 1] for i in range(4999)] + [[]]
    assert sort_workloads(callees, "TarjanSort").sequence == tuple(range(5000))
