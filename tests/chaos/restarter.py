"""Does for our programs what a kubelet does for pods: starts again what died, and gives a new pod's token to a new process.

kwok plays the kubelet for objects alone. A pod of ours that is deleted, because its node was, takes its token along; so its program
is ended, and started again when a pod stands for it again.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import yaml

from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import PODS, Pod
from lab.installation import CENTRAL, Installation, bound_kubeconfig, spawn_central
from lab.programs import Program, agent_program
from netperf.contract import AGENT, CONTROLLER, HOME_NAMESPACE, NAME_LABEL
from tests.chaos.journal import Journal

SECOND_CONTROLLER = "controller-2"
# A kubelet starts a container again at once, and later after 10 s and more; programs die more often than that.
_RESTART_AFTER_S = 1.0
_POLL_S = 0.25
_PODS_EVERY_S = 2.0


class Restarter:
    """Watches over the programs of one lab.

    Args:
        client: the administrator's.
        installation: our programs.
        journal: told of every start.
    """

    def __init__(self, client: Client, installation: Installation, journal: Journal) -> None:
        self._client, self._journal = client, journal
        self._lab = installation.lab
        self.roles = _roles(installation)
        self._restarting = asyncio.Lock()
        self.restarts = 0
        self.crashes: list[str] = []

    def program(self, name: str) -> Program | None:
        """The running program of this name."""
        return next((p for p in self._lab.programs if p.name == name and p.poll() is None), None)

    def netservers(self, node: str) -> list[int]:
        """Process ids of a node's netservers; there are some during runs only."""
        agent = self.program(agent_program(node))
        if agent is None:
            return []
        try:
            return [process.pid for process in agent.family() if process.cmdline()[:1] == ["netserver"]]
        except psutil.Error:
            return []

    def wake_all(self) -> None:
        """SIGCONT to everything of the lab: a stopped program cannot end in good order."""
        for program in self._lab.programs:
            with suppress(psutil.Error):
                for process in program.family():
                    send(process.pid, signal.SIGCONT)

    async def run(self) -> None:
        """Until cancelled."""
        # Beside each other: a request to an API server that has lost its etcd takes up to a minute, and etcd is to be started meanwhile.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._restart_dead())
            group.create_task(self._give_tokens())

    async def _restart_dead(self) -> None:
        loop = asyncio.get_running_loop()
        dead_since: dict[str, float] = {}
        while True:
            for program in self._lab.programs:
                if program.poll() is None:
                    dead_since.pop(program.name, None)
                elif loop.time() - dead_since.setdefault(program.name, loop.time()) >= _RESTART_AFTER_S:
                    await self._start_again(program)
                    dead_since.pop(program.name, None)
            await asyncio.sleep(_POLL_S)

    async def _start_again(self, program: Program) -> None:
        async with self._restarting:
            if program not in tuple(self._lab.programs):
                return  # It was ended for its new token, and has started again.
            self._journal.write("restarted", program=program.name, code=program.poll())
            self.restarts += 1
            if program.name in self.roles and program.poll() != -signal.SIGKILL:
                self.crashes.append(f"crash: {program.name} ended by itself with code {program.poll()}")
            await self._lab.programs.restart(program)

    async def _give_tokens(self) -> None:
        while True:
            try:
                await self._follow_pods()
            except KubekitError:
                pass  # The API server is one of those that are hit; the next turn asks again.
            await asyncio.sleep(_PODS_EVERY_S)

    async def _follow_pods(self) -> None:
        pods = await self._client.list(PODS, Pod, namespace=HOME_NAMESPACE)
        alive = {p.metadata.uid: p for p in pods if not p.metadata.deletion_timestamp and p.spec.node_name}
        bound = {role: bound_pod(self._lab.control_plane.kubeconfig_of(role)) for role in self.roles}
        for role, (account, node) in self.roles.items():
            if bound[role] in alive:
                continue
            taken = set(bound.values())
            fresh = [p for p in alive.values() if _stands_for(p, account, node) and p.metadata.uid not in taken]
            if not fresh:
                continue
            pod = fresh[0].metadata
            await self._lab.control_plane.write_token_kubeconfig(
                HOME_NAMESPACE, account, file_name=role, bound_pod=(pod.name, pod.uid)
            )
            bound[role] = pod.uid
            self._journal.write("new-pod", program=role, pod=pod.name)
            async with self._restarting:
                program = next((p for p in self._lab.programs if p.name == role), None)
                if program is not None:
                    send(program.pid, signal.SIGCONT)
                    await self._lab.programs.restart(program)


def _roles(installation: Installation) -> dict[str, tuple[str, str]]:
    """Service account and node (empty for any) by program."""
    central = {name: (account, "") for name, account, _ in CENTRAL}
    agents = {agent_program(node): (AGENT, node) for node in installation.agent_urls}
    return {**central, SECOND_CONTROLLER: (CONTROLLER, ""), **agents}


def _stands_for(pod: Pod, account: str, node: str) -> bool:
    return pod.metadata.label(NAME_LABEL) == account and node in {"", pod.spec.node_name}


def bound_pod(kubeconfig: Path) -> str:
    """The uid of the pod that the token of this kubeconfig is bound to; empty for none."""
    try:
        token = str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
        payload = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(claims["kubernetes.io"]["pod"]["uid"])
    except (OSError, LookupError, ValueError, TypeError):
        return ""


async def start_second_controller(client: Client, installation: Installation, url: str) -> None:
    """Another replica of the manager, for which the Deployment's second pod stands.

    Args:
        client: the administrator's.
        installation: our programs.
        url: where it listens.
    """
    lab = installation.lab
    first = bound_pod(lab.control_plane.kubeconfig_of("controller"))
    kubeconfig = await bound_kubeconfig(
        client, lab, CONTROLLER, SECOND_CONTROLLER, lambda pod: pod.metadata.uid != first
    )
    spawn_central(lab, SECOND_CONTROLLER, "manager", url, kubeconfig=kubeconfig, config=installation.config)


def send(pid: int, number: signal.Signals) -> None:
    """A signal, or nothing when the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
