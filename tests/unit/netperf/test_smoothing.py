"""A sample that is written again replaces the newest one in the smoothed latency of its pair of nodes."""

from __future__ import annotations

import statistics

import pytest

from netperf.smoothing import add_sample, replace_newest_sample


@pytest.mark.parametrize(
    ("earlier_us", "replaced_us", "new_us", "window_us"),
    [  # An id says what the replaced sample was to the window, and what the new one is.
        pytest.param([1000.0] * 3, 1000.0, 5000.0, [1000.0] * 3, id="near to outlier"),
        pytest.param([1000.0], 5000.0, 1010.0, [1000.0, 1010.0], id="outlier to near"),
        pytest.param([1000.0], 5000.0, 9000.0, [1000.0], id="outlier to outlier"),
        pytest.param([1000.0] * 3, 1000.0, 1010.0, [1000.0] * 3 + [1010.0], id="near to near"),
        pytest.param([1000.0, 5000.0], 5000.0, 9000.0, [1000.0], id="confirmation to another outlier"),
        pytest.param([1000.0, 5000.0], 5000.0, 1010.0, [1000.0, 1010.0], id="confirmation to near"),
        pytest.param([1000.0, 5000.0], 5000.0, 5010.0, [5000.0, 5010.0], id="confirmation to confirmation"),
        pytest.param([1000.0], 1090.0, 1180.0, [1000.0], id="outlier only without the replaced sample"),
        pytest.param([], 1000.0, 5000.0, [5000.0], id="only sample"),
    ],
)
def test_a_sample_written_again_within_a_round_replaces_the_one_before(
    earlier_us: list[float], replaced_us: float, new_us: float, window_us: list[float]
) -> None:
    smoothed = None
    for us in (*earlier_us, replaced_us):
        smoothed = add_sample(smoothed, us)
    assert smoothed is not None
    smoothed = replace_newest_sample(smoothed, new_us)
    assert smoothed.recent_us == tuple(window_us)
    assert smoothed.pending_us == (None if new_us in window_us else new_us), "an outlier waits for its confirmation"
    assert smoothed.latency_us == statistics.median(window_us)


def test_after_its_only_sample_is_replaced_by_an_outlier_a_pair_has_the_latency_of_its_zones() -> None:
    smoothed = add_sample(None, 1090.0, expected_us=1000.0)
    replaced = replace_newest_sample(smoothed, 5000.0, expected_us=1000.0)
    assert replaced.latency_us == 1000.0
    assert replaced.recent_us == ()
    assert replaced.pending_us == 5000.0
