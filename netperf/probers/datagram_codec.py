"""Encodes and decodes authenticated datagrams.

An answer has the size of its request, so that the responder cannot be used for amplification. It contains the responder delay (as in
TWAMP, RFC 5357): how long the request waited at the responder.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Literal, NamedTuple

MAGIC = b"NAE2"
_TAG_BYTES = 16  # half of HMAC-SHA256, the least that RFC 2104 recommends
_NUMBERS = struct.Struct("!8sQQ")
"""Session, number, and responder delay in nanoseconds."""
DATAGRAM_BYTES = len(MAGIC) + _NUMBERS.size + _TAG_BYTES
MAX_ENCODED_DELAY_NS = 60 * 10**9
"""Longer responder delays are encoded as this one."""

Side = Literal[b"client", b"server"]
"""Sender of a datagram: ``client`` sends requests, ``server`` answers. It is part of the tag, so that a request is no valid answer."""


class Datagram(NamedTuple):
    """A request, or the answer to it. An answer repeats the request's session (8 bytes) and number, and has the responder delay."""

    session: bytes
    number: int
    responder_delay_ns: int = 0


def derive_key(passphrase: bytes) -> bytes:
    """The key of datagrams, derived from the probing passphrase."""
    return hmac.digest(passphrase, b"netaware echo key", hashlib.sha256)


def encode_datagram(key: bytes, side: Side, datagram: Datagram) -> bytes:
    """The bytes of a request or an answer."""
    responder_delay_ns = min(max(datagram.responder_delay_ns, 0), MAX_ENCODED_DELAY_NS)
    body = MAGIC + _NUMBERS.pack(datagram.session, datagram.number, responder_delay_ns)
    return body + hmac.digest(key, b"udp " + side + b"\0" + body, hashlib.sha256)[:_TAG_BYTES]


def decode_datagram(key: bytes, side: Side, data: bytes) -> Datagram | None:
    """The decoded datagram; None if ``data`` was not encoded with this key by that side."""
    if len(data) != DATAGRAM_BYTES or not data.startswith(MAGIC):
        return None
    datagram = Datagram(*_NUMBERS.unpack(data[len(MAGIC) : -_TAG_BYTES]))
    return datagram if hmac.compare_digest(data, encode_datagram(key, side, datagram)) else None
