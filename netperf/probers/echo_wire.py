"""The wire format of the built-in echo: who may use it, and what its datagrams look like.

Over TCP both ends prove that they know the secret before anything is echoed: the server sends ``NAE1`` and a nonce, the
client a nonce and its proof, the server its own proof. After that 16-byte frames come back as they are. A datagram
carries its proof with it and is answered by one of the same size, so that the server amplifies nothing for anybody. The
answer says how long the request waited at the server, from the kernel's receipt to the answer, so that a busy peer is not
taken for a slow path (as in TWAMP, RFC 5357).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

MAGIC = b"NAE1"
DATAGRAM_MAGIC = b"NAE2"
NONCE_BYTES = 16
PROOF_BYTES = 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES
FRAME_BYTES = 16
_TAG_BYTES = 16
_NUMBERS = struct.Struct("!8sQQ")
DATAGRAM_BYTES = len(DATAGRAM_MAGIC) + _NUMBERS.size + _TAG_BYTES
LONGEST_HELD_NS = 60 * 10**9


class Datagram(NamedTuple):
    """Which run, which of its requests, and in an answer how long the request waited at the server, nanoseconds."""

    session: bytes
    number: int
    held_ns: int = 0


def derive_key(secret: bytes) -> bytes:
    """The echo's own key; the Secret is also what netserver's passphrases come from."""
    return hmac.digest(secret, b"netaware echo key", hashlib.sha256)


def prove(key: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Proof of knowing the key; ``side`` keeps one end's proof from being sent back as the other's."""
    return hmac.digest(key, b"tcp " + side + b"\0" + server_nonce + client_nonce, hashlib.sha256)


def encode_datagram(key: bytes, side: bytes, datagram: Datagram) -> bytes:
    """A request (side ``client``) or reply (side ``server``); a session has 8 bytes."""
    held_ns = min(max(datagram.held_ns, 0), LONGEST_HELD_NS)
    body = DATAGRAM_MAGIC + _NUMBERS.pack(datagram.session, datagram.number, held_ns)
    return body + hmac.digest(key, b"udp " + side + b"\0" + body, hashlib.sha256)[:_TAG_BYTES]


def decode_datagram(key: bytes, side: bytes, data: bytes) -> Datagram | None:
    """The datagram, or None for anything that was not made with the key by that side."""
    if len(data) != DATAGRAM_BYTES or not data.startswith(DATAGRAM_MAGIC):
        return None
    datagram = Datagram(*_NUMBERS.unpack(data[len(DATAGRAM_MAGIC) : -_TAG_BYTES]))
    return datagram if hmac.compare_digest(data, encode_datagram(key, side, datagram)) else None
