"""Loads small BPF programs, as CNI agents attach them to pods' devices."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

NEXT, DROP = -1, 2
"""Verdicts: continue with the next program (TC_ACT_UNSPEC, TCX_NEXT), or drop the packet."""
_PROG_LOAD, _PROG_ATTACH = 5, 8
_SCHED_CLS = 3
_TCX_INGRESS = 46
_REDIRECT_PEER = 155
_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_libc = ctypes.CDLL(None, use_errno=True)


def _call(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(_libc.syscall(_SYSCALLS[os.uname().machine], command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return result


def _instruction(code: int, register: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("=BBhi", code, register, 0, immediate)


@contextmanager
def loaded_program(instructions: bytes, name: str) -> Iterator[int]:
    """Load a program during the block, or as long as it is attached; yields its file descriptor."""
    code, licence = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    head = struct.pack("=IIQQ", _SCHED_CLS, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence))
    descriptor = _call(_PROG_LOAD, head + struct.pack("=IIQII16s", 0, 0, 0, 0, 0, name.encode()))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def program_returning(verdict: int) -> bytes:
    """A program with this verdict for every packet."""
    return _instruction(0xB7, 0, verdict) + _instruction(0x95)


def program_dropping_udp() -> bytes:
    """A program that drops UDP over IPv4 only; the protocol is at byte 23 of a frame."""
    keep_context, read_byte = struct.pack("=BBhi", 0xBF, 0x16, 0, 0), _instruction(0x30, 0, 23)
    unless_udp = struct.pack("=BBhi", 0x55, 0, 2, socket.IPPROTO_UDP)
    return keep_context + read_byte + unless_udp + program_returning(DROP) + program_returning(NEXT)


def program_redirecting_to_peer(device: int) -> bytes:
    """A program that redirects every packet into the namespace of a device's peer, as Cilium and Calico do."""
    return (
        _instruction(0xB7, 1, device)
        + _instruction(0xB7, 2)
        + _instruction(0x85, 0, _REDIRECT_PEER)
        + _instruction(0x95)
    )


def attach_tcx(descriptor: int, device: int) -> None:
    """Attach a program to a device's ingress, before all filters, until the device is deleted."""
    _call(_PROG_ATTACH, struct.pack("=IIIIIIQ", device, descriptor, _TCX_INGRESS, 0, 0, 0, 0))
