"""Runs a lab without root, inside new user, network and mount namespaces.

There the lab may create bridges, namespaces and TUN devices, but has no access to the host's network. So it inherits a socket that
listens on the host, and relays this socket's connections to the API server.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from lab.errors import UnsupportedError
from lab.network import can_open_tun, find_missing_privilege

_RELAY_VARIABLE = "NETAWARE_LAB_RELAY_FD"
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--")
# Names of network namespaces are below /run, where only root may write on the host.
_MOUNT_RUN = 'mount -t tmpfs netaware-lab /run && exec "$@"'
_CHUNK_BYTES = 65536


@dataclass
class LaunchCommand:
    """A command that starts the process of a lab, wrapped by unshare if it needs new namespaces, and its whole environment.

    Attributes:
        relay_listener: the socket that it must inherit; None if it runs in the host's network.
    """

    argv: list[str]
    env: dict[str, str]
    relay_listener: socket.socket | None = None

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """Descriptors that the new process must inherit."""
        return () if self.relay_listener is None else (self.relay_listener.fileno(),)

    def exec_if_wrapped(self) -> None:
        """Replace this process by the command if unshare wraps it, else return. A wrapped command has no access to the Internet."""
        if self.relay_listener is None:
            return
        for descriptor in self.pass_fds:
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
        os.execvpe(self.argv[0], self.argv, self.env)


def plan_relaunch(module: str = "lab") -> LaunchCommand:
    """Return the command of this process, wrapped as by `plan_launch`."""
    return plan_launch([sys.executable, "-m", module, *sys.argv[1:]], dict(os.environ))


def plan_launch(argv: Sequence[str], env: dict[str, str]) -> LaunchCommand:
    """Return ``argv`` as a command, wrapped to run in a user namespace if this process may not create devices.

    Opens the socket of a wrapped command. Raises UnsupportedError, which says what is missing and what works without it, if a user
    namespace is not possible either.
    """
    privilege = find_missing_privilege()
    if not privilege:
        return LaunchCommand(list(argv), env)
    if problem := _find_user_namespace_problem():
        reason = f"nodes need {privilege}, or a user namespace, but {problem}"
        raise UnsupportedError(f"{reason}. `--topology none` still runs the control plane alone")
    relay_listener = socket.create_server(("127.0.0.1", 0))
    wrapped = [*_UNSHARE, "sh", "-c", _MOUNT_RUN, "sh", *argv]
    return LaunchCommand(wrapped, {**env, _RELAY_VARIABLE: str(relay_listener.fileno())}, relay_listener)


def _find_user_namespace_problem() -> str:
    """Return why a lab cannot run in a user namespace; empty if it can."""
    if shutil.which("unshare") is None:
        return "the command unshare (util-linux) is missing"
    result = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        return f"user namespaces are not allowed here ({lines[-1] if lines else 'unshare failed'})"
    return "" if can_open_tun() else "this user may not open /dev/net/tun (mode 0666 permits it)"


def find_inherited_listener() -> socket.socket | None:
    """Return the socket that this process inherited; None if it runs in the host's network."""
    descriptor = os.environ.get(_RELAY_VARIABLE, "")
    return socket.socket(fileno=os.dup(int(descriptor))) if descriptor.isdecimal() else None


@asynccontextmanager
async def relay_connections(listener: socket.socket, host: str, port: int) -> AsyncIterator[str]:
    """Relay new connections of ``listener`` to ``host:port`` for the block; yields the listener's address as an https URL."""

    async def relay_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(writer.close)
            try:
                target_reader, target_writer = await asyncio.open_connection(host, port)
            except OSError:
                return
            stack.callback(target_writer.close)
            await asyncio.gather(_copy_stream(reader, target_writer), _copy_stream(target_reader, writer))

    server = await asyncio.start_server(relay_connection, sock=listener)
    try:
        yield "https://{}:{}".format(*listener.getsockname()[:2])
    finally:
        server.close()


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
