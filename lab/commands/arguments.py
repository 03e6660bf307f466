"""What several commands share: arguments, progress lines and JSON output."""

from __future__ import annotations

import argparse
import time

import msgspec
from rich.console import Console

from kubekit.errors import ConfigError
from lab.progress import ProgressPrinter
from lab.topology import DEFAULT_TOPOLOGY, KUBELET_KINDS, TOPOLOGY_DIR, Topology, load_topology

DEFAULT_NAME = "lab"


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", default=DEFAULT_NAME, help="which lab; labs of different names run side by side (%(default)s)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else")


def print_json(value: object) -> None:
    """Print one JSON object on stdout."""
    print(msgspec.json.encode(value).decode(), flush=True)


def add_topology(parser: argparse.ArgumentParser) -> None:
    shipped = ", ".join(sorted(path.stem for path in TOPOLOGY_DIR.glob("*.yaml")))
    parser.add_argument(
        "--topology",
        default=DEFAULT_TOPOLOGY,
        metavar="NAME|FILE|none",
        help=f"one of {shipped}, a YAML file, or none for the control plane alone (%(default)s)",
    )


def add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        choices=KUBELET_KINDS,
        help="kubelets of all nodes: real, with containerd (needs root), or simulated by kwok; default: as in the topology",
    )


def make_progress_printer() -> ProgressPrinter:
    """Return a function that prints a line to stderr, with the seconds since it was made."""
    started_s, console = time.monotonic(), Console(stderr=True)

    def print_progress(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started_s:6.1f} s[/]  {text}", highlight=False, soft_wrap=True)

    return print_progress


def read_topology(text: str, kubelets: str | None = None) -> Topology | None:
    """Read the topology of ``--topology`` and ``--nodes``. Raises ConfigError if it is invalid."""
    if text == "none":
        if kubelets is not None:
            raise ConfigError("--nodes", "the topology has no nodes", "leave out `--topology none`")
        return None
    topology = load_topology(text)
    return topology if kubelets is None else topology.with_kubelets(kubelets)
