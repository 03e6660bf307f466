"""Datagrams are decoded only with their passphrase and unchanged, and windows of them give percentiles."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.polling import poll_until
from netperf.histogram import Histogram
from netperf.probers.datagram_codec import DATAGRAM_BYTES, Datagram, decode_datagram, derive_key, encode_datagram
from netperf.probers.datagrams import DatagramWindow
from netperf.probers.responder import DatagramResponder
from tests.support.tasks import running_tasks

KEY = derive_key(b"0123456789abcdef")


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
