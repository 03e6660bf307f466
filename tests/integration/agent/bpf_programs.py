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
_SET, _COPY, _LOAD_BYTE, _JUMP_UNLESS_EQUAL, _CALL, _EXIT = 0xB7, 0xBF, 0x30, 0x55, 0x85, 0x95
"""Operations on registers (linux/bpf.h); register 0 has the verdict or result, 1 the packet's context, 6 is kept."""
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


def make_program_returning(verdict: int) -> bytes:
    """A program with this verdict for every packet."""
    return _instruction(_SET, 0, verdict) + _instruction(_EXIT)


def make_program_dropping_udp() -> bytes:
    """A program that drops UDP over IPv4 only; the protocol is at byte 23 of a frame."""
    keep_context, read_protocol = _instruction(_COPY, 0x16), _instruction(_LOAD_BYTE, 0, 23)
    unless_udp = struct.pack("=BBhi", _JUMP_UNLESS_EQUAL, 0, 2, socket.IPPROTO_UDP)
    return keep_context + read_protocol + unless_udp + make_program_returning(DROP) + make_program_returning(NEXT)


def make_program_redirecting_to_peer(device_index: int) -> bytes:
    """A program that redirects every packet into the namespace of a device's peer, as Cilium and Calico do."""
    return (
        _instruction(_SET, 1, device_index)
        + _instruction(_SET, 2)
        + _instruction(_CALL, 0, _REDIRECT_PEER)
        + _instruction(_EXIT)
    )


def attach_tcx(descriptor: int, device_index: int) -> None:
    """Attach a program to a device's ingress, before all filters, until the device is deleted."""
    _call(_PROG_ATTACH, struct.pack("=IIIIIIQ", device_index, descriptor, _TCX_INGRESS, 0, 0, 0, 0))
