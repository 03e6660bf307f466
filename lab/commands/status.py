"""``python -m lab status``: prints whether a lab runs, its programs, and the links of its emulated network."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from lab.commands import arguments
from lab.commands.up import read_description
from lab.commands.wan import build_link_table, describe_links
from lab.errors import WanError
from lab.paths import LabPaths, lab_paths
from lab.programs import find_processes
from lab.reclaim import find_running_pid
from lab.wan.control import WanControl

EXIT_NOT_RUNNING = 3
"""The code of init scripts for a program that does not run (LSB)."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "status", help="show programs and links of a lab; exit code 3 if it does not run", description=__doc__
    )
    arguments.add_name(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the state; return 0 if the lab runs, else `EXIT_NOT_RUNNING`."""
    paths = lab_paths(args.name)
    state = _read_state(paths)
    report: dict[str, Any] = {"name": args.name, "state": state}
    if state == "running":
        report |= read_description(paths)
        report["programs"] = _describe_programs(paths, report["programs"])
        report["wan"] = _describe_wan(paths) if report["nodes"] else None
    if args.json:
        arguments.print_json(report)
    else:
        _print_report(report)
    return 0 if state == "running" else EXIT_NOT_RUNNING


def _read_state(paths: LabPaths) -> str:
    if find_running_pid(paths) is not None:
        return "running" if paths.description.exists() else "starting or stopping"
    return "killed" if paths.state_dir.exists() else "absent"


def _describe_programs(paths: LabPaths, pids: dict[str, int]) -> list[dict[str, Any]]:
    """Return the lab's programs as plain data, with their resident memory in bytes."""
    rss_bytes_by_pid = {}
    for process in find_processes(paths.state_dir):
        with suppress(psutil.Error):
            rss_bytes_by_pid[process.pid] = process.memory_info().rss
    return [
        {
            "name": name,
            "pid": pid,
            "alive": pid in rss_bytes_by_pid,
            "rss_bytes": rss_bytes_by_pid.get(pid, 0),
            "log": str(paths.logs / f"{name}.log"),
        }
        for name, pid in pids.items()
    ]


def _describe_wan(paths: LabPaths) -> dict[str, Any]:
    try:
        return {"links": describe_links(WanControl(paths.wan_socket).read_links())}
    except WanError as error:
        return {"error": str(error)}


def _print_report(report: dict[str, Any]) -> None:
    console = Console()
    console.print(f"lab [bold]{report['name']}[/]: {report['state']}")
    if report["state"] == "killed":
        console.print("`python -m lab down` cleans up")
    if report["state"] != "running":
        return
    console.print(f"API server {report['server']}, kubeconfig {report['kubeconfig']}", soft_wrap=True)
    if "controller" in report["addresses"]:
        console.print(f"web page {report['addresses']['controller']}/", soft_wrap=True)
    table = Table("program", "pid", "memory", "log")
    for program in report["programs"]:
        memory = f"{program['rss_bytes'] / 2**20:.0f} MiB" if program["alive"] else "[red]ended[/]"
        table.add_row(program["name"], str(program["pid"]), memory, program["log"])
    console.print(table)
    wan = report["wan"]
    if wan and "links" in wan:
        console.print(build_link_table(wan["links"]))
    elif wan:
        console.print(f"emulated network: {wan['error']}")
