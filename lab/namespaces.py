"""Named network namespaces, as `ip netns` creates them, without a child process.

pyroute2 forks a child and ends it with SIGTERM. The child shares the event loop's wake-up descriptor, so this process would take the
signal for its own and stop.
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
    """Move the calling thread, and no other, into a namespace for the duration of the block.

    Raises:
        OSError: there is no such namespace, or this process lacks privileges.
    """
    with _restore_namespace():
        target_fd = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(target_fd, _CLONE_NEWNET), "setns")
        finally:
            os.close(target_fd)
        yield


def build_enter_command(name: str) -> list[str]:
    """The command prefix that runs a command in a namespace."""
    return ["nsenter", f"--net={FOLDER / name}"]


def create(name: str) -> None:
    """Create a namespace with a name under /run/netns.

    Raises:
        OSError: the name is taken, or this process lacks privileges.
    """
    _prepare_folder()
    target = FOLDER / name
    os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    try:
        with _restore_namespace():
            _check(_libc.unshare(_CLONE_NEWNET), "unshare")
            _check(_mount("/proc/thread-self/ns/net", target, _MS_BIND), "mount")
    except OSError:
        target.unlink()
        raise


def remove(name: str) -> None:
    """Remove a name, if it exists; the namespace ends with its last process."""
    target = FOLDER / name
    _libc.umount2(str(target).encode(), _MNT_DETACH)
    target.unlink(missing_ok=True)


def list_names() -> list[str]:
    """All names under /run/netns, also those of other programs."""
    return sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []


def _prepare_folder() -> None:
    """Create a shared mount as `ip netns add` does, so that other mount namespaces see the names."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if _mount("none", FOLDER, _MS_SHARED | _MS_REC) != 0:
        _check(_mount(FOLDER, FOLDER, _MS_BIND | _MS_REC), "mount")
        _check(_mount("none", FOLDER, _MS_SHARED | _MS_REC), "mount")


@contextmanager
def _restore_namespace() -> Iterator[None]:
    """Return the calling thread to its network namespace at the end of the block."""
    original_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _check(_libc.setns(original_fd, _CLONE_NEWNET), "setns")
        finally:
            os.close(original_fd)


def _mount(source: str | Path, target: Path, flags: int) -> int:
    return int(_libc.mount(str(source).encode(), str(target).encode(), b"none", ctypes.c_ulong(flags), None))


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
