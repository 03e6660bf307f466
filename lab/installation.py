"""Installs our programs in a lab without real kubelets: the shipped manifests, then agents, controller and extender.

kwok simulates the kubelets, so the manifests' pods run nothing. Instead, the programs run on the host, each agent in its node's network
namespace. Their tokens are bound to these pods, so that the shipped RBAC and policies apply. For real nodes see `lab.pod_installation`.
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
from typing import Any, NamedTuple

import yaml

from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, PODS, SECRETS, ConfigMap, Node, Object, Pod
from lab.cluster import Lab
from lab.controlplane import ControlPlane, find_free_ports, object_exists
from lab.controlplane_commands import LOOPBACK
from lab.credentials import credentials_dir
from lab.errors import BootError
from lab.netperf_install import Netperf, find_netperf_if_available
from lab.paths import write_private
from lab.polling import poll_until
from lab.programs import Programs, agent_program_name, answers_ok
from netperf.contract import (
    AGENT,
    CAPACITY_ANNOTATION,
    CONTROLLER,
    NAME_LABEL,
    NETAWARE_NAMESPACE,
    PASSPHRASE_KEY,
    PROBE_SECRET,
    SCHEDULER,
)

MANIFESTS = Path(__file__).parents[1] / "manifests"
OVERLAY = MANIFESTS / "overlays" / "default"
AGENT_PORT = 9850
TOPOLOGY_NAME = "nt-default"
"""Name of the NetworkTopology that the controller creates with its shipped configuration."""
# Probing interval, slot and duration: shorter than in a cluster, so that costs follow changes of the network within seconds.
ROUND_S, SLOT_S, PROBE_S = 8.0, 2.5, 1.0
_DEADLINE_S = 180.0
_POLL_S = 0.1
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed later."""


class CentralProgram(NamedTuple):
    """A program of ours that runs once in a lab: its name there, its service account, and its verb of ``python -m controller``."""

    name: str
    service_account: str
    verb: str


CENTRAL_PROGRAMS = (
    CentralProgram("controller", CONTROLLER, "manager"),
    CentralProgram("extender", SCHEDULER, "extender"),
)


@dataclass
class Installation:
    """Our programs in a lab.

    Attributes:
        netperf: paths of netperf; None if netperf is not available.
        passphrase: the probing passphrase.
        extender_url: base URL of the extender.
        controller_url: base URL of the controller's metrics, health checks and page.
        agent_urls: node -> base URL of its agent's metrics and health checks.
    """

    lab: Lab
    netperf: Netperf | None
    passphrase: str
    extender_url: str = ""
    controller_url: str = ""
    agent_urls: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """File of the controller's configuration."""
        return self.lab.paths.state_dir / "controller.yaml"

    @property
    def prober(self) -> str:
        """The prober that the agents use: ``netperf``, or ``datagrams`` if netperf is not available."""
        return "datagrams" if self.netperf is None else "netperf"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which our programs find netperf."""
        if self.netperf is None:
            return {}
        search_path = os.pathsep.join((str(self.netperf.netperf.parent), os.environ.get("PATH", os.defpath)))
        return {**self.netperf.env, "PATH": search_path}


async def install(
    lab: Lab, *, controller_config: Mapping[str, Any] | None = None, overlay: Path = OVERLAY
) -> Installation:
    """Apply an overlay, start all programs and a scheduler with our extender, and wait until they are ready.

    ``controller_config`` is merged deeply into the lab's ControllerConfiguration. Raises BootError, with the end of its log, if a program
    does not start.
    """
    netperf = await asyncio.to_thread(find_netperf_if_available)
    installation = Installation(lab, netperf, secrets.token_hex(16))
    await lab.control_plane.run_kubectl("apply", "--server-side", "-k", overlay)
    manager_port, extender_port = find_free_ports(2)
    installation.controller_url = f"http://{LOOPBACK}:{manager_port}"
    installation.extender_url = f"http://{LOOPBACK}:{extender_port}"
    # Our programs' pods are scheduled before the extender answers, which the scheduler's configuration permits (ignorable).
    await lab.control_plane.start_scheduler(extender_url=installation.extender_url)
    async with Client(lab.client_config) as client:
        await _write_secret_and_capacities(client, installation)
        _write_config(installation.config, controller_config or {})
        await _start_central_programs(client, installation)
        await _start_agents(client, installation)
        urls = [installation.controller_url, installation.extender_url, *installation.agent_urls.values()]
        for url in urls:
            check = partial(answers_ok, f"{url}/readyz")
            await _poll_until(check, f"{url} to be ready", on_retry=lab.programs.check_running)
        # A replica is ready before it leads, and only a leader creates the NetworkTopology.
        has_topology = partial(object_exists, client, NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NETAWARE_NAMESPACE)
        await _poll_until(has_topology, f"the leading controller to create NetworkTopology {TOPOLOGY_NAME}")
    lab.urls |= {"controller": installation.controller_url, "extender": installation.extender_url}
    lab.urls |= {f"agent/{node}": url for node, url in installation.agent_urls.items()}
    return installation


async def _write_secret_and_capacities(client: Client, installation: Installation) -> None:
    """Create the Secret with the probing passphrase, and annotate each node with its capacity from the topology file."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": PROBE_SECRET},
        "stringData": {PASSPHRASE_KEY: installation.passphrase},
    }
    await client.apply(SECRETS, PROBE_SECRET, body, Object, field_manager="lab", namespace=NETAWARE_NAMESPACE)
    for network in installation.lab.networks:
        annotation = {"metadata": {"annotations": {CAPACITY_ANNOTATION: str(network.node.nic_bps)}}}
        await client.patch(NODES, network.node.name, annotation, Node, patch_type=MERGE_PATCH)


def _write_config(file: Path, changes: Mapping[str, Any]) -> None:
    base = yaml.safe_load((MANIFESTS / "base" / "controller" / "config.yaml").read_text())
    probing = {"intervalS": ROUND_S, "slotS": SLOT_S, "durationS": PROBE_S}
    document = _merge_deeply(base, {"topology": {"probing": probing}, "page": {"auth": "none"}})
    file.write_text(yaml.safe_dump(_merge_deeply(document, changes), sort_keys=False))


def _merge_deeply(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = _merge_deeply(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


async def _start_central_programs(client: Client, installation: Installation) -> None:
    urls, config = (installation.controller_url, installation.extender_url), installation.config
    for program, url in zip(CENTRAL_PROGRAMS, urls, strict=True):
        name, account = program.name, program.service_account
        kubeconfig = await write_bound_kubeconfig(client, installation.lab.control_plane, account, name)
        start_central_program(installation.lab.programs, name, program.verb, url, kubeconfig=kubeconfig, config=config)


def start_central_program(
    programs: Programs, name: str, verb: str, url: str, *, kubeconfig: Path, config: Path
) -> None:
    """Start a verb of ``python -m controller`` on the host, which listens at a URL; its name is also that of its pod (POD_NAME)."""
    argv = [sys.executable, "-m", "controller", verb]
    argv += [f"--credentials={credentials_dir(kubeconfig)}", f"--config={config}"]
    argv += [f"--listen={url.removeprefix('http://')}", f"--namespace={NETAWARE_NAMESPACE}"]
    programs.start(name, argv, env={"POD_NAME": name})


async def _start_agents(client: Client, installation: Installation) -> None:
    lab = installation.lab
    passphrase_file = lab.paths.state_dir / "probe-passphrase"
    write_private(passphrase_file, installation.passphrase)
    for network in lab.networks:
        node, name = network.node.name, agent_program_name(network.node.name)

        def on_node(pod: Pod, node: str = node) -> bool:
            return pod.spec.node_name == node

        kubeconfig = await write_bound_kubeconfig(client, lab.control_plane, AGENT, name, on_node)
        listen = f"{network.management_address}:{AGENT_PORT}"
        argv = [sys.executable, "-m", "agent", "run", f"--node-name={node}"]
        argv += [f"--credentials={credentials_dir(kubeconfig)}"]
        argv += [f"--listen={listen}", f"--namespace={NETAWARE_NAMESPACE}", f"--passphrase-file={passphrase_file}"]
        lab.programs.start(name, argv, netns=network.netns, env=installation.environment)
        installation.agent_urls[node] = f"http://{listen}"


async def write_bound_kubeconfig(
    client: Client,
    control_plane: ControlPlane,
    account: str,
    file_name: str,
    matches: Callable[[Pod], bool] = lambda _: True,
) -> Path:
    """Write a kubeconfig with a token of a service account, bound to its first scheduled pod that ``matches``."""

    async def find_pod() -> Pod | None:
        pods = await client.list(PODS, Pod, namespace=NETAWARE_NAMESPACE, label_selector=f"{NAME_LABEL}={account}")
        return next((pod for pod in pods if pod.spec.node_name and matches(pod)), None)

    pod = (await _poll_until(find_pod, f"a pod of {account}")).metadata
    return await control_plane.write_token_kubeconfig(
        NETAWARE_NAMESPACE, account, file_name=file_name, bound_pod=(pod.name, pod.uid)
    )


async def get_network_topology(client: Client) -> NetworkTopology:
    """Return the NetworkTopology `TOPOLOGY_NAME`. Raises as `Client.get`."""
    return await client.get(NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NETAWARE_NAMESPACE)


async def list_result_configmaps(client: Client, base: str) -> list[ConfigMap]:
    """Return the ConfigMaps with measurement results: the one named ``base``, and its shards."""
    maps = await client.list(CONFIGMAPS, ConfigMap, namespace=NETAWARE_NAMESPACE)
    return [item for item in maps if item.metadata.name == base or item.metadata.name.startswith(f"{base}-")]


async def _poll_until(
    check: Callable[[], Awaitable[object]], description: str, on_retry: Callable[[], object] = lambda: None
) -> Any:
    """Poll as `poll_until`, and ignore transient errors of the API server."""

    async def check_unless_transient() -> object:
        try:
            return await check()
        except ApiError as error:
            if error.status not in _TRANSIENT_STATUSES:
                raise
            return None

    return await poll_until(
        check_unless_transient, description, _DEADLINE_S, every_s=_POLL_S, on_retry=on_retry, error=BootError
    )
