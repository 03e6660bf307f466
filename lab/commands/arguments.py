"""Arguments that several commands share, so that they are spelt and explained the same way everywhere."""

from __future__ import annotations

import argparse

from lab.cluster import AUTO
from lab.topology import DEFAULT, SHIPPED, Topology, load
from lab.wan.plan import NETEM, USERSPACE


def add_name(parser: argparse.ArgumentParser) -> None:
    """``--name``."""
    parser.add_argument(
        "--name", default="lab", help="which lab; labs of different names run side by side (%(default)s)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else")


def add_topology(parser: argparse.ArgumentParser) -> None:
    """``--topology``."""
    shipped = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    parser.add_argument(
        "--topology",
        default=DEFAULT,
        metavar="NAME|FILE|none",
        help=f"one of {shipped}, a YAML file, or none for the control plane alone (%(default)s)",
    )


def add_wan(parser: argparse.ArgumentParser) -> None:
    """``--wan``."""
    parser.add_argument(
        "--wan",
        choices=(AUTO, NETEM, USERSPACE),
        default=AUTO,
        help="what delays packets: the kernel's netem, a process of ours, or netem where the kernel has it (%(default)s)",
    )


def read_topology(text: str) -> Topology | None:
    """What ``--topology`` asks for. Raises ConfigError when it is not valid."""
    return None if text == "none" else load(text)
