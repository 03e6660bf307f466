"""What went through against the limit, from counters; and patience with whoever takes limits away."""

from __future__ import annotations

import msgspec
import pytest

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.backoff import HELD_S, MAX_WAIT_S, RepairBackoff
from agent.bandwidth.counters import parse_device_count
from agent.bandwidth.meters import HOLD_S, DeviceCount, KernelCount, TrafficMeters
from agent.bandwidth.rules import with_excess_or_dispute
from agent.bandwidth.state import CounterSource, LimitEgress, LimitIngress, LimitStatus, RemoveDevice
from agent.bandwidth.tbf import bounded_params

POD = PodBandwidthSpec(namespace="default", name="p", uid="u")
RATE = 8_000_000
PER_S = RATE // 8
PID, VETH, PIPE = 42, 20, 30
INTO = LimitStatus(
    pod=POD,
    direction="ingress",
    verdict="enforced",
    device="veth1",
    wanted_bps=RATE,
    counter_source=CounterSource(pid=PID, device=VETH, bucket=VETH),
    is_measurable=True,
)
OUT = msgspec.structs.replace(
    INTO, direction="egress", device="bwp1", counter_source=CounterSource(pid=PID, device=VETH, bucket=PIPE)
)
BARE = msgspec.structs.replace(OUT, verdict="missing", counter_source=CounterSource(pid=PID, device=VETH))


def device(received: float = 0, sent: float = 0, packets: int = 0) -> dict[int, DeviceCount]:
    return {PID: DeviceCount(int(received), int(sent), packets)}


def kernel(let_through: float = 0, redirected: float = 0) -> KernelCount:
    return KernelCount({PIPE: int(let_through)}, {VETH: int(redirected)})


def test_the_line_of_eth0_is_read_from_the_pods_table() -> None:
    table = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 5000      50    0    0    0     0          0         0    90000     900    0    0    0     0       0          0
"""
    assert parse_device_count(table) == DeviceCount(5000, 90000, 900)
    assert parse_device_count(table.replace(b" eth0:", b"eth01:")) is None
    assert parse_device_count(table[:230]) is None


def test_a_limit_that_holds_is_never_exceeded_and_the_mean_is_reported() -> None:
    meters, total = TrafficMeters(), 0.0
    for second in range(0, 400, 4):
        meters.add_readings([INTO], device(received=total), None, float(second))
        assert meters.excess_of(INTO) == ""
        total += 4 * PER_S * 1.04
    assert meters.by_limit["u", "ingress"].bytes_per_s == pytest.approx(PER_S * 1.04)


def test_ten_percent_too_much_is_noticed_in_the_end_and_four_times_as_much_at_once() -> None:
    meters, total, seconds = TrafficMeters(), 0.0, 0
    while not meters.excess_of(INTO):
        meters.add_readings([INTO], device(received=total), None, float(seconds))
        total, seconds = total + 4 * PER_S * 1.10, seconds + 4
        assert seconds < 60
    meters = TrafficMeters()
    meters.add_readings([INTO], device(), None, 0.0)
    meters.add_readings([INTO], device(received=16 * PER_S), None, 4.0)
    assert meters.excess_of(INTO) == "32000000 bit/s went through for 4 s"
    # Held for a minute, then forgotten.
    meters.add_readings([INTO], device(received=16 * PER_S), None, 4.0 + HOLD_S)
    assert meters.excess_of(INTO)
    meters.add_readings([INTO], device(received=16 * PER_S), None, 5.0 + HOLD_S)
    assert meters.excess_of(INTO) == ""


def test_what_a_pod_sends_counts_by_what_its_bucket_lets_through_however_it_floods() -> None:
    meters = TrafficMeters()
    for second in range(0, 40, 4):
        packets = second * 1000
        sent = packets * 1514
        counts = kernel(let_through=second * PER_S, redirected=sent - 14 * packets)
        meters.add_readings([OUT], device(sent=sent, packets=packets), counts, float(second))
    assert meters.excess_of(OUT) == ""
    assert meters.by_limit["u", "egress"].bytes_per_s == pytest.approx(PER_S)


def test_what_goes_past_the_filter_counts_beside_what_the_bucket_lets_through() -> None:
    meters = TrafficMeters()
    meters.add_readings([OUT], device(), None, 0.0)
    # The first reading of a busy pod is where bucket and filter begin to be read, the second tells.
    meters.add_readings([OUT], device(sent=20 * PER_S, packets=100), kernel(let_through=PER_S, redirected=PER_S), 4.0)
    assert meters.excess_of(OUT) == ""
    meters.add_readings(
        [OUT], device(sent=40 * PER_S, packets=200), kernel(let_through=2 * PER_S, redirected=2 * PER_S), 8.0
    )
    assert "went through" in meters.excess_of(OUT)
    meters = TrafficMeters()
    meters.add_readings([BARE], device(), None, 0.0)
    meters.add_readings([BARE], device(sent=20 * PER_S), None, 4.0)
    assert "went through" in meters.excess_of(BARE)


def test_a_pod_that_sends_much_asks_for_the_buckets_counters_and_an_idle_one_does_not() -> None:
    meters = TrafficMeters()
    meters.add_readings([OUT], device(), kernel(), 0.0)
    assert meters.busy_devices([OUT], device(sent=PER_S), 4.0) == set()
    assert meters.busy_devices([OUT], device(sent=5 * PER_S), 4.0) == {VETH}
    meters.add_readings([OUT], device(sent=PER_S), None, 4.0)
    assert meters.excess_of(OUT) == ""


def test_where_others_may_drop_what_was_counted_no_excess_is_claimed() -> None:
    uncertain = msgspec.structs.replace(BARE, is_measurable=False)
    meters = TrafficMeters()
    meters.add_readings([uncertain], device(), None, 0.0)
    meters.add_readings([uncertain], device(sent=40 * PER_S), None, 4.0)
    assert meters.excess_of(uncertain) == ""
    assert meters.by_limit["u", "egress"].bytes_per_s == 10 * PER_S


def test_counters_that_go_back_and_pods_that_go_are_no_excess() -> None:
    meters = TrafficMeters()
    meters.add_readings([INTO], device(received=100 * PER_S), None, 0.0)
    meters.add_readings([INTO], device(), None, 4.0)
    assert meters.excess_of(INTO) == ""
    meters.add_readings([INTO], {}, None, 8.0)
    assert meters.by_limit == {}


def test_the_effect_overrules_what_is_set_up_and_tells_both() -> None:
    judged = with_excess_or_dispute(
        msgspec.structs.replace(INTO, verdict="wrapped", detail="a burst"), "much went through", ""
    )
    assert judged.verdict == "exceeded"
    assert judged.detail == "much went through; as set up: wrapped, a burst"
    assert with_excess_or_dispute(INTO, "", "set 3 times").verdict == "disputed"
    assert with_excess_or_dispute(INTO, "", "") is INTO


LIMIT = LimitIngress(VETH, "veth1", bounded_params(RATE, 1500))


def test_a_limit_that_is_removed_every_six_seconds_is_repaired_ever_less_often_and_called_disputed() -> None:
    patience, repairs = RepairBackoff(), []
    for second in range(0, 3600, 6):
        for action in patience.due([LIMIT], float(second)):
            patience.note(action, float(second), done=True)
            repairs.append(second)
        assert bool(patience.disputed(float(second))) == (len(repairs) >= 3)
    assert len(repairs) < 20
    assert repairs[-1] - repairs[-2] >= MAX_WAIT_S
    # Left alone for ten minutes, it is forgotten.
    assert patience.disputed(repairs[-1] + HELD_S) == {}
    assert patience.due([LIMIT], repairs[-1] + HELD_S) == [LIMIT]


def test_the_same_limit_is_disputed_whichever_part_of_it_is_taken_away() -> None:
    params = bounded_params(RATE, 1500)
    with_filter = LimitEgress(VETH, "veth1", "bwp1", 1500, params, "netaware:u")
    bucket_only = msgspec.structs.replace(with_filter, add_filter=False)
    patience = RepairBackoff()
    for number, action in enumerate((with_filter, bucket_only, with_filter)):
        assert patience.due([action], 100.0 * number) == [action]
        patience.note(action, 100.0 * number, done=True)
    assert ("LimitEgress", "veth1") in patience.disputed(250.0)


def test_a_repair_that_fails_is_no_dispute_and_another_limit_is_set_at_once() -> None:
    patience = RepairBackoff()
    waits = [patience.note(LIMIT, 10.0 * number, done=False) for number in range(4)]
    assert waits == [5.0, 10.0, 20.0, 40.0]
    assert patience.disputed(40.0) == {}
    assert patience.due([LIMIT], 40.0) == []
    other = msgspec.structs.replace(LIMIT, params=bounded_params(2 * RATE, 1500))
    orphan = RemoveDevice(PIPE, "bwp1")
    assert patience.due([other, orphan], 40.0) == [other, orphan]
