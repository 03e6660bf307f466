"""A lab without root: its process runs again inside user, network and mount namespaces of its own.

Inside, it is root over its own network and can make bridges, namespaces and TUN devices as everywhere else. What it cannot
do is touch the host's network; so a listening socket made outside is carried in, and relays the host to the API server.
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
from lab.network import missing_privileges, tun_is_accessible

_RELAY_VARIABLE = "NETAWARE_LAB_RELAY_FD"
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--")
# A /run of its own for names of namespaces, since the host's belongs to root.
_MOUNT_RUN = 'mount -t tmpfs netaware-lab /run && exec "$@"'
_CHUNK = 65536


@dataclass
class Launch:
    """A command that starts the process of a lab.

    Attributes:
        argv: the command, wrapped when it needs namespaces of its own.
        env: its whole environment.
        relay: the socket that it must inherit, ``None`` when it runs on the host's own network.
    """

    argv: list[str]
    env: dict[str, str]
    relay: socket.socket | None = None

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """Descriptors that the new process must inherit."""
        return () if self.relay is None else (self.relay.fileno(),)

    def exec_if_wrapped(self) -> None:
        """Replace this process by the wrapped command, which has no Internet: fetch what is needed before. Returns if it is not wrapped."""
        if self.relay is None:
            return
        for descriptor in self.pass_fds:
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
        os.execvpe(self.argv[0], self.argv, self.env)


def plan_this_command(module: str = "lab") -> Launch:
    """Plan to run this process's command again. Raises UnsupportedError as `plan_launch`."""
    return plan_launch([sys.executable, "-m", module, *sys.argv[1:]], dict(os.environ))


def plan_launch(argv: Sequence[str], env: dict[str, str]) -> Launch:
    """Run ``argv`` as it is when this process may make devices, else inside a user namespace.

    Raises:
        UnsupportedError: neither is possible; says what is missing and what still works.
    """
    lacking = missing_privileges()
    if not lacking:
        return Launch(list(argv), env)
    reasons = [*lacking, *_missing_for_user_namespaces()]
    if len(reasons) > len(lacking):
        msg = f"nodes need {'; nor '.join(reasons)}. `--topology none` still runs the control plane alone"
        raise UnsupportedError(msg)
    relay = socket.create_server(("127.0.0.1", 0))
    wrapped = [*_UNSHARE, "sh", "-c", _MOUNT_RUN, "sh", *argv]
    return Launch(wrapped, {**env, _RELAY_VARIABLE: str(relay.fileno())}, relay)


def _missing_for_user_namespaces() -> list[str]:
    if shutil.which("unshare") is None:
        return ["is there an unshare command (util-linux) to get it in a user namespace"]
    done = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["it failed"]
        return [f"are user namespaces allowed here ({said[0]})"]
    if not tun_is_accessible():
        return ["is /dev/net/tun open to this user (mode 0666 would do)"]
    return []


def relay_socket() -> socket.socket | None:
    """The socket that was carried into this process, ``None`` when it runs on the host's network."""
    number = os.environ.get(_RELAY_VARIABLE, "")
    return socket.socket(fileno=os.dup(int(number))) if number.isdecimal() else None


@asynccontextmanager
async def relay(listener: socket.socket, host: str, port: int) -> AsyncIterator[str]:
    """Carry connections from ``listener`` to ``host:port``; yields ``https://`` and the listener's address."""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        async with AsyncExitStack() as stack:
            stack.callback(writer.close)
            try:
                inner_reader, inner_writer = await asyncio.open_connection(host, port)
            except OSError:
                return
            stack.callback(inner_writer.close)
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    server = await asyncio.start_server(carry, sock=listener)
    try:
        yield "https://{}:{}".format(*listener.getsockname()[:2])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
