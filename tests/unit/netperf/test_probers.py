"""Output of netperf, passphrases, throttling and datagrams are read strictly: an invalid value is missing, or an error."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netperf.histogram import Histogram
from netperf.measurement import TESTS, Measurement, Test
from netperf.plans import ProbeSettings
from netperf.probers import child
from netperf.probers.contention import elapsed_us, find_cpu_stat, read_run_queue_us, read_throttled_us
from netperf.probers.datagram_codec import DATAGRAM_BYTES, Datagram, decode_datagram, derive_key, encode_datagram
from netperf.probers.datagrams import DatagramWindow
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import build_command, choose_transaction_count, find_binary, parse_output
from netperf.probers.passphrase import derive_hourly_passphrase, epoch_at, epochs_to_try
from netperf.probers.responder import DatagramResponder

# As netperf 2.7.0 printed it, for one second of TCP_RR over the loopback.
TCP_RR = """MIN_LATENCY=5
MEAN_LATENCY=16.79
MAX_LATENCY=2202
P50_LATENCY=17
P90_LATENCY=19
P99_LATENCY=32
ELAPSED_TIME=1.00
LOCAL_SEND_CALLS=59343
LOCAL_RECV_CALLS=59342
LOCAL_TRANSPORT_RETRANS=0
REMOTE_TRANSPORT_RETRANS=0
"""


def make_output(**values: str) -> str:
    lines = dict(line.split("=", 1) for line in TCP_RR.splitlines())
    return "\n".join(f"{key}={value}" for key, value in {**lines, **values}.items())


def test_the_output_of_a_complete_run_is_parsed() -> None:
    assert parse_output(TCP_RR, "TCP_RR") == Measurement(
        prober="netperf",
        test="TCP_RR",
        min_us=5,
        mean_us=16.79,
        max_us=2202,
        p50_us=17,
        p90_us=19,
        p99_us=32,
        transactions=59342,
        duration_s=1.0,
        loss_ratio=0.0,
        retransmits=0,
    )


@pytest.mark.parametrize("key", [line.split("=")[0] for line in TCP_RR.splitlines()])
def test_a_missing_selector_in_the_output_is_an_error(key: str) -> None:
    text = "\n".join(line for line in TCP_RR.splitlines() if not line.startswith(f"{key}="))
    with pytest.raises(ProbeFailedError, match=key) as caught:
        parse_output(text, "TCP_RR")
    assert caught.value.reason == "unknown-selector"


def test_percentiles_of_zero_are_too_few_samples() -> None:
    with pytest.raises(ProbeFailedError) as caught:
        parse_output(make_output(P50_LATENCY="0", P90_LATENCY="0", P99_LATENCY="0", LOCAL_RECV_CALLS="1"), "TCP_RR")
    assert caught.value.reason == "too-few-samples"


@pytest.mark.parametrize("value", ["0", "nan", "-nan", "inf", "-1", "-1.00", "", "12ms", "1e300"])
def test_invalid_values_are_missing_and_not_zero(value: str) -> None:
    measurement = parse_output(make_output(P99_LATENCY=value, MIN_LATENCY=value), "TCP_RR")
    assert (measurement.p99_us, measurement.min_us) == (None, None)
    assert measurement.p50_us == 17


@pytest.mark.parametrize(
    ("test", "local", "remote", "received", "retransmits", "loss_ratio"),
    [("TCP_RR", "20", "5", "1000", 25, 0.025), ("UDP_RR", "-1", "-1", "949", None, 0.05)],
)
def test_retransmitted_segments_and_requests_without_reply_are_loss(
    test: Test, local: str, remote: str, received: str, retransmits: int | None, loss_ratio: float
) -> None:
    retransmitted = {"LOCAL_TRANSPORT_RETRANS": local, "REMOTE_TRANSPORT_RETRANS": remote}
    measurement = parse_output(make_output(**retransmitted, LOCAL_SEND_CALLS="1000", LOCAL_RECV_CALLS=received), test)
    assert (measurement.retransmits, measurement.loss_ratio) == (retransmits, loss_ratio)


def test_a_streams_throughput_is_in_bits_per_second_and_its_send_times_are_no_latency() -> None:
    text = make_output(THROUGHPUT="40754.25", THROUGHPUT_UNITS="10^6bits/s")
    measurement = parse_output(text, "TCP_STREAM")
    assert measurement.throughput_bps == 40754.25e6
    assert measurement.p50_us is None


def test_the_command_line_has_the_options_of_each_test() -> None:
    settings = {test: ProbeSettings(test=test, duration_s=1.5) for test in TESTS}
    tcp, udp, stream = (build_command("netperf", "10.0.0.1", settings[test], "hourly", 40) for test in TESTS)
    assert tcp[tcp.index("-l") + 1] == udp[udp.index("-l") + 1] == "-40"
    assert stream[stream.index("-l") + 1] == "2"
    timed_command = build_command("netperf", "10.0.0.1", settings["TCP_RR"], "hourly")
    assert timed_command[timed_command.index("-l") + 1] == "2"
    assert "-D" in tcp[tcp.index("--") :]
    assert udp[udp.index("--") :][1:3] == ["-e", "1"]
    assert "P50_LATENCY" not in stream[-1]
    assert all(command[command.index("--") :].count(",12866") == 1 for command in (tcp, udp, stream))


async def test_an_agents_memory_does_not_grow_with_the_output_of_a_child() -> None:
    tracemalloc.start()
    try:
        run = await child.run_to_end(["sh", "-c", "head -c 40M /dev/zero; head -c 40M /dev/zero >&2; exit 3"], 60.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (run.returncode, len(run.stdout), len(run.stderr)) == (3, child.MAX_OUTPUT_BYTES, child.MAX_OUTPUT_BYTES)
    assert peak_bytes < 20 * child.MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("duration_s", "rtt_s", "transactions"),
    [(1.0, 0.00005, None), (1.0, 0.01, None), (1.0, 0.15, 12), (1.0, 0.4, 12), (5.0, 0.1, None), (5.0, 0.3, 12)],
)
def test_a_run_makes_enough_round_trips_for_a_p90_however_slow_the_path(
    duration_s: float, rtt_s: float, transactions: int | None
) -> None:
    assert choose_transaction_count(duration_s, rtt_s) == transactions


def test_percentiles_are_clamped_to_minimum_and_maximum() -> None:
    # As netperf 2.7.0 prints it for a constant 100.5 ms: its histogram has steps of 10 ms there.
    text = make_output(
        MIN_LATENCY="100512", MAX_LATENCY="100600", P50_LATENCY="105000", P90_LATENCY="108999", P99_LATENCY="109900"
    )
    measurement = parse_output(text, "TCP_RR")
    assert (measurement.p50_us, measurement.p90_us, measurement.p99_us) == (100_600, 100_600, 100_600)


def test_hourly_passphrases_differ_by_epoch_and_do_not_show_the_probing_passphrase() -> None:
    passphrase = b"0123456789abcdef"
    assert derive_hourly_passphrase(passphrase, 5) == derive_hourly_passphrase(passphrase, 5)
    assert len({derive_hourly_passphrase(p, e) for p in (passphrase, b"another passphrase") for e in range(50)}) == 100
    assert "0123456789abcdef" not in derive_hourly_passphrase(passphrase, 5)


@given(st.floats(0, 4e9), st.floats(-1700, 1700))
def test_peers_whose_clocks_differ_by_less_than_half_an_epoch_share_an_hourly_passphrase(
    now_s: float, skew_s: float
) -> None:
    peers_epoch = epoch_at(max(0.0, now_s + skew_s))
    assert peers_epoch in epochs_to_try(now_s)


def test_netperf_is_found_by_variable_as_file_or_directory_else_on_the_path(tmp_path: Path) -> None:
    for name in ("netperf", "netserver"):
        (tmp_path / name).touch(mode=0o755)
    assert find_binary("netserver", {"NETAWARE_NETPERF": str(tmp_path)}) == str(tmp_path / "netserver")
    assert find_binary("netserver", {"NETAWARE_NETPERF": str(tmp_path / "netperf")}) == str(tmp_path / "netserver")
    assert find_binary("netperf", {"PATH": str(tmp_path)}) == str(tmp_path / "netperf")
    assert find_binary("netperf", {"NETAWARE_NETPERF": str(tmp_path / "absent"), "PATH": str(tmp_path)}) is not None
    assert find_binary("netperf", {"PATH": "/nonexistent"}) is None


@pytest.mark.parametrize(
    ("text", "throttled_us"),
    [
        ("usage_usec 5\nnr_periods 1\nnr_throttled 1\nthrottled_usec 123456\n", 123456.0),
        ("nr_periods 1\nnr_throttled 1\nthrottled_time 5000000\n", 5000.0),
        ("usage_usec 5\n", None),
        ("throttled_usec many\n", None),
        ("", None),
    ],
)
def test_throttling_is_read_from_either_cgroup_version_or_unknown(
    tmp_path: Path, text: str, throttled_us: float | None
) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text(text)
    assert read_throttled_us(stat) == throttled_us


def test_an_unknown_reading_gives_no_difference(tmp_path: Path) -> None:
    assert read_throttled_us(tmp_path / "absent") is None
    assert read_throttled_us(None) is None
    assert read_run_queue_us("no-such-process") is None
    assert elapsed_us(5.0, None) is None
    assert elapsed_us(None, 5.0) is None
    assert elapsed_us(3.0, 5.0) == 0.0


@pytest.mark.parametrize(
    ("membership", "stat_path"),
    [
        ("0::/kubepods/pod1\n", "kubepods/pod1/cpu.stat"),
        ("0::/\n", "cpu.stat"),
        ("0::/../outside-of-our-namespace\n", "cpu.stat"),
        ("3:cpu,cpuacct:/pod1\n0::/\n", "cpu,cpuacct/pod1/cpu.stat"),
        ("3:cpu:/pod1\n", "cpu/pod1/cpu.stat"),
        ("3:cpu:/seen/from/the/host\n", "cpu/cpu.stat"),
    ],
)
def test_the_cgroups_cpu_stat_is_found_inside_and_outside_containers(
    tmp_path: Path, membership: str, stat_path: str
) -> None:
    stat = tmp_path / "cgroup" / stat_path
    stat.parent.mkdir(parents=True)
    stat.write_text("throttled_usec 1\n")
    assert find_cpu_stat(membership, tmp_path / "cgroup") == stat
    assert find_cpu_stat("4:memory:/x\n", tmp_path / "cgroup") is None


KEY = derive_key(b"0123456789abcdef")


@given(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1))
def test_a_datagram_is_decoded_only_for_the_side_that_encoded_it(session: bytes, number: int) -> None:
    data = encode_datagram(KEY, b"client", Datagram(session, number))
    assert len(data) == DATAGRAM_BYTES
    assert decode_datagram(KEY, b"client", data) == Datagram(session, number)
    assert decode_datagram(KEY, b"server", data) is None
    assert decode_datagram(derive_key(b"another passphrase"), b"client", data) is None


@given(st.integers(0, DATAGRAM_BYTES * 8 - 1))
def test_a_datagram_that_is_cut_or_has_any_bit_changed_is_ignored(bit: int) -> None:
    data = bytearray(encode_datagram(KEY, b"client", Datagram(b"12345678", 7)))
    assert decode_datagram(KEY, b"client", bytes(data[: bit // 8])) is None
    data[bit // 8] ^= 1 << bit % 8
    assert decode_datagram(KEY, b"client", bytes(data)) is None


def test_a_p99_uses_several_rounds_if_one_has_too_few_datagrams() -> None:
    recent_rtts: list[Histogram] = []
    for number in range(3):
        window = DatagramWindow(0.0)
        for rtt_us in range(60):
            window.record(1000.0 + 1000 * number + rtt_us, 1.0)
        recent_rtts.append(window.rtt_histogram)
        measurement = window.to_measurement(60.0, recent_rtts)
        assert measurement is not None
        assert measurement.percentile_us("p50") == pytest.approx(1030 + 1000 * number, rel=0.01)
        assert (measurement.percentile_us("p99") is None) == (number == 0)
        if number:
            assert measurement.p99_us == pytest.approx(1060 + 1000 * number, rel=0.01)


async def test_each_rejected_sender_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    responder = DatagramResponder("127.0.0.1", 0, b"passphrase" * 8)
    task = asyncio.create_task(responder.run())
    await responder.listening.wait()
    for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((host, 0))
            sender.sendto(b"no tag", ("127.0.0.1", responder.port))
            await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [record.message for record in caplog.records] == ["datagram without a valid tag"] * 2
