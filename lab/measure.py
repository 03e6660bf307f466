"""``python -m lab.measure``: measures the path between two lab nodes, inside a node's namespace.

It measures anew with the agents' probers, so that the demo's figures do not come from the samples that placed the pods.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from contextlib import suppress

import msgspec

from kubekit import logs
from kubekit.runtime import run_program
from netperf.measurement import Measurement
from netperf.plans import ProbeSettings
from netperf.probers.datagrams import DatagramStream, DatagramTarget
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import NetperfProber, find_binary
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder

PASSPHRASE_VARIABLE = "NETAWARE_LAB_PASSPHRASE"
PORT = 22865
"""Another port than that of the agents' netserver (12865), which may run in the same namespace."""
NETPERF_DURATION_S = 1.0
DATAGRAM_DURATION_S = 10.0
"""Long enough for a p90 from `MAX_DESTINATION_RATE_PER_S` datagrams a second."""
RETRY_S = 60.0


async def serve_probes(address: str, prober: str, passphrase: bytes) -> None:
    """Answer probes until cancelled."""
    if prober == "datagrams":
        await DatagramResponder(address, PORT, passphrase).run()
        return
    netserver = find_binary("netserver")
    if netserver is None:
        raise ProbeFailedError("no-netperf", "netserver is not on PATH")
    await Netserver(netserver, address, PORT, passphrase).run()


async def probe_and_print(address: str, prober: str, passphrase: bytes) -> None:
    """Measure once and print the measurement as JSON. Retries for `RETRY_S`, because a link may lose packets."""
    netperf = NetperfProber(find_binary("netperf") or "netperf", passphrase)
    settings = ProbeSettings(duration_s=NETPERF_DURATION_S, control_port=PORT, data_port=PORT + 1)
    deadline_s = time.monotonic() + RETRY_S
    while True:
        try:
            if prober == "datagrams":
                measurement = await measure_with_datagrams(address, passphrase)
            else:
                measurement = await netperf.probe(address, settings)
        except ProbeFailedError as error:
            if error.reason == "no-netperf" or time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.2)
        else:
            print(msgspec.json.encode(measurement).decode(), flush=True)
            return


async def measure_with_datagrams(address: str, passphrase: bytes) -> Measurement:
    """Measure round trips for `DATAGRAM_DURATION_S`. Raises ProbeFailedError if fewer than two answers arrive."""
    target = DatagramTarget(address, PORT)
    stream = DatagramStream("::" if ":" in address else "0.0.0.0", passphrase)
    stream.set_targets([target], interval_s=DATAGRAM_DURATION_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(DATAGRAM_DURATION_S):
            await stream.run()
    window = stream.close_window(target)
    measurement = window.to_measurement(time.monotonic()) if window is not None else None
    if measurement is None:
        raise ProbeFailedError("timeout", "too few datagrams are answered")
    return measurement


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.measure", description=__doc__)
    parser.add_argument("verb", choices=("serve", "probe"))
    parser.add_argument("address", help="address to serve on, or to probe")
    parser.add_argument("--prober", choices=("netperf", "datagrams"), default="netperf")
    args = parser.parse_args()
    logs.configure(level="warning")
    passphrase = os.environ[PASSPHRASE_VARIABLE].encode()
    run = serve_probes if args.verb == "serve" else probe_and_print
    return run_program(lambda: run(args.address, args.prober, passphrase))


if __name__ == "__main__":
    sys.exit(main())
