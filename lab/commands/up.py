"""``python -m lab up``: boots a lab in the background, unless it runs already, and prints how to use it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from kubekit.errors import ConfigError
from kubekit.runtime import run_program
from lab.build import find_or_build_binaries
from lab.cluster import ALL_COMPONENTS, Lab, find_or_build_node_binaries_if_needed
from lab.commands import arguments
from lab.errors import BootError, LabError
from lab.installation import install
from lab.netperf_install import find_netperf_if_available
from lab.paths import LabPaths, lab_paths
from lab.pod_installation import find_or_build_images, install_as_pods
from lab.programs import build_pythonpath_env
from lab.reclaim import find_running_pid
from lab.topology import Topology
from lab.unprivileged import LaunchCommand, plan_launch

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_POLL_S, _SHOWN_LOG_CHARS = 0.05, 3000


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("up", help="boot a lab and leave it running", description=__doc__)
    arguments.add_name(parser)
    arguments.add_topology(parser)
    arguments.add_nodes(parser)
    arguments.add_json(parser)
    parser.add_argument(
        "--programs", action="store_true", help="also install our agents, controller and extender from the manifests"
    )
    parser.add_argument(
        "--foreground", action="store_true", help="run in the foreground; Ctrl-C or SIGTERM stops the lab"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Boot the lab unless it runs; print how to use it."""
    topology = arguments.read_topology(args.topology, args.nodes)
    if args.programs and topology is None:
        raise ConfigError("--programs", "needs nodes to run on", "leave out `--topology none`")
    paths = lab_paths(args.name)
    description = _read_matching_description(paths, topology, needs_programs=args.programs)
    if description is not None:
        print(f"lab {paths.name} is up already", file=sys.stderr)
        _print_usage(description, as_json=args.json)
        return 0
    command, environment = _build_supervisor_command(args), {**os.environ, **build_pythonpath_env()}
    launch = plan_launch(command, environment) if topology is not None else LaunchCommand(command, environment)
    # Build in the foreground, so that its progress is visible.
    find_or_build_binaries()
    find_or_build_node_binaries_if_needed(topology)
    if args.programs and topology is not None and topology.real_nodes:
        find_or_build_images()
    elif args.programs:
        find_netperf_if_available()
    if args.foreground:
        launch.argv += ["--json"] if args.json else []
        launch.exec_if_wrapped()
        return run_program(lambda: _run_lab(topology, paths, args))
    _print_usage(_start_in_background(launch, paths), as_json=args.json)
    return 0


def _read_matching_description(
    paths: LabPaths, topology: Topology | None, *, needs_programs: bool
) -> dict[str, Any] | None:
    """Return the running lab's description; None if it does not run. Raises LabError if it does not match the arguments."""
    if find_running_pid(paths) is None:
        return None
    description = read_description(paths)
    difference = ""
    if description["topology"] != (topology.name if topology else None):
        difference = f"with topology {description['topology'] or 'none'}"
    elif topology is not None and _read_nodes(description) != {
        (n.name, n.zone, n.region, n.kubelet) for n in topology.nodes
    }:
        difference = "with other nodes or kubelets"
    elif needs_programs and "controller" not in description["addresses"]:
        difference = "without our programs"
    if difference:
        raise LabError(f"lab {paths.name} runs {difference}; `down` it first, or use --name")
    return description


def _read_nodes(description: dict[str, Any]) -> set[tuple[str, ...]]:
    return {tuple(node[key] for key in ("name", "zone", "region", "kubelet")) for node in description["nodes"]}


def read_description(paths: LabPaths) -> dict[str, Any]:
    """Read a running lab's description. Raises LabError if the lab is not up."""
    try:
        return msgspec.json.decode(paths.description.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        problem = "another command starts or stops it; try again in a few seconds"
        raise LabError(f"lab {paths.name} is not up: {problem}") from None


async def _run_lab(topology: Topology | None, paths: LabPaths, args: argparse.Namespace) -> None:
    runs_as_pods = args.programs and topology is not None and bool(topology.real_nodes)
    # Without real kubelets `install` starts the scheduler, because it knows the extender's address.
    starts_scheduler = runs_as_pods or not args.programs
    components = [name for name in ALL_COMPONENTS if name != "scheduler" or starts_scheduler]
    images = await asyncio.to_thread(find_or_build_images) if runs_as_pods else {}
    async with Lab.start(topology, name=paths.name, components=components) as lab:
        if runs_as_pods:
            await install_as_pods(lab, images)
        elif args.programs:
            await install(lab)
        lab.write_description()
        _print_usage(lab.describe(), as_json=args.json)
        await lab.log_ended_programs()


def _start_in_background(launch: LaunchCommand, paths: LabPaths) -> dict[str, Any]:
    """Start the process that runs the lab, and wait until the lab is up."""
    paths.supervisor_log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with paths.supervisor_log.open("wb") as log:
        process = subprocess.Popen(
            [*launch.argv, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=launch.env,
            start_new_session=True,
            pass_fds=launch.pass_fds,
        )
    try:
        _wait_until_up(process, paths)
    except BaseException:
        # Also after Ctrl-C.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    return read_description(paths)


def _wait_until_up(process: subprocess.Popen[bytes], paths: LabPaths) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_up(process, paths):
        if process.poll() is not None:
            log = paths.supervisor_log.read_text(errors="replace").strip()
            raise BootError(f"lab {paths.name} did not come up:\n{log[-_SHOWN_LOG_CHARS:]}")
        if time.monotonic() > deadline_s:
            reason = f"is not up after {_START_TIMEOUT_S:.0f} s; its log is {paths.supervisor_log}"
            raise BootError(f"lab {paths.name} {reason}")
        time.sleep(_POLL_S)


def _is_up(process: subprocess.Popen[bytes], paths: LabPaths) -> bool:
    try:
        return bool(read_description(paths)["pid"] == process.pid)
    except LabError:
        return False


def _build_supervisor_command(args: argparse.Namespace) -> list[str]:
    """Return the command of the process that runs the lab."""
    options = ["--foreground", "--name", args.name, "--topology", args.topology]
    options += ["--nodes", args.nodes] if args.nodes else []
    return [sys.executable, "-m", "lab", "up", *options, *(["--programs"] if args.programs else [])]


def _print_usage(lab: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        arguments.print_json(lab)
        return
    console = Console()
    console.print(f"Lab [bold]{lab['name']}[/]: Kubernetes {lab['version']}, up in {lab['boot_s']} s")
    if lab["nodes"]:
        table = Table("node", "region", "zone", "address", "namespace", "kubelet", title=f"topology {lab['topology']}")
        for node in lab["nodes"]:
            table.add_row(node["name"], node["region"], node["zone"], node["address"], node["netns"], node["kubelet"])
        console.print(table)
    option = "" if lab["name"] == arguments.DEFAULT_NAME else f" --name {lab['name']}"
    console.print(f"export KUBECONFIG={lab['kubeconfig']}", soft_wrap=True)
    console.print(f"{lab['kubectl']} get nodes -L topology.kubernetes.io/zone", soft_wrap=True)
    if lab["nodes"]:
        enter_command = " ".join([*lab["enter_command"], *lab["nodes"][0]["enter_command"]])
        console.print(f"{enter_command}   # a shell on {lab['nodes'][0]['name']}", soft_wrap=True)
        zones = (*lab["zones"], "ZONE", "ZONE")[:2]
        console.print(
            f"{sys.executable} -m lab wan set{option} {zones[0]} {zones[1]} --delay 30ms   # change a delay live"
        )
    if "controller" in lab["addresses"]:
        _print_page(console, lab)
    console.print(f"{sys.executable} -m lab down{option}", soft_wrap=True)


def _print_page(console: Console, lab: dict[str, Any]) -> None:
    """Print the plugin's command and the page's address."""
    plugin = Path(sys.executable).with_name("kubectl-netaware")
    command = str(plugin) if plugin.exists() else "kubectl netaware"
    console.print(f"{command} status   # or {command} --help", soft_wrap=True)
    page = f"{lab['addresses']['controller']}/"
    if lab["enter_command"]:
        # The host can reach only the API server of a lab in a user namespace.
        fetch = " ".join([*lab["enter_command"], "curl", f"{page}api/v1/overview"])
        console.print(f"the page can only be reached inside the lab's network: {fetch}", soft_wrap=True)
        return
    console.print(f"[bold]{page}[/]   # the page: open it in a browser", soft_wrap=True)
