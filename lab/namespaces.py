"""Named network namespaces, as `ip netns` keeps them, made by threads of this process and without forking.

pyroute2 forks for this and ends its child with SIGTERM; a child that shares the event loop's wake-up descriptor then tells
the parent that the parent got the signal, and the lab would stop while it starts.
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
def entered(name: str) -> Iterator[None]:
    """Move the calling thread into a namespace for the length of the block; other threads stay where they are.

    Raises:
        OSError: there is no such namespace, or this process may not.
    """
    with _return_to_namespace():
        there = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(there, _CLONE_NEWNET), "setns")
        finally:
            os.close(there)
        yield


def enter_command(name: str) -> list[str]:
    """Words that, put before a command, run it in a namespace."""
    return ["nsenter", f"--net={FOLDER / name}"]


def create(name: str) -> None:
    """Make a namespace and keep it by a name under /run/netns.

    Raises:
        OSError: the name is taken, or this process may not.
    """
    _prepare_folder()
    target = FOLDER / name
    os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    try:
        with _return_to_namespace():
            _check(_libc.unshare(_CLONE_NEWNET), "unshare")
            _check(_mount("/proc/thread-self/ns/net", target, _MS_BIND), "mount")
    except OSError:
        target.unlink()
        raise


def remove(name: str) -> None:
    """Take the name away; the namespace goes with its last process. A name that is gone already is fine."""
    target = FOLDER / name
    _libc.umount2(str(target).encode(), _MNT_DETACH)
    target.unlink(missing_ok=True)


def names() -> list[str]:
    """All names under /run/netns, also those of other programs."""
    return sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []


def _prepare_folder() -> None:
    """Make a shared mount as `ip netns add` does, so that other mount namespaces see namespaces made here."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if _mount("none", FOLDER, _MS_SHARED | _MS_REC) != 0:
        _check(_mount(FOLDER, FOLDER, _MS_BIND | _MS_REC), "mount")
        _check(_mount("none", FOLDER, _MS_SHARED | _MS_REC), "mount")


@contextmanager
def _return_to_namespace() -> Iterator[None]:
    """Return the calling thread to the namespace it was in."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _check(_libc.setns(home, _CLONE_NEWNET), "setns")
        finally:
            os.close(home)


def _mount(source: str | Path, target: Path, flags: int) -> int:
    return int(_libc.mount(str(source).encode(), str(target).encode(), b"none", ctypes.c_ulong(flags), None))


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
