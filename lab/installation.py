"""Our own programs in a lab, installed as an operator would: the shipped manifests, then agents, controller and extender.

kwok plays the kubelet, so the DaemonSet's and Deployments' pods run nothing; the lab runs the real programs beside them, each
agent in its node's namespace, with tokens bound to those pods. What works here works under the shipped RBAC and policies. On
real nodes, `lab.shipped` installs them as pods.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from controller.cluster.resources import NETWORK_TOPOLOGIES
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.waiting import poll_until
from kubekit.wire import CONFIGMAPS, NODES, PODS, SECRETS, ConfigMap, Node, Object, Pod
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, ControlPlane, credentials_of, exists, free_ports
from lab.errors import BootError
from lab.netperf_install import Netperf, find_if_available
from lab.programs import Program, Programs, agent_program, is_ready
from netperf.contract import AGENT, CAPACITY_ANNOTATION, CONTROLLER, HOME_NAMESPACE, NAME_LABEL, PROBE_SECRET, SCHEDULER

MANIFESTS = Path(__file__).parents[1] / "manifests"
OVERLAY = MANIFESTS / "overlays" / "default"
AGENT_PORT = 9850
TOPOLOGY_NAME = "nt-default"
"""Name of the NetworkTopology that the controller creates by its shipped configuration."""
# A lab should show a change of the network within seconds; a cluster has a minute.
ROUND_S, SLOT_S, PROBE_S = 8.0, 2.5, 1.0
_DEADLINE_S = 180.0
_POLL_S = 0.1


CENTRAL = (("controller", CONTROLLER, "manager"), ("extender", SCHEDULER, "extender"))
"""Our programs that run once: what they are called, their service account, and their verb of ``python -m controller``."""


@dataclass
class Installation:
    """Our programs in a lab.

    Attributes:
        prober: ``netperf``, or ``datagrams`` where netperf cannot be had.
        netperf: where netperf is, ``None`` where it cannot be had.
        extender_url: base URL of the extender.
        controller_url: where the controller serves metrics, health and the page.
        agent_urls: likewise for each agent, by node.
    """

    lab: Lab
    netperf: Netperf | None
    secret: str
    extender_url: str = ""
    controller_url: str = ""
    agent_urls: dict[str, str] = field(default_factory=dict)
    agents: list[Program] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """The controller's configuration."""
        return self.lab.paths.state_dir / "controller.yaml"

    def check(self) -> None:
        """Raise BootError, with the end of its log, when a program of the lab or an agent ended by itself."""
        self.lab.programs.check()
        for agent in self.agents:
            if agent.failed:
                raise BootError(agent.exit_message)

    @property
    def prober(self) -> str:
        """Name of the prober that the agents use."""
        return "datagrams" if self.netperf is None else "netperf"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which our programs find netperf."""
        if self.netperf is None:
            return {}
        search = os.pathsep.join((str(self.netperf.bin_dir), os.environ.get("PATH", os.defpath)))
        return {**self.netperf.env, "PATH": search}


async def install(
    lab: Lab,
    *,
    controller_config: Mapping[str, Any] | None = None,
    overlay: Path = OVERLAY,
) -> Installation:
    """Apply the manifests and start every program; returns when all are ready.

    Args:
        lab: a lab without a scheduler; this starts one that asks our extender.
        controller_config: sections of the ControllerConfiguration to change, deeply merged over the lab's own.
        overlay: which kustomization to apply.

    Raises:
        BootError: something did not start; the text holds the end of its log.
    """
    netperf = await asyncio.to_thread(find_if_available)
    installation = Installation(lab, netperf, secrets.token_hex(16))
    await lab.control_plane.run_kubectl("apply", "--server-side", "-k", overlay)
    manager_port, extender_port = free_ports(2)
    installation.controller_url = f"http://{LOOPBACK}:{manager_port}"
    installation.extender_url = f"http://{LOOPBACK}:{extender_port}"
    # The pods that stand for our programs are scheduled before the extender answers: the scheduler may ignore it.
    await lab.control_plane.start_scheduler(extender_url=installation.extender_url)
    async with Client(lab.client_config) as client:
        await _prepare(client, installation)
        _write_config(installation.config, controller_config or {})
        await _start_controller(client, installation)
        await _start_agents(client, installation)
        urls = [installation.controller_url, installation.extender_url, *installation.agent_urls.values()]
        await _wait_until_ready(installation, urls)
        # Replicas are ready before one of them leads, and only a leader creates what is missing.
        topology = partial(exists, client, NETWORK_TOPOLOGIES, TOPOLOGY_NAME, HOME_NAMESPACE)
        await _wait_until(topology, f"the leading controller to create NetworkTopology {TOPOLOGY_NAME}")
    lab.urls |= {"controller": installation.controller_url, "extender": installation.extender_url}
    lab.urls |= {f"agent/{node}": url for node, url in installation.agent_urls.items()}
    return installation


async def _prepare(client: Client, installation: Installation) -> None:
    """Create the probe secret and set each node's capacity from the topology file."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": PROBE_SECRET},
        "stringData": {"passphrase": installation.secret},
    }
    await client.apply(SECRETS, PROBE_SECRET, body, Object, field_manager="lab", namespace=HOME_NAMESPACE)
    for network in installation.lab.nodes:
        annotation = {"metadata": {"annotations": {CAPACITY_ANNOTATION: str(network.node.nic_bps)}}}
        await client.patch(NODES, network.node.name, annotation, Node, kind=MERGE_PATCH)


def _write_config(file: Path, changes: Mapping[str, Any]) -> None:
    base = yaml.safe_load((MANIFESTS / "base" / "controller" / "config.yaml").read_text())
    probing = {"intervalS": ROUND_S, "slotS": SLOT_S, "durationS": PROBE_S}
    document = _merged(base, {"topology": {"probing": probing}, "page": {"auth": "none"}})
    file.write_text(yaml.safe_dump(_merged(document, changes), sort_keys=False))


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


async def _start_controller(client: Client, installation: Installation) -> None:
    urls, config = (installation.controller_url, installation.extender_url), installation.config
    for (name, account, verb), url in zip(CENTRAL, urls, strict=True):
        kubeconfig = await bound_kubeconfig(client, installation.lab.control_plane, account, name)
        spawn_central(installation.lab.programs, name, verb, url, kubeconfig=kubeconfig, config=config)


def spawn_central(
    programs: Programs,
    name: str,
    verb: str,
    url: str,
    *,
    kubeconfig: Path,
    config: Path,
) -> None:
    """Start one of the controller's programs on the host.

    Args:
        programs: of the lab; they end with it.
        name: of the program, and of its pod as it knows it.
        verb: of ``python -m controller``.
        url: where it listens.
        kubeconfig: its credentials.
        config: of the controller.
    """
    argv = [sys.executable, "-m", "controller", verb]
    argv += [f"--credentials={credentials_of(kubeconfig)}", f"--config={config}"]
    argv += [f"--listen={url.removeprefix('http://')}", f"--namespace={HOME_NAMESPACE}"]
    programs.start(name, argv, env={"POD_NAME": name})


async def _start_agents(client: Client, installation: Installation) -> None:
    lab = installation.lab
    passphrase = lab.paths.state_dir / "probe-passphrase"
    passphrase.touch(mode=0o600)
    passphrase.write_text(installation.secret)
    for network in lab.nodes:
        node, name = network.node.name, agent_program(network.node.name)

        def on_node(pod: Pod, node: str = node) -> bool:
            return pod.spec.node_name == node

        kubeconfig = await bound_kubeconfig(client, lab.control_plane, AGENT, name, on_node)
        listen = f"{network.management_address}:{AGENT_PORT}"
        argv = [sys.executable, "-m", "agent", "run", f"--node-name={node}"]
        argv += [f"--credentials={credentials_of(kubeconfig)}"]
        argv += [f"--listen={listen}", f"--namespace={HOME_NAMESPACE}", f"--passphrase-file={passphrase}"]
        env = installation.environment
        agent = lab.programs.start(name, argv, netns=network.netns, env=env, essential=False)
        installation.agents.append(agent)
        installation.agent_urls[node] = f"http://{listen}"


async def bound_kubeconfig(
    client: Client, plane: ControlPlane, account: str, file_name: str, wanted: Callable[[Pod], bool] = bool
) -> Path:
    """A kubeconfig with the service account's token, bound to the pod that represents the program."""
    found: list[Pod] = []

    async def look() -> bool:
        pods = await client.list(PODS, Pod, namespace=HOME_NAMESPACE, label_selector=f"{NAME_LABEL}={account}")
        found[:] = [p for p in pods if p.spec.node_name and wanted(p)]
        return bool(found)

    await _wait_until(look, f"a pod of {account}")
    pod = found[0].metadata
    return await plane.write_token_kubeconfig(
        HOME_NAMESPACE, account, file_name=file_name, bound_pod=(pod.name, pod.uid)
    )


async def _wait_until_ready(installation: Installation, urls: list[str]) -> None:
    for url in urls:
        await _wait_until(partial(is_ready, f"{url}/readyz"), f"{url} to be ready", on_retry=installation.check)


async def result_maps(client: Client, base: str) -> list[ConfigMap]:
    """The ConfigMaps of results: one of this name, and its shards."""
    maps = await client.list(CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE)
    return [found for found in maps if found.metadata.name == base or found.metadata.name.startswith(f"{base}-")]


async def _wait_until(check: Callable[[], Awaitable[bool]], what: str, on_retry: Callable[[], object] = bool) -> None:
    async def holds() -> bool:
        try:
            return await check()
        except ApiError as error:
            if not error.is_transient:
                raise
            return False

    await poll_until(holds, what, _DEADLINE_S, every_s=_POLL_S, on_retry=on_retry, error=BootError)
