"""netperf and datagrams measure a pair: options, passphrases, and outputs and packets that are read strictly."""

from __future__ import annotations

import socket
import tracemalloc
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.polling import poll_until
from netperf.histogram import Histogram
from netperf.measurement import TESTS, Measurement
from netperf.plans import ProbeSettings
from netperf.probers import child
from netperf.probers.datagram_codec import DATAGRAM_BYTES, Datagram, decode_datagram, derive_key, encode_datagram
from netperf.probers.datagrams import DatagramWindow
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import build_command, choose_transaction_count, find_binary, parse_output
from netperf.probers.passphrase import derive_hourly_passphrase, epoch_at, epochs_to_try
from netperf.probers.responder import DatagramResponder
from netperf.probers.tcp_ping import connect
from tests.support.tasks import running_tasks

# As netperf 2.7.0 printed it, for one second of TCP_RR over the loopback.
OUTPUT = """MIN_LATENCY=5
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
KEY = derive_key(b"0123456789abcdef")


def make_output(**values: str) -> str:
    """The output with other or further values."""
    value_by_selector = dict(line.split("=", 1) for line in OUTPUT.splitlines()) | values
    return "\n".join(f"{selector}={value}" for selector, value in value_by_selector.items())


def read_duration(command: list[str]) -> str:
    """The value of -l: seconds, or a negative number of transactions."""
    return command[command.index("-l") + 1]


def read_test_options(command: list[str]) -> list[str]:
    """The options after ``--``, which are of the test."""
    return command[command.index("--") + 1 :]


async def test_a_connection_error_without_number_is_reported_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.open_connection", AsyncMock(side_effect=OSError("Multiple exceptions")))
    with pytest.raises(ProbeFailedError, match="Multiple exceptions"):
        await connect("localhost", 1, timeout_s=1)


def test_the_output_of_a_complete_run_is_parsed() -> None:
    assert parse_output(OUTPUT, "TCP_RR") == Measurement(
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


@pytest.mark.parametrize("selector", [line.split("=")[0] for line in OUTPUT.splitlines()])
def test_a_missing_selector_in_the_output_is_an_error(selector: str) -> None:
    output = "\n".join(line for line in OUTPUT.splitlines() if not line.startswith(f"{selector}="))
    with pytest.raises(ProbeFailedError, match=selector) as caught:
        parse_output(output, "TCP_RR")
    assert caught.value.reason == "unknown-selector"


def test_percentiles_of_zero_are_too_few_samples() -> None:
    # As netperf prints them after a single transaction.
    output = make_output(P50_LATENCY="0", P90_LATENCY="0", P99_LATENCY="0", LOCAL_RECV_CALLS="1")
    with pytest.raises(ProbeFailedError) as caught:
        parse_output(output, "TCP_RR")
    assert caught.value.reason == "too-few-samples"


@pytest.mark.parametrize("value", ["0", "nan", "-nan", "inf", "-1", "-1.00", "", "12ms", "1e300"])
def test_invalid_values_are_missing_and_not_zero(value: str) -> None:
    measurement = parse_output(make_output(P99_LATENCY=value, MIN_LATENCY=value), "TCP_RR")
    assert measurement.p99_us is None
    assert measurement.min_us is None
    assert measurement.p50_us == 17


def test_retransmitted_segments_are_loss() -> None:
    output = make_output(LOCAL_TRANSPORT_RETRANS="20", REMOTE_TRANSPORT_RETRANS="5", LOCAL_RECV_CALLS="1000")
    measurement = parse_output(output, "TCP_RR")
    assert measurement.retransmits == 25
    assert measurement.loss_ratio == 0.025


def test_requests_without_a_reply_are_loss_except_the_last_one_which_is_in_flight() -> None:
    no_retransmits = {"LOCAL_TRANSPORT_RETRANS": "-1", "REMOTE_TRANSPORT_RETRANS": "-1"}
    output = make_output(**no_retransmits, LOCAL_SEND_CALLS="1000", LOCAL_RECV_CALLS="949")
    measurement = parse_output(output, "UDP_RR")
    assert measurement.retransmits is None
    assert measurement.loss_ratio == 0.05


def test_a_streams_throughput_is_in_bits_per_second_and_its_send_times_are_no_latency() -> None:
    output = make_output(THROUGHPUT="40754.25", THROUGHPUT_UNITS="10^6bits/s")
    measurement = parse_output(output, "TCP_STREAM")
    assert measurement.throughput_bps == 40754.25e6
    assert measurement.p50_us is None


def test_the_command_line_has_the_options_of_each_test() -> None:
    settings = {test: ProbeSettings(test=test, duration_s=1.5) for test in TESTS}
    tcp, udp, stream = (build_command("netperf", "10.0.0.1", settings[test], "hourly", 40) for test in TESTS)
    assert read_duration(tcp) == read_duration(udp) == "-40"
    assert read_duration(stream) == "2"
    assert read_duration(build_command("netperf", "10.0.0.1", settings["TCP_RR"], "hourly")) == "2"
    assert "-D" in read_test_options(tcp), "without Nagle's algorithm"
    assert read_test_options(udp)[:2] == ["-e", "1"], "a second after a lost request, the next one is sent"
    assert "P50_LATENCY" not in stream[-1]
    assert all(read_test_options(command).count(",12866") == 1 for command in (tcp, udp, stream)), "the data port"


async def test_an_agents_memory_does_not_grow_with_the_output_of_a_child() -> None:
    tracemalloc.start()
    try:
        run = await child.run_to_end(["sh", "-c", "head -c 40M /dev/zero; head -c 40M /dev/zero >&2; exit 3"], 60.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.returncode == 3
    assert len(run.stdout) == len(run.stderr) == child.MAX_OUTPUT_BYTES
    assert peak_bytes < 20 * child.MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("duration_s", "rtt_s", "transactions"),
    [(1.0, 0.00005, None), (1.0, 0.01, None), (1.0, 0.15, 12), (1.0, 0.4, 12), (5.0, 0.1, None), (5.0, 0.3, 12)],
)
def test_a_run_on_a_slow_path_ends_after_twelve_transactions_instead_of_its_duration(
    duration_s: float, rtt_s: float, transactions: int | None
) -> None:
    assert choose_transaction_count(duration_s, rtt_s) == transactions


def test_percentiles_are_clamped_to_minimum_and_maximum() -> None:
    # As netperf 2.7.0 prints it for a constant 100.5 ms: its histogram has steps of 10 ms there.
    output = make_output(
        MIN_LATENCY="100512", MAX_LATENCY="100600", P50_LATENCY="105000", P90_LATENCY="108999", P99_LATENCY="109900"
    )
    measurement = parse_output(output, "TCP_RR")
    assert measurement.p50_us == measurement.p90_us == measurement.p99_us == 100_600


def test_hourly_passphrases_differ_by_epoch_and_do_not_show_the_probing_passphrase() -> None:
    passphrases = (b"0123456789abcdef", b"another passphrase")
    hourly = {derive_hourly_passphrase(passphrase, epoch) for passphrase in passphrases for epoch in range(50)}
    assert len(hourly) == 2 * 50
    assert derive_hourly_passphrase(passphrases[0], 5) in hourly, "each call gives the same one"
    assert not any("0123456789abcdef" in passphrase for passphrase in hourly)


@given(st.floats(0, 4e9), st.floats(-1700, 1700))
def test_peers_whose_clocks_differ_by_less_than_half_an_epoch_share_a_passphrase(now_s: float, skew_s: float) -> None:
    peers_epoch = epoch_at(max(0.0, now_s + skew_s))
    assert peers_epoch in epochs_to_try(now_s)


@pytest.mark.parametrize(
    "variables",
    [
        {"NETAWARE_NETPERF": "FOLDER", "PATH": "/nonexistent"},
        {"NETAWARE_NETPERF": "FOLDER/netperf", "PATH": "/nonexistent"},
        {"PATH": "FOLDER"},
    ],
)
def test_netserver_is_found_by_the_variable_or_on_the_path(tmp_path: Path, variables: dict[str, str]) -> None:
    (tmp_path / "netserver").touch(mode=0o755)
    environment = {name: value.replace("FOLDER", str(tmp_path)) for name, value in variables.items()}
    assert find_binary("netserver", environment) == str(tmp_path / "netserver")
    assert find_binary("netserver", {"PATH": "/nonexistent"}) is None


@given(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1))
def test_a_datagram_is_decoded_only_for_the_side_that_encoded_it(session: bytes, number: int) -> None:
    packet = encode_datagram(KEY, b"client", Datagram(session, number))
    assert len(packet) == DATAGRAM_BYTES
    assert decode_datagram(KEY, b"client", packet) == Datagram(session, number)
    assert decode_datagram(KEY, b"server", packet) is None
    assert decode_datagram(derive_key(b"another passphrase"), b"client", packet) is None


@given(st.integers(0, DATAGRAM_BYTES * 8 - 1))
def test_a_datagram_that_is_cut_or_has_any_bit_changed_is_ignored(bit: int) -> None:
    packet = bytearray(encode_datagram(KEY, b"client", Datagram(b"12345678", 7)))
    assert decode_datagram(KEY, b"client", bytes(packet[: bit // 8])) is None
    packet[bit // 8] ^= 1 << bit % 8
    assert decode_datagram(KEY, b"client", bytes(packet)) is None


def test_a_p99_uses_several_rounds_if_one_has_too_few_datagrams() -> None:
    recent_rtts: list[Histogram] = []
    for number in range(3):
        window = DatagramWindow(0.0)
        first_rtt_us = 1000 * (number + 1)
        for offset_us in range(60):
            window.record(first_rtt_us + offset_us, 1.0)
        recent_rtts.append(window.rtt_histogram)
        measurement = window.to_measurement(60.0, recent_rtts)
        assert measurement is not None
        assert measurement.percentile_us("p50") == pytest.approx(first_rtt_us + 30, rel=0.01)
        if number == 0:
            assert measurement.percentile_us("p99") is None
        else:
            assert measurement.percentile_us("p99") == pytest.approx(first_rtt_us + 60, rel=0.01)


async def test_each_rejected_sender_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    responder = DatagramResponder("127.0.0.1", 0, b"passphrase" * 8)
    async with running_tasks(responder.run()):
        await responder.listening.wait()
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.3"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((host, 0))
                sender.sendto(b"no tag", ("127.0.0.1", responder.port))
        await poll_until(lambda: len(caplog.records) >= 3)  # the last sender is logged after all others
    assert [record.message for record in caplog.records] == ["datagram without a valid tag"] * 3
