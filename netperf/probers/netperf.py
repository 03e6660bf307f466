"""Runs netperf: finds the program, builds the command, parses the output, and finds the reasons of failures.

netperf 2.7.0 (docs/contracts) ignores an unknown selector with exit code 0, prints a percentile of 0 if there were too few
transactions, and reports a wrong passphrase as a reset.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from netperf.measurement import MAX_LATENCY_US, Measurement, Test
from netperf.plans import ProbeSettings
from netperf.probers import child
from netperf.probers.contention import elapsed_us, find_own_cpu_stat, read_throttled_us
from netperf.probers.failure import FailureReason, ProbeFailedError
from netperf.probers.netserver import PASSPHRASE_OFFSET, REQUEST_BYTES
from netperf.probers.passphrase import derive_hourly_passphrase, epochs_to_try
from netperf.probers.tcp_ping import connect, tcp_ping

BINARY_VARIABLE = "NETAWARE_NETPERF"
DEADLINE_ALLOWANCE_S = 5.0
"""Time after which a run is stopped, in addition to its expected duration."""
DIAGNOSIS_TIMEOUT_S = 1.0
REQUEST_WAIT_S = 0.3
"""A peer that closes the connection does so within this time, plus two round trips."""
UDP_LOSS_TIMEOUT_S = 1
"""Whole seconds after which netperf sends the next datagram instead of waiting for a lost one."""
MIN_TRANSACTIONS_FOR_P90 = 12
"""A p90 needs 10; two more are a reserve. With a round trip of 400 ms they take 5 s."""
SETUP_ROUND_TRIPS = 8
"""Round trips of a run in addition to its test: control connection, passphrase, set-up, data connection, result."""
NO_CONTROL_CONNECTION_STATUS = 255
"""Exit status of netperf if it cannot open the control connection."""

_COMMON_KEYS = ("ELAPSED_TIME", "LOCAL_TRANSPORT_RETRANS", "REMOTE_TRANSPORT_RETRANS")
_STREAM_KEYS = ("THROUGHPUT", "THROUGHPUT_UNITS", *_COMMON_KEYS)
_LATENCY_KEYS = ("MIN_LATENCY", "MEAN_LATENCY", "MAX_LATENCY", "P50_LATENCY", "P90_LATENCY", "P99_LATENCY")
_RR_KEYS = (*_LATENCY_KEYS, "LOCAL_SEND_CALLS", "LOCAL_RECV_CALLS", *_COMMON_KEYS)
_UNITS_BPS = {"10^6bits/s": 1e6, "10^3bits/s": 1e3, "10^9bits/s": 1e9}


def find_binary(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Path of ``netperf`` or ``netserver``: beside the one that ``$NETAWARE_NETPERF`` names, else on the PATH.

    The variable may name the netperf program or the directory that holds both.
    """
    configured_path = environ.get(BINARY_VARIABLE)
    if configured_path:
        path = Path(configured_path)
        directory = path if path.is_dir() else path.parent
        return shutil.which(str(directory / name))
    return shutil.which(name, path=environ.get("PATH"))


def output_selectors(test: Test) -> tuple[str, ...]:
    """The output selectors of a test. Those of a stream have no latencies, which would be of send calls instead of round trips."""
    return _STREAM_KEYS if test == "TCP_STREAM" else _RR_KEYS


def choose_transaction_count(duration_s: float, rtt_s: float) -> int | None:
    """Number of round trips to request on a slow path; None if ``duration_s`` is enough for twice `MIN_TRANSACTIONS_FOR_P90`.

    A run that ends after a number of round trips waits for every retransmission, so such runs are used on slow paths only.
    """
    return None if 2 * MIN_TRANSACTIONS_FOR_P90 * rtt_s <= duration_s else MIN_TRANSACTIONS_FOR_P90


def build_command(
    binary: str, address: str, settings: ProbeSettings, hourly_passphrase: str, transactions: int | None = None
) -> list[str]:
    """The command of a run. It ends after ``transactions`` round trips; without that number, and for streams, after whole seconds.

    Never log it: it contains the hourly passphrase.
    """
    ends_by_time = transactions is None or settings.test == "TCP_STREAM"
    length = str(max(1, math.ceil(settings.duration_s))) if ends_by_time else f"-{transactions}"
    command = [binary, "-H", address, "-p", str(settings.control_port), "-Z", hourly_passphrase, "-t", settings.test]
    command += ["-l", length, "-P", "0", "--"]
    if settings.test == "TCP_RR":
        command.append("-D")
    if settings.test == "UDP_RR":
        command += ["-e", str(UDP_LOSS_TIMEOUT_S)]  # without it a lost datagram blocks the run
    return [*command, "-P", f",{settings.data_port}", "-k", ",".join(output_selectors(settings.test))]


def parse_output(text: str, test: Test) -> Measurement:
    """Parse netperf's output, which has lines of ``KEY=value``.

    Raises:
        ProbeFailedError: ``unknown-selector``: a requested key is missing; ``too-few-samples``: no percentile; ``failed``: bad throughput.
    """
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    missing_keys = [key for key in output_selectors(test) if key not in values]
    if missing_keys:
        raise ProbeFailedError("unknown-selector", f"netperf did not print {', '.join(missing_keys)}")
    duration_s = _parse_number(values["ELAPSED_TIME"])
    retransmits = _parse_retransmits(values)
    if test == "TCP_STREAM":
        throughput_bps = _parse_throughput(values)
        return Measurement(
            prober="netperf", test=test, duration_s=duration_s, throughput_bps=throughput_bps, retransmits=retransmits
        )
    transactions = int(_parse_number(values["LOCAL_RECV_CALLS"]) or 0)
    min_us, max_us = _parse_latency(values["MIN_LATENCY"]), _parse_latency(values["MAX_LATENCY"])
    p50_us, p90_us, p99_us = (_clamp(_parse_latency(values[f"P{p}_LATENCY"]), min_us, max_us) for p in (50, 90, 99))
    if p50_us is None and p90_us is None and p99_us is None:
        raise ProbeFailedError("too-few-samples", f"{transactions} transactions")
    return Measurement(
        prober="netperf",
        test=test,
        min_us=min_us,
        mean_us=_parse_latency(values["MEAN_LATENCY"]),
        max_us=max_us,
        p50_us=p50_us,
        p90_us=p90_us,
        p99_us=p99_us,
        transactions=transactions,
        duration_s=duration_s,
        loss_ratio=_compute_loss_ratio(values, test, transactions, retransmits),
        retransmits=retransmits,
    )


def _parse_throughput(values: Mapping[str, str]) -> float:
    unit_bps = _UNITS_BPS.get(values["THROUGHPUT_UNITS"])
    throughput = _parse_number(values["THROUGHPUT"])
    if unit_bps is None or not throughput:
        raise ProbeFailedError("failed", f"throughput {values['THROUGHPUT']} {values['THROUGHPUT_UNITS']}")
    return throughput * unit_bps


def _parse_number(text: str, maximum: float = math.inf) -> float | None:
    """A finite number from 0 to ``maximum``, else None: netperf prints -1 for unknown."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= maximum else None


def _parse_latency(text: str) -> float | None:
    return _parse_number(text, MAX_LATENCY_US) or None  # netperf prints 0 for too few transactions


def _clamp(value_us: float | None, min_us: float | None, max_us: float | None) -> float | None:
    """Clamp a percentile to minimum and maximum: netperf interpolates in buckets of up to a tenth of the value."""
    if value_us is None:
        return None
    return min(max(value_us, min_us or value_us), max_us or value_us)


def _parse_retransmits(values: Mapping[str, str]) -> int | None:
    ends = [_parse_number(values[f"{end}_TRANSPORT_RETRANS"]) for end in ("LOCAL", "REMOTE")]
    counts = [int(count) for count in ends if count is not None]
    return sum(counts) if counts else None


def _compute_loss_ratio(
    values: Mapping[str, str], test: Test, transactions: int, retransmits: int | None
) -> float | None:
    if test == "UDP_RR":
        sent = _parse_number(values["LOCAL_SEND_CALLS"])
        # The last request has no answer yet when the run ends.
        return max(0.0, sent - transactions - 1) / sent if sent else None
    return None if retransmits is None or not transactions else min(1.0, retransmits / transactions)


class NetperfProber:
    """Runs netperf as a child process.

    Args:
        binary: path of netperf, see `find_binary`.
        passphrase: the probing passphrase, from which hourly ones are derived.
        wall_clock: seconds since 1970, for the epoch of the hourly passphrase.
    """

    def __init__(self, binary: str, passphrase: bytes, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._binary, self._passphrase, self._wall_clock = binary, passphrase, wall_clock
        self._cpu_stat = find_own_cpu_stat()

    async def probe(self, address: str, settings: ProbeSettings) -> Measurement:
        """Ping, then run netperf; if the peer refuses the passphrase, run it again with the passphrase of the neighbouring epoch.

        Raises:
            ProbeFailedError: there is no measurement.
        """
        if not os.access(self._binary, os.X_OK):
            raise ProbeFailedError("no-netperf", f"install netperf, or set {BINARY_VARIABLE}")
        rtt_s = await tcp_ping(address, settings.control_port)
        first, neighbour = epochs_to_try(self._wall_clock())
        try:
            return await self._run(address, settings, derive_hourly_passphrase(self._passphrase, first), rtt_s)
        except ProbeFailedError as failure:
            if failure.reason != "unauthenticated":
                raise
        return await self._run(address, settings, derive_hourly_passphrase(self._passphrase, neighbour), rtt_s)

    async def _run(self, address: str, settings: ProbeSettings, hourly_passphrase: str, rtt_s: float) -> Measurement:
        transactions = choose_transaction_count(settings.duration_s, rtt_s)
        command = build_command(self._binary, address, settings, hourly_passphrase, transactions)
        throttled_before = read_throttled_us(self._cpu_stat)
        expected_s = max(settings.duration_s, MIN_TRANSACTIONS_FOR_P90 * rtt_s) + SETUP_ROUND_TRIPS * rtt_s
        deadline_s = expected_s + DEADLINE_ALLOWANCE_S
        try:
            completed = await child.run_to_end(command, deadline_s)
        except TimeoutError:
            raise ProbeFailedError("timeout", f"no end after {deadline_s:.1f} s", has_answered=True) from None
        except OSError as error:
            raise ProbeFailedError("no-netperf", f"{self._binary}: {error.strerror}") from error
        if completed.returncode != 0:
            raise await _diagnose_failure(completed, address, settings, hourly_passphrase)
        measurement = parse_output(completed.stdout, settings.test)
        throttled_us = elapsed_us(read_throttled_us(self._cpu_stat), throttled_before)
        return msgspec.structs.replace(measurement, throttled_us=throttled_us, run_queue_us=completed.run_queue_us)


async def _diagnose_failure(
    completed: child.CompletedRun, address: str, settings: ProbeSettings, hourly_passphrase: str
) -> ProbeFailedError:
    """The error of a failed run. netperf's messages are ambiguous, so this function also connects to the control port."""
    message = _last_line(completed.stderr) or _last_line(completed.stdout) or f"exit status {completed.returncode}"
    state = await _check_control_port(address, settings.control_port, hourly_passphrase)
    if completed.returncode == NO_CONTROL_CONNECTION_STATUS:
        return ProbeFailedError(state if state in {"unreachable", "timeout"} else "refused", message)
    if state in {"refused", "unreachable", "timeout"}:
        return ProbeFailedError("reset", f"{message}; the control port is now {state}")
    if "recv_response" not in message:
        return ProbeFailedError("reset" if "reset by peer" in message else "failed", message)
    if state == "unauthenticated":
        return ProbeFailedError(state, f"{message}; netserver refuses the passphrase")
    return ProbeFailedError("reset", message)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


async def _check_control_port(
    address: str, port: int, hourly_passphrase: str
) -> Literal["accepting", "closing"] | FailureReason:
    """Send a passphrase in two parts: a broken peer closes after the first; netserver closes, or accepts it and answers."""
    try:
        reader, writer, connect_s = await connect(address, port, DIAGNOSIS_TIMEOUT_S)
    except ProbeFailedError as error:
        return error.reason
    passphrase_request = (bytes(PASSPHRASE_OFFSET) + hourly_passphrase.encode()).ljust(REQUEST_BYTES, b"\0")
    first_byte, other_bytes = passphrase_request[:1], passphrase_request[1:] + bytes(REQUEST_BYTES)
    try:
        if await _closes_after(reader, writer, first_byte, REQUEST_WAIT_S + 2 * connect_s):
            return "closing"
        return (
            "unauthenticated" if await _closes_after(reader, writer, other_bytes, DEADLINE_ALLOWANCE_S) else "accepting"
        )
    finally:
        writer.close()


async def _closes_after(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, timeout_s: float
) -> bool:
    """Whether the peer closes the connection after this data, instead of answering or waiting."""
    writer.write(data)
    try:
        async with asyncio.timeout(timeout_s):
            return not await reader.read(1)
    except TimeoutError:
        return False
    except OSError:
        return True
