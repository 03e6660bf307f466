"""Starts and stops a whole lab: control plane, nodes and wide-area network.

The command line, the demo and the end-to-end tests use ``async with Lab.start(load_topology("four-zones")) as lab``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from kubekit import logs
from kubekit.client import Client
from kubekit.config import ClusterConfig
from lab import namespaces, unprivileged
from lab.build import Binaries, find_or_build_binaries
from lab.controlplane import ControlPlane
from lab.controlplane_commands import LOOPBACK
from lab.network import WAN_DEVICE, LabNetwork, NodeNetwork, create_network
from lab.nodes import await_usable_nodes, register_nodes
from lab.paths import LabPaths, lab_paths, write_atomically, write_private
from lab.programs import Programs, build_pythonpath_env
from lab.realnode.cluster import RealNodes, start_real_nodes
from lab.realnode.programs import NodeBinaries, find_or_build_node_binaries
from lab.reclaim import lock_lab, reclaim
from lab.scheduler_config import DEFAULT_PROFILE
from lab.topology import Topology
from lab.wan.control import WanControl
from lab.wan.plan import WanNode, WanPlan, list_links

P = ParamSpec("P")
T = TypeVar("T")

ALL_COMPONENTS = ("controller-manager", "scheduler", "kwok")
_WAN_TIMEOUT_S = 60.0
_PROGRAM_CHECK_INTERVAL_S = 0.25
_WAN_SEED = 260
"""The same for all labs, so that loss and jitter repeat as far as the packets arrive at the same times."""
log = logs.get("lab")


@dataclass
class Lab:
    """A running lab.

    Attributes:
        name: tells labs on one machine apart.
        paths: paths of its files.
        topology: nodes and delays; None for a control plane without nodes.
        control_plane: API server, etcd and controllers.
        programs: the running processes, including those of the control plane.
        networks: networks of the nodes, in the order of the topology.
        urls: name of a program, such as ``controller`` -> URL at which it serves.
        boot_s: how long the start took, seconds.
        real_nodes: the nodes with a real kubelet, and the images that they can pull.
        host_server: URL of the API server for the host, if the lab runs in a user namespace; else empty.
    """

    name: str
    paths: LabPaths
    topology: Topology | None
    control_plane: ControlPlane
    programs: Programs
    networks: tuple[NodeNetwork, ...]
    urls: dict[str, str] = field(default_factory=dict)
    boot_s: float = 0.0
    real_nodes: RealNodes = field(default_factory=RealNodes)
    host_server: str = ""

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        topology: Topology | None,
        *,
        name: str = "lab",
        components: Iterable[str] = ALL_COMPONENTS,
        folder: Path | None = None,
        binaries: Binaries | None = None,
        api_server_flags: Iterable[str] = (),
    ) -> AsyncIterator[Lab]:
        """Start a lab, and remove it at the end of the block. First removes what a killed lab of the same name left.

        Args:
            topology: nodes and delays; None for the control plane alone, which needs no privileges.
            name: labs of different names run side by side.
            components: programs beside etcd and the API server; without ``scheduler``, the caller can start one with an extender.
            folder: parent of the state directory; None for `labs_dir`.
            binaries: files of the control plane's programs; None to find or build them.
            api_server_flags: further flags of kube-apiserver, such as those of its audit log.

        Raises:
            ConfigError: the name is invalid.
            LabError: a lab of this name runs, this machine lacks something, or a program did not start.
        """
        started_s = time.monotonic()
        paths = lab_paths(name, folder)
        if binaries is None:
            binaries = await asyncio.to_thread(find_or_build_binaries)
        node_binaries = await asyncio.to_thread(find_or_build_node_binaries_if_needed, topology)
        with lock_lab(paths):
            await _run_in_thread(reclaim, paths)
            paths.state_dir.mkdir(parents=True, mode=0o700)
            try:
                async with _start_parts(
                    paths, topology, tuple(components), binaries, node_binaries, api_server_flags=api_server_flags
                ) as lab:
                    lab.boot_s = time.monotonic() - started_s
                    try:
                        yield lab
                    finally:
                        # The description tells other commands that the lab is up.
                        paths.description.unlink(missing_ok=True)
            except Exception:
                await _run_in_thread(_keep_logs, paths)
                raise
            finally:
                await _run_in_thread(reclaim, paths)

    @property
    def client_config(self) -> ClusterConfig:
        """The administrator's connection for kubekit's Client."""
        return self.control_plane.client_config

    @property
    def wan(self) -> WanControl:
        return WanControl(self.paths.wan_socket)

    def network_of(self, name: str) -> NodeNetwork:
        """The network of a node. Raises KeyError for an unknown name."""
        return {network.node.name: network for network in self.networks}[name]

    async def log_ended_programs(self) -> None:
        """Log each program that ends unexpectedly, once. Never returns."""
        logged: set[str] = set()
        while True:
            for program in self.programs:
                if program.has_failed and program.name not in logged:
                    logged.add(program.name)
                    log.warning("a program ended", name=program.name, code=program.poll(), log=program.log)
            await asyncio.sleep(_PROGRAM_CHECK_INTERVAL_S)

    def describe(self) -> dict[str, Any]:
        """Return the output of `up --json`, as plain data."""
        nodes = [
            {
                "name": network.node.name,
                "zone": network.node.zone,
                "region": network.node.region,
                "address": network.address,
                "management_address": network.management_address,
                "netns": network.netns,
                "kubelet": network.node.kubelet,
                "pod_range": network.pod_range,
                "enter_command": self._build_enter_command(network),
            }
            for network in self.networks
        ]
        namespace_options = ("--user", "--net", "--mount", "--preserve-credentials")
        enter_command = ["nsenter", f"--target={os.getpid()}", *namespace_options, "--"]
        return {
            "name": self.name,
            "pid": os.getpid(),
            "state_dir": str(self.paths.state_dir),
            "kubeconfig": str(self._host_kubeconfig if self.host_server else self.control_plane.kubeconfig),
            "kubectl": str(self.control_plane.kubectl),
            "server": self.host_server or self.control_plane.server,
            "enter_command": enter_command if self.host_server else [],
            "version": self.control_plane.binaries.version,
            "topology": self.topology.name if self.topology else None,
            "zones": list(self.topology.zones) if self.topology else [],
            "nodes": nodes,
            "addresses": {"api": self.host_server or self.control_plane.server, **self.urls},
            "programs": {program.name: program.pid for program in self.programs},
            "boot_s": round(self.boot_s, 2),
        }

    def _build_enter_command(self, network: NodeNetwork) -> list[str]:
        """Return the command that opens a shell on a node."""
        node = self.real_nodes.nodes.get(network.node.name)
        return ["nsenter", f"--target={node.pid}", "--all"] if node else namespaces.build_enter_command(network.netns)

    def set_host_server(self, url: str) -> None:
        """Set ``host_server``, and write the kubeconfig with which the host uses it."""
        self.host_server = url
        admin_kubeconfig = self.control_plane.kubeconfig.read_text()
        write_private(self._host_kubeconfig, admin_kubeconfig.replace(self.control_plane.server, url))

    @property
    def _host_kubeconfig(self) -> Path:
        return self.paths.state_dir / "host.kubeconfig"

    def write_description(self) -> None:
        """Write the output of `describe` to a file, which tells other commands that the lab is up."""
        write_atomically(self.paths.description, msgspec.json.encode(self.describe()))


@asynccontextmanager
async def _start_parts(
    paths: LabPaths,
    topology: Topology | None,
    components: tuple[str, ...],
    binaries: Binaries,
    node_binaries: NodeBinaries | None,
    *,
    api_server_flags: Iterable[str],
) -> AsyncIterator[Lab]:
    """Create the network, and start the control plane, the emulated network and the nodes. `Lab.start` removes the network and files."""
    # PYTHONFAULTHANDLER: after a crash in native code the program's log has its stack.
    programs = Programs(paths.state_dir, {**build_pythonpath_env(), "PYTHONFAULTHANDLER": "1"})
    network: LabNetwork | None = None
    if topology is not None:
        network = await _run_in_thread(create_network, topology.nodes, paths.state_dir)
    address = network.gateway if network else LOOPBACK
    async with ControlPlane.start(
        paths.name,
        state_dir=paths.state_dir,
        # On real nodes our scheduler runs as a pod. A second scheduler of the same name would place its pods without our extender.
        components=components if node_binaries is None else tuple(c for c in components if c != "scheduler"),
        address=address,
        binaries=binaries,
        programs=programs,
        api_server_flags=api_server_flags,
    ) as control_plane:
        lab = Lab(paths.name, paths, topology, control_plane, programs, network.node_networks if network else ())
        if network is not None and topology is not None:
            await _start_wan(lab, topology, programs)
            await _start_nodes(lab, network, node_binaries, components)
        async with contextlib.AsyncExitStack() as stack:
            listener = unprivileged.find_inherited_listener()
            if listener is not None:
                port = int(control_plane.server.rsplit(":", 1)[1])
                relay = unprivileged.relay_connections(listener, address, port)
                lab.set_host_server(await stack.enter_async_context(relay))
            yield lab


def find_or_build_node_binaries_if_needed(topology: Topology | None) -> NodeBinaries | None:
    """Return the binaries of real nodes; None if the topology has none. Blocks; raises as `find_or_build_node_binaries`."""
    return find_or_build_node_binaries() if topology is not None and topology.real_nodes else None


async def _start_nodes(
    lab: Lab, network: LabNetwork, binaries: NodeBinaries | None, components: tuple[str, ...]
) -> None:
    if binaries is not None:
        if "scheduler" in components:
            # Without our profile, because our scheduler runs as a pod.
            await lab.control_plane.start_scheduler(profiles=(DEFAULT_PROFILE,))
        lab.real_nodes = await start_real_nodes(
            lab.name,
            lab.paths.state_dir,
            network,
            control_plane=lab.control_plane,
            programs=lab.programs,
            binaries=binaries,
        )
    async with Client(lab.client_config) as client:
        if "kwok" in components:
            await register_nodes(client, tuple(n for n in network.node_networks if not n.pod_range), lab.name)
        await await_usable_nodes(client)


async def _start_wan(lab: Lab, topology: Topology, programs: Programs) -> None:
    nodes = [WanNode(n.node.zone, n.netns, n.address, n.node.nic_bps, n.pod_range) for n in lab.networks]
    plan = WanPlan(WAN_DEVICE, _WAN_SEED, nodes, list_links(topology))
    plan_file = lab.paths.state_dir / "wan.json"
    plan_file.write_bytes(msgspec.json.encode(plan))
    socket_path = lab.paths.wan_socket
    programs.start("wan", [sys.executable, "-m", "lab.wan", plan_file, socket_path])
    await programs.wait_until(socket_path.exists, "the emulated network to start", _WAN_TIMEOUT_S)


async def _run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread.

    Waits for the thread also when cancelled, because the clean-up that follows would miss what the thread still creates.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _keep_logs(paths: LabPaths) -> None:
    """Move the logs of a failed lab out of its state directory, which is then removed."""
    shutil.rmtree(paths.kept_logs, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.move(paths.logs, paths.kept_logs)
