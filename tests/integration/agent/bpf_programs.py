"""BPF programs as other agents attach them to pods' devices: real ones, loaded with the bpf system call, a few instructions each."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

NEXT, DROP = -1, 2
"""Verdicts of programs: go on with the next one (TC_ACT_UNSPEC, TCX_NEXT), or drop the packet."""
_PROG_LOAD, _PROG_ATTACH = 5, 8
_SCHED_CLS = 3
_TCX = {"ingress": 46, "egress": 47}
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
def loaded(instructions: bytes, name: str) -> Iterator[int]:
    """File descriptor of a program that is loaded meanwhile, and stays for as long as it is attached."""
    code, licence = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    head = struct.pack("=IIQQ", _SCHED_CLS, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence))
    descriptor = _call(_PROG_LOAD, head + struct.pack("=IIQII16s", 0, 0, 0, 0, 0, name.encode()))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def returning(verdict: int) -> bytes:
    """A program that says the same of every packet."""
    return _instruction(0xB7, 0, verdict) + _instruction(0x95)


def dropping_udp() -> bytes:
    """A program that drops UDP over IPv4, and of all else says to go on: the protocol is 23 bytes into the frame."""
    keep_context, read_byte = struct.pack("=BBhi", 0xBF, 0x16, 0, 0), _instruction(0x30, 0, 23)
    unless_udp = struct.pack("=BBhi", 0x55, 0, 2, socket.IPPROTO_UDP)
    return keep_context + read_byte + unless_udp + returning(DROP) + returning(NEXT)


def redirecting_to_peer(device: int) -> bytes:
    """A program that puts every packet straight into the namespace of a device's other end, as Cilium and Calico do."""
    return (
        _instruction(0xB7, 1, device)
        + _instruction(0xB7, 2)
        + _instruction(0x85, 0, _REDIRECT_PEER)
        + _instruction(0x95)
    )


def attach_tcx(descriptor: int, device: int, hook: str = "ingress") -> None:
    """Attach a program to a device, before all filters; it goes with the device."""
    _call(_PROG_ATTACH, struct.pack("=IIIIIIQ", device, descriptor, _TCX[hook], 0, 0, 0, 0))
