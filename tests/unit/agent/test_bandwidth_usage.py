"""What pods use, from the counters of their devices."""

from __future__ import annotations

from agent.bandwidth.state import Judgement
from agent.bandwidth.usage import Usage, parse_counters
from agent.bandwidth.wanted import PodWish

POD = PodWish(namespace="default", name="p", uid="u")
INTO = Judgement(pod=POD, direction="ingress", verdict="enforced", device="veth1")
OUT = Judgement(pod=POD, direction="egress", verdict="enforced", device="bwp1")
UNLIMITED_OUT = Judgement(pod=POD, direction="egress", verdict="missing", device="veth1", received=True)

TEXT = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
 veth1: 5000      50    0    0    0     0          0         0    90000     900    0    0    0     0       0          0
bwp1:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0
"""


def test_counters_are_read_from_the_kernels_table() -> None:
    assert parse_counters(TEXT) == {"lo": (100, 100), "veth1": (5000, 90000), "bwp1": (7, 8)}


def test_each_direction_is_counted_where_its_limit_is() -> None:
    usage = Usage()
    usage.take([INTO, OUT], {"veth1": (0, 1_000), "bwp1": (0, 500)}, 100.0)
    assert usage.rates == {}
    usage.take([INTO, OUT], {"veth1": (9_999, 16_000), "bwp1": (9_999, 8_000)}, 115.0)
    assert usage.rates == {("u", "ingress"): 1000.0, ("u", "egress"): 500.0}


def test_without_a_limit_what_the_veth_receives_counts() -> None:
    usage = Usage()
    usage.take([UNLIMITED_OUT], {"veth1": (1_000, 0)}, 100.0)
    usage.take([UNLIMITED_OUT], {"veth1": (2_000, 0)}, 110.0)
    assert usage.rates == {("u", "egress"): 100.0}


def test_a_pod_whose_device_changed_or_went_has_no_rate() -> None:
    usage = Usage()
    usage.take([UNLIMITED_OUT], {"veth1": (1_000, 0)}, 100.0)
    usage.take([OUT], {"veth1": (2_000, 0), "bwp1": (0, 9_000)}, 110.0)
    assert usage.rates == {}
    usage.take([OUT], {}, 120.0)
    assert usage.rates == {}
