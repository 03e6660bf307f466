"""Plans the pairs of nodes that probe each other, so that the number of probes depends on zones only.

A few pairs of nodes measure each unordered pair of zones. netperf runs between the pair of nodes with index 0, in its slot; datagrams
run between all these pairs, with alternating origin zones. Rendezvous hashing chooses the nodes evenly. A pair of nodes stays until its
rotation (every hour, each zone replaces the nodes of one pair index), unless a node becomes unusable or has too many pairs. The previous
plan is an argument, so that a deleted node changes only its own pairs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Annotated

import msgspec

from kubekit.addresses import parse_host_address
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join_path
from netperf.consensus import ZoneLink, link_between
from netperf.contract import RESULTS_NAME
from netperf.measurement import Test
from netperf.pacing import hash_to_int
from netperf.plans import (
    CONTROL_PORT,
    DATA_PORT,
    DATAGRAM_PORT,
    MAX_NODE_PAIRS,
    Peer,
    Port,
    Probe,
    ProbeSettings,
    ZonePlan,
)
from netperf.refusals import Refusal, make_refusal
from netperf.results import MAX_NAME_LENGTH
from netperf.shards import assign_shards
from netperf.slots import assign_slots, order_pairs

ROTATION_S = 3600.0
"""A zone replaces the nodes of one pair index each time this time is over. The moment differs between zones."""
_UINT64_MASK = 2**64 - 1


class ProbeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster.

    Attributes:
        name: name of the node.
        address: address that the node's agent announces, or else the node's InternalIP.
        zone: value of the zone label; empty without it.
        region: value of the region label; empty without it.
        is_ready: whether its condition Ready is True.
        is_schedulable: whether the node is not cordoned.
        has_ready_agent: whether an agent announces itself, and its pod, if it has one, is ready.
        has_own_address: whether ``address`` is of this node or of its agent's pod.
    """

    name: str
    address: str
    zone: str
    region: str = ""
    is_ready: bool = True
    is_schedulable: bool = True
    has_ready_agent: bool = True
    has_own_address: bool = True


class PlanOptions(Section, frozen=True):
    """Options of the probe plan; see `netperf.plans.ProbeSettings` for the fields of a run.

    Attributes:
        interval_s: shortest length of a round.
        slot_s: time for one probe; with many zones a round lasts longer than interval_s, so that its slots fit.
        node_pairs: pairs of nodes that measure two zones; with three, a slow node does not look like a slow path.
    """

    interval_s: Annotated[float, Range(1, 86_400)] = 60.0
    slot_s: Annotated[float, Range(0, 3600)] = 6.0
    node_pairs: Annotated[int, Range(1, MAX_NODE_PAIRS)] = 3
    test: Test = "TCP_RR"
    extra_tests: tuple[Test, ...] = ()
    duration_s: Annotated[float, Range(0.01, 60)] = 1.0
    control_port: Port = CONTROL_PORT
    data_port: Port = DATA_PORT
    datagram_port: Port = DATAGRAM_PORT

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if a slot is too short for a run, or a test is named twice."""
        if not self.duration_s < self.slot_s:
            raise ConfigError(join_path(field, "slotS"), f"{self.slot_s} is out of range", "longer than durationS")
        tests = self.settings.tests
        if len(set(tests)) < len(tests):
            raise ConfigError(
                join_path(field, "extraTests"), f"{', '.join(tests)}: one occurs twice", "name each test once"
            )

    @property
    def settings(self) -> ProbeSettings:
        """Settings of a run, for the plan."""
        return ProbeSettings(**{n: getattr(self, n) for n in ProbeSettings.__struct_fields__ if hasattr(self, n)})


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plans of all zones.

    Attributes:
        plan_by_zone: plan by origin zone; without probes if no probe starts in the zone.
        refusals: nodes and zones that are not measured. Reasons of a node are ``long-name``, ``no-zone``, ``not-ready``, ``unschedulable``,
            ``no-agent``, ``bad-address``, ``foreign-address`` and ``shared-address``; that of a zone is ``zone-without-probers``.
        zone_pair_count: number of unordered pairs of zones that are measured.
        interval_s: length of a round.
        slot_count: number of slots in a round.
    """

    plan_by_zone: dict[str, ZonePlan]
    refusals: tuple[Refusal, ...]
    zone_pair_count: int
    interval_s: float
    slot_count: int


class _PairKey(msgspec.Struct, frozen=True, order=True):
    """Identifies a pair of nodes: its zones in bytewise order, and the pair index."""

    zone_a: str
    zone_b: str
    pair_index: int


class _PairNodes(msgspec.Struct, frozen=True):
    """The nodes of a pair in ``zone_a`` and ``zone_b`` of its key (None until they are chosen), and the number of the rotation."""

    node_a: str | None
    node_b: str | None
    rotation: int

    @property
    def nodes(self) -> tuple[str | None, str | None]:
        """Both nodes."""
        return self.node_a, self.node_b


def plan_probes(
    nodes: Iterable[ProbeNode], options: PlanOptions, previous_plans: Mapping[str, ZonePlan], now_s: float
) -> ProbePlan:
    """Plan the probes of all zones.

    Args:
        nodes: every node of the cluster.
        options: options of the plan.
        previous_plans: the current plans by origin zone, as decoded from their objects; empty to start over.
        now_s: wall clock, seconds since 1970; decides rotations and new epochs.
    """
    peers_by_zone, refusals = select_probe_nodes(nodes)
    zones = sorted(peers_by_zone)
    keys = _list_pair_keys(peers_by_zone, options)
    nodes_by_key = _choose_nodes(keys, peers_by_zone, _read_nodes(previous_plans), options, now_s)
    previous_probes = [probe for plan in previous_plans.values() for probe in plan.probes if probe.pair_index == 0]
    previous_slots = {_link_of(probe): probe.slot for probe in previous_probes}
    slot_by_link, slot_count = assign_slots(order_pairs(zones), previous_slots)
    interval_s = max(options.interval_s, slot_count * options.slot_s)
    probes_by_zone: dict[str, list[Probe]] = {zone: [] for zone in zones}
    for key in keys:
        slot = slot_by_link[key.zone_a, key.zone_b] if key.pair_index == 0 else 0
        probe = _build_probe(key, nodes_by_key[key], peers_by_zone, slot)
        probes_by_zone[probe.origin.zone].append(probe)
    results_name_by_zone = {zone: plan.results_name for zone, plan in previous_plans.items()}
    shard_by_zone = assign_shards(zones, RESULTS_NAME, results_name_by_zone)
    plans = [
        ZonePlan(
            zone=zone,
            epoch=0,
            interval_s=interval_s,
            slot_count=slot_count,
            results_name=shard_by_zone[zone],
            settings=options.settings,
            probes=_sort_and_drop_repeated(probes_by_zone[zone]),
        )
        for zone in zones
    ]
    return ProbePlan(
        plan_by_zone={plan.zone: _with_epoch(plan, previous_plans.get(plan.zone), now_s) for plan in plans},
        refusals=refusals,
        zone_pair_count=sum(key.pair_index == 0 for key in keys),
        interval_s=interval_s,
        slot_count=slot_count,
    )


def _sort_and_drop_repeated(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    """Sort probes by pair index and slot, and keep the first between two nodes, because results have one key for each pair of nodes."""
    by_nodes: dict[tuple[str, str], Probe] = {}
    for probe in sorted(probes, key=lambda p: (p.pair_index, p.slot, p.destination, p.origin)):
        by_nodes.setdefault(probe.nodes, probe)
    return tuple(by_nodes.values())


def select_probe_nodes(nodes: Iterable[ProbeNode]) -> tuple[dict[str, dict[str, Peer]], tuple[Refusal, ...]]:
    """The nodes that can be measured, by zone and name; and refusals of the other nodes, and of zones without a node that can."""
    peers_by_zone: dict[str, dict[str, Peer]] = defaultdict(dict)
    refusals: list[Refusal] = []
    problems = {node: _find_node_problem(node) for node in sorted(nodes, key=lambda n: n.name)}
    address_counts = Counter(node.address for node, problem in problems.items() if problem is None)
    for node, problem in problems.items():
        if problem is None and address_counts[node.address] > 1:
            problem = "shared-address", f"another node announces {node.address} as well"
        if problem is None:
            peers_by_zone[node.zone][node.name] = Peer(node.name, node.address, node.zone, node.region)
        else:
            refusals.append(make_refusal(node.name, *problem))
    zones = {node.zone for node in problems}
    refusals += [make_refusal(zone, "zone-without-probers") for zone in sorted(zones - peers_by_zone.keys()) if zone]
    return dict(peers_by_zone), tuple(refusals)


def _find_node_problem(node: ProbeNode) -> tuple[str, str] | None:
    """Reason and detail if a node cannot be measured; None if it can."""
    problems = (
        (len(node.name) > MAX_NAME_LENGTH, "long-name", f"over {MAX_NAME_LENGTH} characters, too long for a key"),
        (not node.zone, "no-zone", "label topology.kubernetes.io/zone is missing"),
        (not node.is_ready, "not-ready", "condition Ready is not True"),
        (not node.is_schedulable, "unschedulable", "the node is cordoned"),
        (not node.has_ready_agent, "no-agent", "no ready agent runs there"),
        (parse_host_address(node.address) is None, "bad-address", f"{node.address!r} is not the IP address of a host"),
        (not node.has_own_address, "foreign-address", f"{node.address!r} is not of this node or its agent's pod"),
    )
    return next(((reason, detail) for applies, reason, detail in problems if applies), None)


def _list_pair_keys(peers_by_zone: Mapping[str, Mapping[str, Peer]], options: PlanOptions) -> list[_PairKey]:
    """The keys of all pairs of nodes to choose."""
    zones = sorted(peers_by_zone)
    # Each direction has as many different pairs of nodes as the larger zone has nodes.
    return [
        _PairKey(a, b, pair_index)
        for i, a in enumerate(zones)
        for b in zones[i + 1 :]
        for pair_index in range(min(options.node_pairs, 2 * max(len(peers_by_zone[a]), len(peers_by_zone[b]))))
    ]


def _link_of(probe: Probe) -> ZoneLink:
    return link_between(probe.origin.zone, probe.destination.zone)


def _is_zone_a_origin(key: _PairKey) -> bool:
    """Whether the first zone is the origin: chosen by a hash of both zones, and alternating by pair index."""
    return (hash_to_int(f"{key.zone_a}\0{key.zone_b}\x000") + key.pair_index) % 2 == 0


def _read_nodes(plans: Mapping[str, ZonePlan]) -> dict[_PairKey, _PairNodes]:
    nodes_by_key: dict[_PairKey, _PairNodes] = {}
    for plan in plans.values():
        for probe in plan.probes:
            key = _PairKey(*_link_of(probe), probe.pair_index)
            node_a, node_b = probe.nodes if _is_zone_a_origin(key) else probe.nodes[::-1]
            nodes_by_key[key] = _PairNodes(node_a, node_b, probe.rotation)
    return nodes_by_key


def _choose_nodes(
    keys: Sequence[_PairKey],
    peers_by_zone: Mapping[str, Mapping[str, Peer]],
    previous_nodes_by_key: Mapping[_PairKey, _PairNodes],
    options: PlanOptions,
    now_s: float,
) -> dict[_PairKey, _PairNodes]:
    """Choose the nodes of each pair: the previous ones until the rotation if possible, then others for the rest."""
    chooser = _NodeChooser(keys, peers_by_zone)
    nodes_by_key: dict[_PairKey, _PairNodes] = {}
    for key in keys:
        rotation = _current_rotation(key, options, now_s)
        node_a = node_b = None
        previous = previous_nodes_by_key.get(key)
        if previous is not None and previous.rotation == rotation:
            node_a, node_b = chooser.keep(key.zone_a, previous.node_a), chooser.keep(key.zone_b, previous.node_b)
        nodes_by_key[key] = _PairNodes(node_a, node_b, rotation)
    for key, nodes in nodes_by_key.items():
        if None in nodes.nodes:
            sibling_keys = [_PairKey(key.zone_a, key.zone_b, index) for index in range(options.node_pairs)]
            siblings = {k.pair_index: nodes_by_key[k] for k in sibling_keys if k != key and k in nodes_by_key}
            nodes_by_key[key] = chooser.pick_missing(key, nodes, siblings)
    return nodes_by_key


def _current_rotation(key: _PairKey, options: PlanOptions, now_s: float) -> int:
    """Number of the current rotation of a pair.

    All pairs of one origin zone and one pair index rotate together. They are in one object, so that a rotation causes a single write.
    """
    origin_zone = key.zone_a if _is_zone_a_origin(key) else key.zone_b
    phase = hash_to_int(f"rotation\0{origin_zone}") / 2**64
    return math.floor((now_s / ROTATION_S + phase + key.pair_index) / options.node_pairs)


class _NodeChooser:
    """Chooses nodes by rendezvous hashing with bounded loads: if possible, new pairs go to nodes below their share of pairs."""

    def __init__(self, keys: Sequence[_PairKey], peers_by_zone: Mapping[str, Mapping[str, Peer]]) -> None:
        pair_counts = Counter(zone for key in keys for zone in (key.zone_a, key.zone_b))
        self._share_by_zone = {zone: math.ceil(pair_counts[zone] / len(nodes)) for zone, nodes in peers_by_zone.items()}
        self._hashes_by_zone = {
            zone: {name: hash_to_int(name) for name in nodes} for zone, nodes in peers_by_zone.items()
        }
        self._load_by_node: dict[str, int] = defaultdict(int)

    def keep(self, zone: str, node: str | None) -> str | None:
        """Count and return the node if it may keep the pair: it is usable and has less than twice its share. Else return None.

        With a lower limit, a new zone would change pairs of other zones. Rotation evens out the loads.
        """
        max_load = 2 * self._share_by_zone[zone]
        if node is None or node not in self._hashes_by_zone[zone] or self._load_by_node[node] >= max_load:
            return None
        self._load_by_node[node] += 1
        return node

    def pick_missing(self, key: _PairKey, nodes: _PairNodes, siblings: Mapping[int, _PairNodes]) -> _PairNodes:
        """Pick and count the nodes that are None.

        Nodes of ``siblings``, the pairs between the same zones by pair index, are avoided, because all latencies of one reporter count as
        one: first those of all siblings, else those of siblings in the same direction.
        """
        avoided = {node for sibling in siblings.values() for node in sibling.nodes}
        same_direction = [sibling for index, sibling in siblings.items() if (index - key.pair_index) % 2 == 0]
        strictly_avoided = {node for sibling in same_direction for node in sibling.nodes}
        node_a = nodes.node_a or self._pick(key, key.zone_a, nodes.rotation, avoided, strictly_avoided)
        node_b = nodes.node_b or self._pick(key, key.zone_b, nodes.rotation, avoided, strictly_avoided)
        return _PairNodes(node_a, node_b, nodes.rotation)

    def _pick(
        self, key: _PairKey, zone: str, rotation: int, avoided: Set[str | None], strictly_avoided: Set[str | None]
    ) -> str:
        """Choose and count the node with the highest hash, if possible among the nodes below their share.

        The node is not in ``avoided`` if possible, or at least not in ``strictly_avoided``.
        """
        seed = hash_to_int(f"{key.zone_a}\0{key.zone_b}\0{key.pair_index}\0{rotation}")
        hash_by_node = self._hashes_by_zone[zone]
        allowed_nodes = (
            [name for name in hash_by_node if name not in avoided]
            or [name for name in hash_by_node if name not in strictly_avoided]
            or list(hash_by_node)
        )
        candidates = [
            name for name in allowed_nodes if self._load_by_node[name] < self._share_by_zone[zone]
        ] or allowed_nodes
        node = max(candidates, key=lambda name: (_mix(hash_by_node[name] ^ seed), name))
        self._load_by_node[node] += 1
        return node


def _build_probe(key: _PairKey, nodes: _PairNodes, peers_by_zone: Mapping[str, Mapping[str, Peer]], slot: int) -> Probe:
    a, b = peers_by_zone[key.zone_a][nodes.node_a or ""], peers_by_zone[key.zone_b][nodes.node_b or ""]
    origin, destination = (a, b) if _is_zone_a_origin(key) else (b, a)
    return Probe(origin=origin, destination=destination, slot=slot, pair_index=key.pair_index, rotation=nodes.rotation)


def _with_epoch(plan: ZonePlan, previous: ZonePlan | None, now_s: float) -> ZonePlan:
    """The previous plan if nothing changed, else the plan with a new epoch. An epoch is a time, to grow also after a loss of objects."""
    if previous is not None and msgspec.structs.replace(plan, epoch=previous.epoch) == previous:
        return previous
    return msgspec.structs.replace(plan, epoch=max(int(now_s), previous.epoch + 1 if previous else 0))


def _mix(value: int) -> int:
    """Mix the bits of a combined hash (the finaliser of splitmix64), which is much faster than a hash of each pair of names."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _UINT64_MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _UINT64_MASK
    return value ^ (value >> 31)
