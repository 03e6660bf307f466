"""Lists BPF programs attached by tcx and netkit, which rtnetlink does not list.

``bpf(BPF_PROG_QUERY)`` needs CAP_NET_ADMIN (kernel/bpf/syscall.c). A container runtime's seccomp profile may still refuse the call,
and then the programs are unknown. A kernel without such a hook has none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator

from agent.bandwidth.state import Filter, Hook

_SYSCALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_QUERY = 16
_ATTACH_TYPES: tuple[tuple[int, str, Hook], ...] = (
    (46, "tcx", "ingress"),
    (47, "tcx", "egress"),
    # A netkit's primary end is the host's. Its programs see what is sent to the pod, and its peer's what the pod sends.
    (54, "netkit", "egress"),
    (55, "netkit", "ingress"),
)
"""enum bpf_attach_type, linux/bpf.h: BPF_TCX_INGRESS, BPF_TCX_EGRESS, BPF_NETKIT_PRIMARY, BPF_NETKIT_PEER."""
_NO_SUCH_HOOK = frozenset({errno.ENOENT, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP})
_MAX_PROGRAMS = 64
BEFORE_FILTERS = -1


class ProgramsUnknown(Exception):  # noqa: N818 - an answer, not an error
    """The programs cannot be listed. The text says why."""


class _Query(ctypes.Structure):
    """``union bpf_attr`` as BPF_PROG_QUERY reads it."""

    _fields_ = (
        ("target", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("ids", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("prog_attach_flags", ctypes.c_uint64),
        ("link_ids", ctypes.c_uint64),
        ("link_attach_flags", ctypes.c_uint64),
        ("revision", ctypes.c_uint64),
    )


def read_programs(device: int) -> Iterator[Filter]:
    """The programs on a device, by hook; empty if the device is gone.

    Raises:
        ProgramsUnknown: the call is not allowed here.
    """
    for attach_type, kind, hook in _ATTACH_TYPES:
        ids = _query(device, attach_type)
        if ids:
            names = ", ".join(map(str, ids))
            yield Filter(device=device, kind=kind, hook=hook, priority=BEFORE_FILTERS, name=names)


_libc = ctypes.CDLL(None, use_errno=True)


def _query(device: int, attach_type: int) -> tuple[int, ...]:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise ProgramsUnknown(f"the bpf system call's number on {platform.machine()} is not known")
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    query = _Query(target=device, attach_type=attach_type, ids=ctypes.addressof(ids), count=_MAX_PROGRAMS)
    if _libc.syscall(number, _PROG_QUERY, ctypes.byref(query), ctypes.sizeof(query)) == 0:
        return tuple(ids[: query.count])
    code = ctypes.get_errno()
    if code == errno.ENOSPC:
        return tuple(ids)
    if code in _NO_SUCH_HOOK:
        return ()
    raise ProgramsUnknown(f"the kernel, or the container's seccomp profile, refuses bpf(2): {os.strerror(code)}")
