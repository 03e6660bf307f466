"""Reading only the types of netlink messages."""

from __future__ import annotations

import struct

from agent.netlink import each_message


def message_types(data: bytes) -> list[int]:
    return [kind for kind, _, _ in each_message(data)]


def message(kind: int, payload: bytes) -> bytes:
    length = 16 + len(payload)
    return struct.pack("=IHHII", length, kind, 0, 1, 0) + payload + b"\0" * (-length % 4)


def test_several_messages_in_one_datagram_are_told_apart() -> None:
    assert message_types(message(16, b"abc") + message(36, b"") + message(24, b"x" * 9)) == [16, 36, 24]


def test_a_datagram_that_is_cut_off_ends_the_list() -> None:
    assert message_types(message(16, b"") + b"\x01\x00") == [16]
    assert message_types(struct.pack("=IHHII", 3, 16, 0, 1, 0)) == []
    assert message_types(b"") == []
