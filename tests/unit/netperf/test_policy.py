"""Costs never decrease with the latency and are whole units, rounded up; errors of a policy name the field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.errors import ConfigError
from netperf.policy import MAX_NETWORK_COST, CostPolicy, cost_with_hysteresis, latency_to_cost, parse_policy

LATENCIES_US = st.floats(min_value=0.01, max_value=1e8)
COSTS = st.one_of(st.none(), st.integers(2, MAX_NETWORK_COST))


@given(COSTS, LATENCIES_US, LATENCIES_US, st.floats(0, 1e6), st.floats(0, 1))
def test_a_cost_never_decreases_with_the_latency(
    current_cost: int | None, latency_us: float, slower_by_us: float, noise_us: float, hysteresis: float
) -> None:
    policy = CostPolicy(hysteresis=hysteresis)
    low_cost = cost_with_hysteresis(current_cost, latency_us, noise_us, policy)
    high_cost = cost_with_hysteresis(current_cost, latency_us + slower_by_us, noise_us, policy)
    assert 2 <= low_cost <= high_cost <= MAX_NETWORK_COST


@pytest.mark.parametrize(
    ("latency_us", "unit_us", "cost"),
    [
        (1, 1000, 2),
        (2000, 1000, 2),
        (2000.01, 1000, 3),
        (5000, 1000, 5),
        (5000.0000001, 1000, 5),
        (730, 100, 8),
        (1e9, 1, 10000),
    ],
)
def test_latency_is_rounded_up_to_units(latency_us: float, unit_us: float, cost: int) -> None:
    assert latency_to_cost(latency_us, CostPolicy(unit_us=unit_us)) == cost


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"unitUs": 0}, "unitUs"),
        ({"unitUs": "1ms"}, "unitUs"),
        ({"percentile": "p95"}, "percentile"),
        ({"expireAfterS": 10}, "expireAfterS"),
        ({"hystersis": 0.1}, "hystersis"),  # an unknown field
        ({"unitUs": float("nan")}, "unitUs"),
    ],
)
def test_errors_of_an_invalid_policy_name_the_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        parse_policy(fields)
