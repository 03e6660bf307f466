"""The agent's settings: flags, equivalent environment variables, and a file with capacities by node label or instance type.

All settings are checked before the agent starts. An error names the flag, or the file and its field.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec

from kubekit import logs, quantity, selectors
from kubekit.addresses import parse_host_address
from kubekit.errors import ConfigError, QuantityError, SelectorError
from kubekit.http import parse_listen
from kubekit.settings import Section, convert, load_yaml
from netperf.contract import NETAWARE_NAMESPACE, ApiVersion
from netperf.measurement import PERCENTILES, Percentile

BandwidthMode = Literal["observe", "enforce", "off"]
TrafficMode = Literal["off", "conntrack"]
ENVIRONMENT_PREFIX = "NETAWARE_"
PASSPHRASE_FILE = Path("/etc/netaware/probe/passphrase")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Reserve(msgspec.Struct, frozen=True):
    """Bandwidth reserved for the node itself: a share of the capacity from 0 to 1, plus bits per second."""

    ratio: float = 0.0
    rate_bps: int = 0


class CapacityRule(msgspec.Struct, frozen=True):
    """The capacity of nodes that match a label selector, and the selector's text."""

    selector: selectors.Selector
    selector_text: str
    rate_bps: int


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The checked configuration: the values of `add_flags`, which describes them, and of the file.

    Attributes:
        node_name: empty for commands that need none.
        credentials: None for the pod's ServiceAccount.
        address: None for the node's InternalIP.
        capacity_bps: None for the hardware's capacity.
        capacity_rules, capacity_by_type: capacities of the file, by node label and by instance type.
        cni_network: None for the name in the node's CNI configuration.
        max_stream_bps: mean bandwidth that stream probes may take, bits per second.
        upstream_percentiles: ``--upstream-keys``.
        proc, sys: where the host's proc and sys file systems are mounted.
    """

    node_name: str
    credentials: str | None = None
    listen: str = "0.0.0.0:9850"
    namespace: str = NETAWARE_NAMESPACE
    address: str | None = None
    capacity_bps: int | None = None
    capacity_rules: tuple[CapacityRule, ...] = ()
    capacity_by_type: Mapping[str, int] = {}
    reserve: Reserve = Reserve()
    uses_measured_capacity: bool = False
    bandwidth: BandwidthMode = "observe"
    repair_burst: bool = False
    cni_network: str | None = None
    is_probing: bool = True
    traffic: TrafficMode = "off"
    passphrase_file: Path = PASSPHRASE_FILE
    max_stream_bps: float = 10e6
    upstream_percentiles: tuple[Percentile, ...] = ()
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


class _NodeCapacity(Section, frozen=True):
    """Capacity of the nodes that match a selector.

    Attributes:
        selector: label selector, as for kubectl.
        capacity: bits per second, such as 10G.
    """

    selector: str
    capacity: str | int


class _ConfigFile(Section, frozen=True):
    """The file of ``--config``.

    Attributes:
        capacity_by_node: capacities by node label; the first match counts.
        capacity_by_instance_type: bits per second by instance type.
    """

    api_version: ApiVersion
    kind: Literal["AgentConfiguration"]
    capacity_by_node: list[_NodeCapacity] = []
    capacity_by_instance_type: dict[str, str | int] = {}


def add_flags(parser: argparse.ArgumentParser, environ: Mapping[str, str] = os.environ) -> None:
    """Declare the flags of all commands. Values stay strings: `read_config` checks them, and names the flag in errors."""

    def add_flag(name: str, help_: str, default: str | None = None, *, variable: str = "", **options: Any) -> None:
        variable = variable or ENVIRONMENT_PREFIX + name.replace("-", "_").upper()
        default_text = "" if default is None else f"; default {default.replace('%', '%%')}"
        default = environ.get(variable, default)
        parser.add_argument(f"--{name}", default=default, help=f"{help_} (${variable}{default_text})", **options)

    def add_switch(name: str, help_: str) -> None:
        add_flag(name, help_, "false", nargs="?", const="true", metavar="BOOL")

    add_flag("node-name", "name of this node", variable="NODE_NAME", metavar="NAME")
    add_flag("credentials", "directory with server, ca.crt and token; default: the pod's ServiceAccount", metavar="DIR")
    add_flag(
        "namespace", "namespace of plans and results", NETAWARE_NAMESPACE, variable="POD_NAMESPACE", metavar="NAME"
    )
    add_flag("listen", "address of /metrics, /healthz, /readyz", "0.0.0.0:9850", metavar="HOST:PORT")
    add_flag("config", "capacities by node label and instance type", metavar="FILE")
    add_flag("address", "address at which this node is probed; default: its InternalIP", metavar="IP")
    add_flag("capacity", "capacity in bit/s, such as 10G, instead of the hardware's", metavar="QUANTITY")
    add_flag("reserve", "share or quantity (bit/s) to subtract from the capacity, such as 10%%", "0", metavar="SHARE")
    add_switch("measured-capacity", "if nothing else is known, use the highest throughput of stream probes")
    add_flag("bandwidth", "bandwidth annotations of pods: observe, enforce, off", "observe", metavar="MODE")
    add_switch("repair-burst", "with enforce, also repair the bursts of limits that the CNI plugin set")
    add_flag("cni-network", "name of the CNI network; default: from the CNI configuration", metavar="NAME")
    add_flag("probing", "take part in measuring: on, off", "on", metavar="on|off")
    add_flag("traffic", "count bytes between pods: conntrack (by connection tracking), off", "off", metavar="MODE")
    add_flag("passphrase-file", "file with the probing passphrase; may be absent", str(PASSPHRASE_FILE), metavar="FILE")
    add_flag("max-stream-bandwidth", "mean bandwidth that stream probes may take", "10M", metavar="QUANTITY")
    add_flag("upstream-keys", "percentiles to write also in upstream's key format, such as p90", "", metavar="LIST")
    add_flag("log-format", "text or json", "text", metavar="FORMAT")
    add_flag("log-level", "debug, info, warning, error", "info", metavar="LEVEL")


def set_up_logs(arguments: argparse.Namespace) -> None:
    """Configure logging by the flags.

    Raises:
        ConfigError: format or level is unknown.
    """
    format_ = _parse_choice("--log-format", arguments.log_format, logs.FORMATS)
    level = _parse_choice("--log-level", arguments.log_level, logs.LEVELS)
    logs.configure(format_=format_, level=level)


def read_config(arguments: argparse.Namespace, *, is_node_required: bool = True) -> AgentConfig:
    """Read the configuration from the parsed flags of `add_flags`, and check it; the node's name may be missing unless it is required.

    Raises:
        ConfigError: a value is invalid; names the flag, or the file and its field.
    """
    if is_node_required and not arguments.node_name:
        raise ConfigError("--node-name", "is not set", "give --node-name NAME or set NODE_NAME")
    parse_listen(arguments.listen)
    capacity_rules, capacity_by_type = read_capacities(Path(arguments.config)) if arguments.config else ((), {})
    return AgentConfig(
        node_name=_parse_object_name("--node-name", arguments.node_name) if arguments.node_name else "",
        credentials=arguments.credentials or None,
        listen=arguments.listen,
        namespace=_parse_object_name("--namespace", arguments.namespace),
        address=_parse_address(arguments.address) if arguments.address else None,
        capacity_bps=parse_rate("--capacity", arguments.capacity) if arguments.capacity else None,
        capacity_rules=capacity_rules,
        capacity_by_type=capacity_by_type,
        reserve=parse_reserve(arguments.reserve),
        uses_measured_capacity=_parse_boolean("--measured-capacity", arguments.measured_capacity),
        bandwidth=cast("BandwidthMode", _parse_choice("--bandwidth", arguments.bandwidth, get_args(BandwidthMode))),
        repair_burst=_parse_boolean("--repair-burst", arguments.repair_burst),
        cni_network=arguments.cni_network or None,
        is_probing=_parse_choice("--probing", arguments.probing, ("on", "off")) == "on",
        traffic=cast("TrafficMode", _parse_choice("--traffic", arguments.traffic, get_args(TrafficMode))),
        passphrase_file=Path(arguments.passphrase_file),
        max_stream_bps=parse_rate("--max-stream-bandwidth", arguments.max_stream_bandwidth),
        upstream_percentiles=_parse_percentiles(arguments.upstream_keys),
    )


def read_capacities(path: Path) -> tuple[tuple[CapacityRule, ...], dict[str, int]]:
    """Read capacities from the file of ``--config``: by label selector, in order, and by instance type.

    Raises:
        ConfigError: the file cannot be read, or a field in it is wrong; names file and field.
    """
    document = load_yaml(path, "--config")
    try:
        file = convert(document, _ConfigFile)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.problem, "see the reference of AgentConfiguration") from error
    rules: list[CapacityRule] = []
    for index, rule in enumerate(file.capacity_by_node):
        field = f"{path}: capacityByNode[{index}]"
        try:
            selector = selectors.parse_selector(rule.selector)
        except SelectorError as error:
            raise ConfigError(f"{field}.selector", str(error)) from error
        rules.append(CapacityRule(selector, rule.selector, parse_rate(f"{field}.capacity", rule.capacity)))
    capacity_by_type = {
        name: parse_rate(f"{path}: capacityByInstanceType[{name}]", value)
        for name, value in file.capacity_by_instance_type.items()
    }
    return tuple(rules), capacity_by_type


def parse_rate(field: str, text: str | int) -> int:
    """Parse a quantity in bits per second, an integer above 0.

    Raises:
        ConfigError: ``text`` is invalid; names ``field``.
    """
    rate_bps = _parse_quantity(field, text)
    if rate_bps <= 0:
        raise ConfigError(field, f"{text!r} is not above 0", "write bits per second, such as 10G")
    return rate_bps


def parse_reserve(text: str) -> Reserve:
    """Parse a reserve: ``10%`` or a quantity in bits per second; 0 reserves nothing.

    Raises:
        ConfigError: ``text`` is invalid, or 100 % or more.
    """
    if text.strip().endswith("%"):
        number = text.strip().removesuffix("%")
        if re.fullmatch(r"\d{1,2}(\.\d+)?", number):
            return Reserve(ratio=float(number) / 100)
        raise ConfigError("--reserve", f"{text!r} is not a share below 100%", "write 10% or a quantity such as 500M")
    rate_bps = _parse_quantity("--reserve", text)
    if rate_bps < 0:
        raise ConfigError("--reserve", f"{text!r} is below 0", "write 10% or a quantity such as 500M")
    return Reserve(rate_bps=rate_bps)


def _parse_quantity(field: str, text: str | int) -> int:
    try:
        return quantity.parse_int(text)
    except QuantityError as error:
        raise ConfigError(field, str(error)) from error


def _parse_percentiles(text: str) -> tuple[Percentile, ...]:
    """Parse a list of percentiles such as ``p50,p90``; may be empty."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(cast("Percentile", _parse_choice("--upstream-keys", part, PERCENTILES)) for part in parts)


def _parse_address(text: str) -> str:
    """Parse the literal IP address of a host."""
    address = parse_host_address(text)
    if address is None:
        raise ConfigError(
            "--address", f"{text!r} is not an address to connect to", "write one of the node's own IP addresses"
        )
    return str(address)


def _parse_choice(field: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise ConfigError(field, f"{text!r} is unknown", "write " + ", ".join(choices))
    return text


def _parse_boolean(field: str, text: str) -> bool:
    return _parse_choice(field, text.lower(), ("true", "false")) == "true"


def _parse_object_name(field: str, text: str) -> str:
    if not _OBJECT_NAME.fullmatch(text):
        raise ConfigError(field, f"{text!r} is not an object name", "write lower case letters, digits, - and .")
    return text
