"""Reads topology files: the regions, zones and nodes of a lab, and the links between its zones.

Unknown fields are errors, because a lab that ignores a misspelt field would not measure what its user expects. Every error names the
file and the field.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kubekit import quantity
from kubekit.durations import parse_duration
from kubekit.errors import ConfigError, QuantityError
from kubekit.settings import Section, convert, parse_yaml

KWOK_KUBELET, REAL_KUBELET = "kwok", "real"
KUBELET_KINDS = (KWOK_KUBELET, REAL_KUBELET)
TOPOLOGY_DIR = Path(__file__).parent / "topologies"
DEFAULT_TOPOLOGY = "four-zones"
MAX_NODES = 200
# RFC 1123 labels, because names become names of objects, network namespaces and log files.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_PERCENT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)%\Z")
_MAX_RTT_S = 10.0


@dataclass(frozen=True)
class Link:
    """Delay, jitter and loss between two zones or inside a zone, equal in both directions.

    Attributes:
        rtt_us: shortest round trip, microseconds; half of it in each direction.
        jitter_us: range of the uniformly distributed time that is added to round trips, microseconds.
        loss: share of packets lost in each direction, 0 to 1.
    """

    rtt_us: float
    jitter_us: float = 0.0
    loss: float = 0.0

    @property
    def has_excessive_jitter(self) -> bool:
        """Whether the jitter exceeds the round trip, which is invalid."""
        return self.jitter_us > self.rtt_us


@dataclass(frozen=True)
class LabNode:
    """A node of a topology.

    Attributes:
        name: name of the Node object.
        region: label ``topology.kubernetes.io/region``.
        zone: label ``topology.kubernetes.io/zone``.
        cpu, memory, pods: its capacity, as quantities.
        nic_bps: speed of its network card, bits per second.
        kubelet: ``real``, or ``kwok`` for a simulated one.
    """

    name: str
    region: str
    zone: str
    cpu: str
    memory: str
    pods: str
    nic_bps: int
    kubelet: str = KWOK_KUBELET


@dataclass(frozen=True)
class Topology:
    """Nodes, and links between their zones, from a checked file.

    Attributes:
        name: name of the topology, not of the lab.
        nodes: in the order of the file.
        same_zone: link between two nodes of a zone.
        links: two zones, as `zone_pair` orders them -> link between them.
    """

    name: str
    nodes: tuple[LabNode, ...]
    same_zone: Link
    links: Mapping[tuple[str, str], Link]

    @property
    def zones(self) -> tuple[str, ...]:
        """Names of the zones, in the order of the file."""
        return tuple(dict.fromkeys(node.zone for node in self.nodes))

    @property
    def real_nodes(self) -> tuple[LabNode, ...]:
        """Nodes with a real kubelet."""
        return tuple(node for node in self.nodes if node.kubelet == REAL_KUBELET)

    def with_kubelets(self, kubelet: str) -> Topology:
        """Return the topology with this kind of kubelet on all nodes."""
        return replace(self, nodes=tuple(replace(node, kubelet=kubelet) for node in self.nodes))

    def link_between(self, zone: str, other: str) -> Link:
        """Return the link between two zones; for one zone twice, the link inside it."""
        return self.same_zone if zone == other else self.links[zone_pair(zone, other)]


def zone_pair(zone: str, other: str) -> tuple[str, str]:
    """Return the key of a pair of zones: both names in bytewise order."""
    return (zone, other) if zone <= other else (other, zone)


class _NodeSection(Section, frozen=True):
    name: str
    cpu: str | int | None = None
    memory: str | int | None = None
    pods: str | int | None = None
    nic: str | int | None = None
    kubelet: str | None = None


class _Defaults(Section, frozen=True):
    cpu: str | int = "4"
    memory: str | int = "16Gi"
    pods: str | int = "110"
    nic: str | int = "1G"
    kubelet: str = KWOK_KUBELET


class _ZoneSection(Section, frozen=True):
    name: str
    nodes: list[_NodeSection]


class _RegionSection(Section, frozen=True):
    name: str
    zones: list[_ZoneSection]


class _LinkSection(Section, frozen=True):
    rtt: str | float
    jitter: str | float = "0us"
    loss: str | float = "0%"


class _PairSection(_LinkSection, frozen=True, kw_only=True):
    between: tuple[str, str]


class _TopologyFile(Section, frozen=True):
    name: str
    regions: list[_RegionSection]
    node_defaults: _Defaults = _Defaults()
    same_zone: _LinkSection = _LinkSection(rtt="150us")
    links: list[_PairSection] = []


def load_topology(name_or_file: str) -> Topology:
    """Read a shipped topology by name, or a file. Raises ConfigError, as `parse_topology`, also if it does not exist."""
    shipped = TOPOLOGY_DIR / f"{name_or_file}.yaml"
    path = shipped if _NAME.match(name_or_file) and shipped.exists() else Path(name_or_file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(p.stem for p in TOPOLOGY_DIR.glob("*.yaml")))
        problem = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise ConfigError("--topology", f"{path}: {problem}", f"name a file, or one of {names}, none") from error
    return parse_topology(text, str(path))


def parse_topology(text: str, file: str) -> Topology:
    """Read a topology from YAML. Raises ConfigError, which names ``file`` and the field, if it is not valid."""
    data = parse_yaml(text, file)
    try:
        content = convert(data, _TopologyFile)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.field}", error.problem, error.fix) from error
    return _TopologyReader(file, content).read_topology()


@dataclass(frozen=True)
class _TopologyReader:
    """Checks a file's content and converts it to a Topology. Parameters ``path`` are paths of fields, for errors."""

    file: str
    content: _TopologyFile

    def read_topology(self) -> Topology:
        """Return the topology. Raises ConfigError if the content is not valid."""
        content = self.content
        self._check_name("name", content.name)
        nodes = self._read_nodes()
        if len(nodes) > MAX_NODES:
            raise self._make_error("regions", f"{len(nodes)} nodes", f"a lab can have {MAX_NODES}")
        self._check_unique("node", [(f"node {node.name}", node.name) for node in nodes])
        links = self._read_links(list(dict.fromkeys(node.zone for node in nodes)))
        same_zone = self._read_link("sameZone", content.same_zone)
        return Topology(content.name, tuple(nodes), same_zone, links)

    def _read_nodes(self) -> list[LabNode]:
        regions = self.content.regions
        if not regions:
            raise self._make_error("regions", "is empty", "a topology needs a region with a zone with a node")
        self._check_unique("region", [(f"regions[{i}].name", region.name) for i, region in enumerate(regions)])
        nodes: list[LabNode] = []
        zone_names: list[tuple[str, str]] = []
        for i, region in enumerate(regions):
            self._check_name(f"regions[{i}].name", region.name)
            if not region.zones:
                raise self._make_error(f"regions[{i}].zones", f"region {region.name} has no zone")
            for j, zone in enumerate(region.zones):
                path = f"regions[{i}].zones[{j}]"
                self._check_name(f"{path}.name", zone.name)
                zone_names.append((f"{path}.name", zone.name))
                if not zone.nodes:
                    raise self._make_error(
                        f"{path}.nodes", f"zone {zone.name} has no node", "add one, or remove the zone"
                    )
                for k, node in enumerate(zone.nodes):
                    nodes.append(self._read_node(f"{path}.nodes[{k}]", node, region.name, zone.name))
        self._check_unique("zone", zone_names)
        return nodes

    def _read_node(self, path: str, node: _NodeSection, region: str, zone: str) -> LabNode:
        self._check_name(f"{path}.name", node.name)
        resources = ("cpu", "memory", "pods", "nic")
        amounts = {name: self._read_quantity(*self._find_setting(path, node, name)) for name in resources}
        field, kubelet = self._find_setting(path, node, "kubelet")
        if kubelet not in KUBELET_KINDS:
            raise self._make_error(field, f"{kubelet!r} is unknown", f"write one of {', '.join(KUBELET_KINDS)}")
        return LabNode(
            node.name,
            region,
            zone,
            amounts["cpu"],
            amounts["memory"],
            amounts["pods"],
            nic_bps=quantity.parse_int(amounts["nic"]),
            kubelet=str(kubelet),
        )

    def _find_setting(self, path: str, node: _NodeSection, name: str) -> tuple[str, str | int]:
        """Return path and value of a node's setting, or those of its default."""
        value = getattr(node, name)
        if value is not None:
            return f"{path}.{name}", value
        return f"nodeDefaults.{name}", getattr(self.content.node_defaults, name)

    def _read_links(self, zones: list[str]) -> dict[tuple[str, str], Link]:
        links: dict[tuple[str, str], Link] = {}
        for i, entry in enumerate(self.content.links):
            path = f"links[{i}]"
            for name in entry.between:
                if name not in zones:
                    raise self._make_error(
                        f"{path}.between", f"{name!r} is not a zone of this topology", "write [zone, zone]"
                    )
            key = zone_pair(*entry.between)
            if key[0] == key[1]:
                raise self._make_error(
                    f"{path}.between", f"names {key[0]} twice", "sameZone sets the delay inside zones"
                )
            if key in links:
                raise self._make_error(f"{path}.between", f"the pair {key[0]}, {key[1]} has a link already")
            links[key] = self._read_link(path, entry)
        for pair in itertools.combinations(sorted(zones), 2):
            if pair not in links:
                raise self._make_error(
                    "links", f"no link between {pair[0]} and {pair[1]}", "every pair of zones needs one"
                )
        return links

    def _read_link(self, path: str, section: _LinkSection) -> Link:
        rtt_us = parse_duration_us(section.rtt, f"{self.file}: {path}.rtt")
        jitter_us = parse_duration_us(section.jitter, f"{self.file}: {path}.jitter")
        loss = parse_loss(section.loss, f"{self.file}: {path}.loss")
        link = Link(rtt_us, jitter_us, loss)
        if link.has_excessive_jitter:
            raise self._make_error(f"{path}.jitter", f"{section.jitter} is more than the round trip, {section.rtt}")
        return link

    def _read_quantity(self, path: str, value: str | int) -> str:
        try:
            amount = quantity.parse(value)
        except QuantityError as error:
            raise self._make_error(path, str(error)) from error
        if amount <= 0:
            raise self._make_error(path, f"{value} is not above 0")
        return str(value)

    def _check_name(self, path: str, value: str) -> None:
        if not _NAME.match(value):
            fix = "lower-case letters, digits and -, up to 63, starting and ending with a letter or digit"
            raise self._make_error(path, f"{value!r} is not a valid name", fix)

    def _check_unique(self, kind: str, names_with_paths: list[tuple[str, str]]) -> None:
        seen: set[str] = set()
        for path, name in names_with_paths:
            if name in seen:
                raise self._make_error(path, f"there are two {kind}s named {name}")
            seen.add(name)

    def _make_error(self, path: str, problem: str, fix: str = "") -> ConfigError:
        return ConfigError(f"{self.file}: {path}", problem, fix)


def parse_duration_us(value: str | float, field: str) -> float:
    """Return a delay in microseconds; 0 needs no unit. Raises ConfigError, which names ``field``, unless it is from 0 to 10 s."""
    return 0.0 if value in {0, "0"} else round(parse_duration(str(value), field, maximum_s=_MAX_RTT_S) * 1e6, 3)


def parse_loss(value: str | float, field: str) -> float:
    """Return ``0.1%`` as 0.001; 0 needs no unit. Raises ConfigError, which names ``field``, unless it is from 0 to 100 %."""
    match = _PERCENT.match(str(value).strip())
    if match and float(match["number"]) <= 100:
        return float(match["number"]) / 100
    if value in {0, "0"}:
        return 0.0
    raise ConfigError(field, f"{value!r} is not a percentage from 0 to 100", "write it as 0.1%")
