"""Sends traffic to a server of this file, which counts or echoes it: ``traffic.py serve|bulk|rr|flood ADDRESS PORT [SECONDS]``."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

CHUNK_BYTES = 65536


def serve(address: str, port: int) -> None:
    """Accept connections; count what arrives if the first byte is B, echo it if it is E."""
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.recv(1) == b"E":
            while data := connection.recv(64):
                connection.sendall(data)
            return
        received_bytes = 0
        while data := connection.recv(CHUNK_BYTES):
            received_bytes += len(data)
        connection.sendall(json.dumps(received_bytes).encode())


def bulk(address: str, port: int, seconds: float) -> None:
    """Send by TCP; print the number of bytes that arrived."""
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(b"B")
        end = time.monotonic() + seconds
        block = b"x" * CHUNK_BYTES
        while time.monotonic() < end:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        print(b"".join(iter(lambda: connection.recv(CHUNK_BYTES), b"")).decode())


def rr(address: str, port: int, seconds: float) -> None:
    """Exchange single bytes; print their round-trip times in seconds."""
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"E")
        end = time.monotonic() + seconds
        round_trips_s: list[float] = []
        while time.monotonic() < end:
            started_s = time.monotonic()
            connection.sendall(b"p")
            connection.recv(1)
            round_trips_s.append(time.monotonic() - started_s)
        print(json.dumps(round_trips_s))


def flood(address: str, port: int, seconds: float) -> None:
    """Send datagrams at about 5 MB/s: 35 of 1400 bytes every 10 ms."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(35):
                sender.sendto(b"x" * 1400, (address, port))
            time.sleep(0.01)


if __name__ == "__main__":
    mode, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if mode == "serve":
        serve(address, port)
    else:
        {"bulk": bulk, "rr": rr, "flood": flood}[mode](address, port, float(sys.argv[4]))
