"""Measured traffic against limits, and the back-off of repairs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.backoff import RepairBackoff
from agent.bandwidth.counters import parse_device_counters, read_device_counters
from agent.bandwidth.meters import BUSY_S, EXCESS_SHOWN_S, DeviceCounters, TcCounters, TrafficMeters
from agent.bandwidth.rules import with_excess_or_dispute
from agent.bandwidth.state import CounterSource, DeleteIfb, LimitStatus, SetEgressLimit, SetIngressLimit
from agent.bandwidth.tbf import choose_params
from agent.disputes import DISPUTE_WINDOW_S, MAX_BACKOFF_S

POD = PodBandwidthSpec(namespace="default", name="p", uid="u")
RATE = 8_000_000
BYTES_PER_S = RATE // 8
PID, VETH, IFB = 42, 20, 30
INGRESS = LimitStatus(
    pod=POD,
    direction="ingress",
    verdict="enforced",
    device_name="veth1",
    wanted_bps=RATE,
    counter_source=CounterSource(pid=PID, host_device_index=VETH, bucket_device_index=VETH),
    is_measurable=True,
)
EGRESS = msgspec.structs.replace(
    INGRESS,
    direction="egress",
    device_name="bwp1",
    counter_source=CounterSource(pid=PID, host_device_index=VETH, bucket_device_index=IFB),
)
UNLIMITED_EGRESS = msgspec.structs.replace(
    EGRESS, verdict="missing", counter_source=CounterSource(pid=PID, host_device_index=VETH)
)


def counters_by_pid(received: float = 0, sent: float = 0, packets: int = 0) -> dict[int, DeviceCounters]:
    return {PID: DeviceCounters(int(received), int(sent), packets)}


def tc_counters(let_through: float = 0, redirected: float = 0) -> TcCounters:
    return TcCounters({IFB: int(let_through)}, {VETH: int(redirected)})


def test_the_line_of_eth0_is_parsed() -> None:
    table = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 5000      50    0    0    0     0          0         0    90000     900    0    0    0     0       0          0
"""
    assert parse_device_counters(table) == DeviceCounters(5000, 90000, 900)
    assert parse_device_counters(table.replace(b" eth0:", b"eth01:")) is None
    assert parse_device_counters(table[:230]) is None


def test_the_line_of_eth0_is_found_after_those_of_many_devices(tmp_path: Path) -> None:
    lines = [f"veth{n}: " + "0 " * 16 for n in range(1000)]
    file = tmp_path / "42" / "net" / "dev"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join([*lines, "  eth0: 5000 " + "0 " * 7 + "90000 900 " + "0 " * 6]))
    assert read_device_counters(tmp_path, [42]) == {42: DeviceCounters(5000, 90000, 900)}


def test_a_kept_limit_is_never_exceeded_and_the_mean_rate_is_measured() -> None:
    meters, total = TrafficMeters(), 0.0
    for second in range(0, 400, 4):
        meters.add_readings([INGRESS], counters_by_pid(received=total), None, float(second))
        assert INGRESS.key not in meters.excess_by_key
        total += 4 * BYTES_PER_S * 1.04
    assert meters.meter_by_key["u", "ingress"].bytes_per_s == pytest.approx(BYTES_PER_S * 1.04)


def test_ingress_counts_the_bytes_received_while_counters_are_read() -> None:
    meters = TrafficMeters()
    for second in range(0, 40, 4):
        later_counters = counters_by_pid(received=(second + 1) * BYTES_PER_S)
        counters = counters_by_pid(received=second * BYTES_PER_S)
        meters.add_readings([INGRESS], counters, None, float(second), later_counters)
    assert meters.meter_by_key["u", "ingress"].bytes_per_s == BYTES_PER_S


def test_a_small_excess_is_noticed_within_a_minute_and_a_large_one_at_once() -> None:
    meters, total, seconds = TrafficMeters(), 0.0, 0
    while INGRESS.key not in meters.excess_by_key:
        meters.add_readings([INGRESS], counters_by_pid(received=total), None, float(seconds))
        total, seconds = total + 4 * BYTES_PER_S * 1.10, seconds + 4
        assert seconds < 60
    meters = TrafficMeters()
    meters.add_readings([INGRESS], counters_by_pid(), None, 0.0)
    meters.add_readings([INGRESS], counters_by_pid(received=16 * BYTES_PER_S), None, 4.0)
    assert meters.excess_by_key[INGRESS.key] == "32000000 bit/s went through for 4 s"
    # Held for a minute, then forgotten.
    meters.add_readings([INGRESS], counters_by_pid(received=16 * BYTES_PER_S), None, 4.0 + EXCESS_SHOWN_S)
    assert INGRESS.key in meters.excess_by_key
    meters.add_readings([INGRESS], counters_by_pid(received=16 * BYTES_PER_S), None, 5.0 + EXCESS_SHOWN_S)
    assert INGRESS.key not in meters.excess_by_key


@pytest.mark.parametrize("is_bucket_read_first", [True, False], ids=["from-the-start", "once-the-pod-is-busy"])
def test_egress_counts_the_bytes_that_leave_the_bucket(is_bucket_read_first: bool) -> None:
    meters = TrafficMeters()
    for second in range(0, 40, 4):
        packets = second * 1000
        sent = packets * 1514
        counts = tc_counters(let_through=second * BYTES_PER_S, redirected=sent - 14 * packets)
        is_bucket_read = second > 0 or is_bucket_read_first
        counters = counters_by_pid(sent=sent, packets=packets)
        meters.add_readings([EGRESS], counters, counts if is_bucket_read else None, float(second))
    assert EGRESS.key not in meters.excess_by_key
    assert meters.meter_by_key["u", "egress"].bytes_per_s == pytest.approx(BYTES_PER_S)


def test_egress_also_counts_bytes_that_the_filter_does_not_redirect() -> None:
    meters = TrafficMeters()
    meters.add_readings([EGRESS], counters_by_pid(), None, 0.0)
    # Bucket and filter are read for the first time once the pod is busy; only the second reading has a difference.
    for number in (1, 2):
        assert EGRESS.key not in meters.excess_by_key
        counts = tc_counters(let_through=number * BYTES_PER_S, redirected=number * BYTES_PER_S)
        meters.add_readings(
            [EGRESS], counters_by_pid(sent=20 * number * BYTES_PER_S, packets=100 * number), counts, 4.0 * number
        )
    assert "went through" in meters.excess_by_key[EGRESS.key]


def test_counters_of_buckets_are_needed_only_for_pods_that_were_busy_within_a_minute() -> None:
    meters = TrafficMeters()
    meters.add_readings([EGRESS], counters_by_pid(), tc_counters(), 0.0)
    assert meters.find_busy_devices([EGRESS], counters_by_pid(sent=BYTES_PER_S), 4.0) == set()
    busy_counters = counters_by_pid(sent=5 * BYTES_PER_S)
    assert meters.find_busy_devices([EGRESS], busy_counters, 4.0) == {VETH}
    meters.add_readings([EGRESS], busy_counters, tc_counters(), 4.0)
    assert meters.find_busy_devices([EGRESS], busy_counters, 4.0 + BUSY_S) == {VETH}
    assert meters.find_busy_devices([EGRESS], busy_counters, 5.0 + BUSY_S) == set()


def test_an_excess_in_every_other_interval_is_noticed() -> None:
    meters, total = TrafficMeters(), 0.0
    for interval in range(8):
        total += 20 * BYTES_PER_S * (interval % 2)
        counters, now_s = counters_by_pid(sent=total), 4.0 * interval
        is_busy = bool(meters.find_busy_devices([EGRESS], counters, now_s))
        meters.add_readings([EGRESS], counters, tc_counters(total, total) if is_busy else None, now_s)
    assert EGRESS.key in meters.excess_by_key


def test_without_a_bucket_all_sent_bytes_count_unless_others_may_drop_them() -> None:
    for is_measurable in (True, False):
        status, meters = msgspec.structs.replace(UNLIMITED_EGRESS, is_measurable=is_measurable), TrafficMeters()
        meters.add_readings([status], counters_by_pid(), None, 0.0)
        meters.add_readings([status], counters_by_pid(sent=40 * BYTES_PER_S), None, 4.0)
        assert (status.key in meters.excess_by_key) == is_measurable
        assert meters.meter_by_key["u", "egress"].bytes_per_s == 10 * BYTES_PER_S


def test_counters_that_decrease_are_no_excess_and_pods_without_counters_are_forgotten() -> None:
    meters = TrafficMeters()
    meters.add_readings([INGRESS], counters_by_pid(received=100 * BYTES_PER_S), None, 0.0)
    meters.add_readings([INGRESS], counters_by_pid(), None, 4.0)
    assert INGRESS.key not in meters.excess_by_key
    meters.add_readings([INGRESS], {}, None, 8.0)
    assert meters.meter_by_key == {}


def test_an_excess_overrules_the_verdict_on_the_configuration() -> None:
    overflowed = msgspec.structs.replace(INGRESS, verdict="burst-overflow", detail="a burst")
    status = with_excess_or_dispute(overflowed, "much went through", "")
    assert (status.verdict, status.detail) == ("exceeded", "much went through; as set up: burst-overflow, a burst")
    assert with_excess_or_dispute(INGRESS, "", "set 3 times").verdict == "disputed"
    assert with_excess_or_dispute(INGRESS, "", "") is INGRESS


LIMIT = SetIngressLimit(VETH, "veth1", choose_params(RATE, 1500))


def test_a_limit_that_is_removed_again_and_again_is_disputed_and_repaired_less_often() -> None:
    backoff, repairs = RepairBackoff(), []
    for second in range(0, 3600, 6):
        for action in backoff.select_due([LIMIT], float(second)):
            backoff.record_attempt(action, float(second), has_succeeded=True)
            repairs.append(second)
        assert bool(backoff.describe_disputes(float(second))) == (len(repairs) >= 3)
    assert len(repairs) < 20
    assert repairs[-1] - repairs[-2] >= MAX_BACKOFF_S
    # Left alone for ten minutes, it is forgotten.
    assert backoff.describe_disputes(repairs[-1] + DISPUTE_WINDOW_S) == {}
    assert backoff.select_due([LIMIT], repairs[-1] + DISPUTE_WINDOW_S) == [LIMIT]


def test_a_limit_is_disputed_whichever_part_of_it_is_removed() -> None:
    params = choose_params(RATE, 1500)
    with_filter = SetEgressLimit(VETH, "veth1", "bwp1", 1500, params, "netaware:u")
    bucket_only = msgspec.structs.replace(with_filter, add_filter=False)
    backoff = RepairBackoff()
    for number, action in enumerate((with_filter, bucket_only, with_filter)):
        assert backoff.select_due([action], 100.0 * number) == [action]
        backoff.record_attempt(action, 100.0 * number, has_succeeded=True)
    assert (SetEgressLimit, "veth1") in backoff.describe_disputes(250.0)


def test_a_failed_repair_is_no_dispute_and_another_limit_is_set_at_once() -> None:
    backoff = RepairBackoff()
    waits = [backoff.record_attempt(LIMIT, 10.0 * number, has_succeeded=False) for number in range(4)]
    assert waits == [5.0, 10.0, 20.0, 40.0]
    assert backoff.describe_disputes(40.0) == {}
    assert backoff.select_due([LIMIT], 40.0) == []
    other = msgspec.structs.replace(LIMIT, params=choose_params(2 * RATE, 1500))
    orphan = DeleteIfb("bwp1")
    assert backoff.select_due([other, orphan], 40.0) == [other, orphan]
