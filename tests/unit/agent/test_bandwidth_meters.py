"""Traffic is measured against limits by the counters of the pod's device, of the bucket and of the filter."""

from __future__ import annotations

import msgspec
import pytest

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.meters import BUSY_S, EXCESS_SHOWN_S, DeviceCounters, TcCounters, TrafficMeters
from agent.bandwidth.state import CounterSource, LimitStatus

POD = PodBandwidthSpec(namespace="default", name="p", uid="u")
RATE_BPS = 8_000_000
BYTES_PER_S = RATE_BPS // 8
INTERVAL_S = 4
ETHERNET_BYTES, FRAME_BYTES = 14, 1514
PID, VETH, IFB = 42, 20, 30
INGRESS = LimitStatus(
    pod=POD,
    direction="ingress",
    verdict="enforced",
    device_name="veth1",
    wanted_bps=RATE_BPS,
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


def make_counters(received_bytes: float = 0, sent_bytes: float = 0, packets: int = 0) -> dict[int, DeviceCounters]:
    """Counters of the pod's device, by its process."""
    return {PID: DeviceCounters(int(received_bytes), int(sent_bytes), packets)}


def make_tc_counters(bucket_bytes: float = 0, redirected_bytes: float = 0) -> TcCounters:
    return TcCounters({IFB: int(bucket_bytes)}, {VETH: int(redirected_bytes)})


def add_received(meters: TrafficMeters, now_s: float, received_bytes: float) -> None:
    """Add a reading of the ingress limit."""
    meters.add_readings([INGRESS], make_counters(received_bytes), None, now_s)


def test_a_kept_limit_is_never_exceeded_and_the_mean_rate_is_measured() -> None:
    meters, rate = TrafficMeters(), BYTES_PER_S * 1.04  # headers count too
    for now_s in range(0, 400, INTERVAL_S):
        add_received(meters, now_s, now_s * rate)
        assert INGRESS.key not in meters.excess_by_key
    assert meters.meter_by_key[INGRESS.key].bytes_per_s == pytest.approx(rate)


def test_ingress_counts_the_bytes_received_while_counters_are_read() -> None:
    meters = TrafficMeters()
    for now_s in range(0, 40, INTERVAL_S):
        counters, later_counters = (make_counters(at_s * BYTES_PER_S) for at_s in (now_s, now_s + 1))
        meters.add_readings([INGRESS], counters, None, now_s, later_counters)
    assert meters.meter_by_key[INGRESS.key].bytes_per_s == BYTES_PER_S


def test_a_small_excess_is_noticed_within_a_minute() -> None:
    meters = TrafficMeters()
    for now_s in range(0, 60, INTERVAL_S):
        add_received(meters, now_s, now_s * BYTES_PER_S * 1.10)
    assert INGRESS.key in meters.excess_by_key


def test_a_large_excess_is_noticed_at_once_and_shown_for_a_minute() -> None:
    meters, received_bytes = TrafficMeters(), 4 * INTERVAL_S * BYTES_PER_S
    add_received(meters, 0, 0)
    add_received(meters, INTERVAL_S, received_bytes)
    assert meters.excess_by_key[INGRESS.key] == "32000000 bit/s went through for 4 s"
    add_received(meters, INTERVAL_S + EXCESS_SHOWN_S, received_bytes)
    assert INGRESS.key in meters.excess_by_key
    add_received(meters, INTERVAL_S + EXCESS_SHOWN_S + 1, received_bytes)
    assert INGRESS.key not in meters.excess_by_key


@pytest.mark.parametrize("is_bucket_read_first", [True, False], ids=["from-the-start", "once-the-pod-is-busy"])
def test_egress_counts_the_bytes_that_leave_the_bucket(is_bucket_read_first: bool) -> None:
    meters = TrafficMeters()
    for now_s in range(0, 40, INTERVAL_S):
        packets = now_s * 1000  # 12 times the limit, most of which the bucket drops
        counters = make_counters(sent_bytes=packets * FRAME_BYTES, packets=packets)
        tc_counters = make_tc_counters(now_s * BYTES_PER_S, packets * (FRAME_BYTES - ETHERNET_BYTES))
        is_bucket_read = now_s > 0 or is_bucket_read_first
        meters.add_readings([EGRESS], counters, tc_counters if is_bucket_read else None, now_s)
    assert EGRESS.key not in meters.excess_by_key
    assert meters.meter_by_key[EGRESS.key].bytes_per_s == pytest.approx(BYTES_PER_S)


def test_egress_also_counts_bytes_that_the_filter_does_not_redirect() -> None:
    meters = TrafficMeters()
    meters.add_readings([EGRESS], make_counters(), None, 0)
    # Bucket and filter are read for the first time once the pod is busy; only the second reading has a difference.
    for number in (1, 2):
        assert EGRESS.key not in meters.excess_by_key
        counters = make_counters(sent_bytes=20 * number * BYTES_PER_S, packets=100 * number)
        tc_counters = make_tc_counters(number * BYTES_PER_S, number * BYTES_PER_S)
        meters.add_readings([EGRESS], counters, tc_counters, INTERVAL_S * number)
    assert "went through" in meters.excess_by_key[EGRESS.key]


def test_counters_of_buckets_are_needed_only_for_pods_that_were_busy_within_a_minute() -> None:
    meters, busy_counters = TrafficMeters(), make_counters(sent_bytes=INTERVAL_S * BYTES_PER_S)
    meters.add_readings([EGRESS], make_counters(), make_tc_counters(), 0)
    assert meters.find_busy_devices([EGRESS], make_counters(sent_bytes=BYTES_PER_S), INTERVAL_S) == set()
    assert meters.find_busy_devices([EGRESS], busy_counters, INTERVAL_S) == {VETH}
    meters.add_readings([EGRESS], busy_counters, make_tc_counters(), INTERVAL_S)
    assert meters.find_busy_devices([EGRESS], busy_counters, INTERVAL_S + BUSY_S) == {VETH}
    assert meters.find_busy_devices([EGRESS], busy_counters, INTERVAL_S + BUSY_S + 1) == set()


def test_an_excess_in_every_other_interval_is_noticed() -> None:
    meters, sent_bytes = TrafficMeters(), 0
    for number in range(8):
        sent_bytes += 20 * BYTES_PER_S * (number % 2)
        counters, now_s = make_counters(sent_bytes=sent_bytes), INTERVAL_S * number
        is_busy = bool(meters.find_busy_devices([EGRESS], counters, now_s))
        meters.add_readings([EGRESS], counters, make_tc_counters(sent_bytes, sent_bytes) if is_busy else None, now_s)
    assert EGRESS.key in meters.excess_by_key


@pytest.mark.parametrize("is_measurable", [True, False], ids=["measurable", "others-may-drop-them"])
def test_without_a_bucket_all_sent_bytes_count_unless_others_may_drop_them(is_measurable: bool) -> None:
    status, meters = msgspec.structs.replace(UNLIMITED_EGRESS, is_measurable=is_measurable), TrafficMeters()
    for now_s in (0, INTERVAL_S):
        meters.add_readings([status], make_counters(sent_bytes=10 * now_s * BYTES_PER_S), None, now_s)
    assert (status.key in meters.excess_by_key) == is_measurable
    assert meters.meter_by_key[status.key].bytes_per_s == 10 * BYTES_PER_S


def test_counters_that_decrease_are_no_excess_and_pods_without_counters_are_forgotten() -> None:
    meters = TrafficMeters()
    add_received(meters, 0, 100 * BYTES_PER_S)
    add_received(meters, INTERVAL_S, 0)
    assert INGRESS.key not in meters.excess_by_key
    meters.add_readings([INGRESS], {}, None, 2 * INTERVAL_S)
    assert meters.meter_by_key == {}
