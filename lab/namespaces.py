"""Creates, enters and removes named network namespaces, as `ip netns` does, without a child process.

pyroute2 would fork a child and end it with SIGTERM. The child shares the event loop's wake-up descriptor, so the event loop would handle
the signal as one to this process, and stop.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/run/netns")
# sched.h and sys/mount.h
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED, _MNT_DETACH = 0x1000, 0x4000, 1 << 20, 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def enter(name: str) -> Iterator[None]:
    """Move the calling thread, and no other thread, into a namespace for the duration of the block.

    Raises OSError if the namespace does not exist, or if this process lacks privileges.
    """
    with _restore_namespace():
        target_fd = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _raise_if_failed(_libc.setns(target_fd, _CLONE_NEWNET), "setns")
        finally:
            os.close(target_fd)
        yield


def build_enter_command(name: str) -> list[str]:
    """Return the command prefix that runs a command in a namespace."""
    return ["nsenter", f"--net={FOLDER / name}"]


def create(name: str) -> None:
    """Create a namespace with a name under /run/netns. Raises OSError if the name is taken, or without privileges."""
    _share_folder()
    target = FOLDER / name
    os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    try:
        with _restore_namespace():
            _raise_if_failed(_libc.unshare(_CLONE_NEWNET), "unshare")
            _raise_if_failed(_mount("/proc/thread-self/ns/net", target, _MS_BIND), "mount")
    except OSError:
        target.unlink()
        raise


def remove(name: str) -> None:
    """Remove a namespace's name, if it exists; the namespace ends with its last process."""
    target = FOLDER / name
    _libc.umount2(str(target).encode(), _MNT_DETACH)
    target.unlink(missing_ok=True)


def list_names() -> list[str]:
    """Return all names under /run/netns, also those of other programs' namespaces."""
    return sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []


def _share_folder() -> None:
    """Make the folder a shared mount, as `ip netns add` does, so that other mount namespaces see the names."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if _mount("none", FOLDER, _MS_SHARED | _MS_REC) != 0:
        _raise_if_failed(_mount(FOLDER, FOLDER, _MS_BIND | _MS_REC), "mount")
        _raise_if_failed(_mount("none", FOLDER, _MS_SHARED | _MS_REC), "mount")


@contextmanager
def _restore_namespace() -> Iterator[None]:
    """Return the calling thread to its present network namespace at the end of the block."""
    original_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _raise_if_failed(_libc.setns(original_fd, _CLONE_NEWNET), "setns")
        finally:
            os.close(original_fd)


def _mount(source: str | Path, target: Path, flags: int) -> int:
    return int(_libc.mount(str(source).encode(), str(target).encode(), b"none", ctypes.c_ulong(flags), None))


def _raise_if_failed(result: int, call: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
