"""Repairs of a limit are repeated with a back-off, and a limit that is removed again and again is disputed."""

from __future__ import annotations

import msgspec

from agent.bandwidth.backoff import RepairBackoff
from agent.bandwidth.state import DeleteIfb, SetEgressLimit, SetIngressLimit
from agent.bandwidth.tbf import choose_params
from agent.disputes import DISPUTE_THRESHOLD, DISPUTE_WINDOW_S, MAX_BACKOFF_S

PARAMS, OTHER_PARAMS = (choose_params(rate_bps, 1500) for rate_bps in (8_000_000, 16_000_000))
LIMIT = SetIngressLimit(20, "veth1", PARAMS)
EGRESS_LIMIT = SetEgressLimit(20, "veth1", "bwp1", 1500, PARAMS, "netaware:u")


def test_a_limit_that_is_removed_again_and_again_is_disputed_and_repaired_less_often() -> None:
    backoff, repairs_s = RepairBackoff(), []
    for now_s in range(0, 3600, 6):
        for action in backoff.select_due([LIMIT], now_s):
            backoff.record_attempt(action, now_s, has_succeeded=True)
            repairs_s.append(now_s)
        assert bool(backoff.describe_disputes(now_s)) == (len(repairs_s) >= DISPUTE_THRESHOLD)
    assert len(repairs_s) < 20
    assert repairs_s[-1] - repairs_s[-2] >= MAX_BACKOFF_S

    forgotten_at_s = repairs_s[-1] + DISPUTE_WINDOW_S
    assert backoff.describe_disputes(forgotten_at_s) == {}
    assert backoff.select_due([LIMIT], forgotten_at_s) == [LIMIT]


def test_a_limit_is_disputed_whichever_part_of_it_is_removed() -> None:
    backoff, bucket_only = RepairBackoff(), msgspec.structs.replace(EGRESS_LIMIT, add_filter=False)
    for now_s, action in ((0, EGRESS_LIMIT), (100, bucket_only), (200, EGRESS_LIMIT)):
        assert backoff.select_due([action], now_s) == [action]
        backoff.record_attempt(action, now_s, has_succeeded=True)
    assert (SetEgressLimit, "veth1") in backoff.describe_disputes(250)


def test_a_failed_repair_is_no_dispute_and_another_limit_is_set_at_once() -> None:
    backoff = RepairBackoff()
    delays_s = [backoff.record_attempt(LIMIT, now_s, has_succeeded=False) for now_s in (0, 10, 20, 30)]
    assert delays_s == [5, 10, 20, 40]
    assert backoff.describe_disputes(40) == {}
    assert backoff.select_due([LIMIT], 40) == [], "due at 70 s"

    other_limit, unused_ifb = msgspec.structs.replace(LIMIT, params=OTHER_PARAMS), DeleteIfb("bwp1")
    assert backoff.select_due([other_limit, unused_ifb], 40) == [other_limit, unused_ifb]
