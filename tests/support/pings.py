"""Measures round-trip times by ICMP echo with the kernel's receive timestamps, as a reference that shares no code with agents.

Runs in a node's network namespace, as root: ``python pings.py PERIOD_S ADDRESS...``. Prints a JSON line for each reply:
``[address, sent_at, rtt_us]``, with seconds since 1970.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35
HEADER = struct.Struct("!BBHHHQ")
TIMESPEC = struct.Struct("@qq")
ECHO_REQUEST, ECHO_REPLY, IP_HEADER = 8, 0, 20


def checksum(data: bytes) -> int:
    """Checksum of RFC 1071 for an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) ^ 0xFFFF


def main() -> None:
    """Ping the addresses in turn until killed."""
    period_s, addresses = float(sys.argv[1]), sys.argv[2:]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    identity, sequence = os.getpid() & 0xFFFF, 0
    due_s = time.monotonic()
    while True:
        wait_s = due_s - time.monotonic()
        if wait_s <= 0:
            sequence, due_s = sequence + 1, due_s + period_s / len(addresses)
            sent_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
            packet_without_checksum = HEADER.pack(ECHO_REQUEST, 0, 0, identity, sequence & 0xFFFF, sent_ns)
            packet = HEADER.pack(
                ECHO_REQUEST, 0, checksum(packet_without_checksum), identity, sequence & 0xFFFF, sent_ns
            )
            raw.sendto(packet, (addresses[sequence % len(addresses)], 0))
            continue
        if not select.select([raw], [], [], wait_s)[0]:
            continue
        data, ancillary, _, (address, _) = raw.recvmsg(2048, socket.CMSG_SPACE(TIMESPEC.size))
        kind, _, _, reply_identity, _, sent_ns = HEADER.unpack_from(data, IP_HEADER)
        stamps = [TIMESPEC.unpack_from(value) for level, type_, value in ancillary if type_ == SO_TIMESTAMPNS]
        if kind == ECHO_REPLY and reply_identity == identity and stamps:
            seconds, nanoseconds = stamps[0]
            rtt_us = (seconds * 10**9 + nanoseconds - sent_ns) / 1000
            print(json.dumps([address, sent_ns / 1e9, rtt_us]), flush=True)


if __name__ == "__main__":
    main()
