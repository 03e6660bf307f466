"""Types, encoding and strict decoding of probe plans, one per origin zone; names of their objects.

An agent watches the plan of its own zone only. The object is a ConfigMap with one key, which contains JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from kubekit.addresses import parse_host_address
from kubekit.wire import DECODE_ERRORS
from netperf.configmap_size import check_size
from netperf.contract import PLAN_NAME_PREFIX
from netperf.measurement import NonNegativeInt, Test
from netperf.refusals import PlanRefusedError, Refusal, make_refusal
from netperf.sample import LabelValue, NodeLocation, NodeName

PLAN_KEY = "plan.json"

MAX_NODE_PAIRS = 9
"""Highest `netperf.pairs.PlanOptions.node_pairs`."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Zone = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
PairIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NODE_PAIRS)]
CONTROL_PORT, DATA_PORT, DATAGRAM_PORT = 12865, 12866, 12867
"""Default ports of netserver's control and data connections, and of the datagram responder; see `ProbeSettings`."""


class Peer(msgspec.Struct, frozen=True, order=True):
    """An end of a probe. ``address`` is a literal IPv4 or IPv6 address, never a name."""

    node: NodeName
    address: str
    zone: Zone
    region: LabelValue = ""

    @property
    def location(self) -> NodeLocation:
        """The node with zone and region, without the address."""
        return NodeLocation(self.node, self.zone, self.region)


class Probe(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A pair of nodes to measure, from ``origin`` to ``destination``.

    Attributes:
        origin: the node that measures.
        destination: the node that answers.
        slot: index of its slot in the round; no zone occurs twice in a slot. 0 for pairs that only datagrams measure.
        pair_index: 0 for the pair of nodes that netperf measures; from 1 on for pairs of the same zones measured by datagrams only.
        rotation: number of the rotation in which the nodes were chosen, see `netperf.pairs`.
    """

    origin: Peer
    destination: Peer
    slot: NonNegativeInt
    pair_index: PairIndex = 0
    rotation: int = 0

    @property
    def nodes(self) -> tuple[str, str]:
        """Origin node, destination node."""
        return self.origin.node, self.destination.node


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run; the same for all probes of a plan.

    Attributes:
        test: the netperf test.
        extra_tests: tests that replace the usual test in every tenth round, in turn; the rounds differ between pairs.
        rounds_per_extra_test: rounds from one extra test to the next; only tests of this repository use another number than 10.
        duration_s: length of a run; netperf busy-loops, so use 1 to 2 s.
        control_port: netserver's control port.
        data_port: netserver's data port.
        datagram_port: UDP port of the datagram responder.
    """

    test: Test = "TCP_RR"
    extra_tests: tuple[Test, ...] = ()
    rounds_per_extra_test: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 10
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    control_port: Port = CONTROL_PORT
    data_port: Port = DATA_PORT
    datagram_port: Port = DATAGRAM_PORT

    @property
    def tests(self) -> tuple[Test, ...]:
        """The usual test and the extra tests."""
        return (self.test, *self.extra_tests)


class _PlanHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a plan except its probes.

    Attributes:
        zone: the origin zone.
        epoch: increases with every change of this object.
        interval_s: length of a round; rounds are aligned to the wall clock.
        slot_count: number of slots of equal length in a round.
        results_name: name of the ConfigMap into which the zone's agents write.
        settings: settings of a run.
    """

    zone: Zone
    epoch: NonNegativeInt
    interval_s: Annotated[float, msgspec.Meta(ge=1, le=86400)]
    slot_count: Annotated[int, msgspec.Meta(ge=1)]
    results_name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    settings: ProbeSettings

    @property
    def header_fields(self) -> dict[str, Any]:
        """The values of these fields by name."""
        return {name: getattr(self, name) for name in _PlanHeader.__struct_fields__}


class ZonePlan(_PlanHeader, frozen=True, kw_only=True):
    """All probes whose origin is in one zone."""

    probes: tuple[Probe, ...]

    def probes_from(self, node: str) -> tuple[Probe, ...]:
        """The probes whose origin is this node."""
        return tuple(probe for probe in self.probes if probe.origin.node == node)


class _WirePlan(_PlanHeader, frozen=True, kw_only=True):
    """A plan as it is stored. Each node is stored once, and probes refer to nodes by index, so that the plan is small.

    Attributes:
        nodes: name, address, zone and region of each node.
        probes: origin, destination (indices of ``nodes``), slot, pair index and rotation of each probe.
    """

    nodes: tuple[tuple[NodeName, str, Zone, LabelValue], ...]
    probes: tuple[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, PairIndex, int], ...]


_decode_wire_plan = msgspec.json.Decoder(_WirePlan).decode


def plan_object_name(zone: str) -> str:
    """The name of the ConfigMap with a zone's plan: ``netaware-plan-<slug>-<hash>``.

    A zone is a label value, which may contain upper case and underscores.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", zone.lower())[:40].strip("-") or "zone"
    digest = hashlib.blake2b(zone.encode(), digest_size=4).hexdigest()
    return f"{PLAN_NAME_PREFIX}{slug}-{digest}"


def encode_plan(plan: ZonePlan) -> dict[str, str]:
    """The ``data`` of a plan's ConfigMap.

    Raises:
        ConfigMapTooLargeError: the plan is larger than `MAX_CONFIGMAP_BYTES`; with 100 zones, a plan has about 25 kB.
    """
    data = {PLAN_KEY: msgspec.json.encode(_to_wire(plan)).decode()}
    check_size(plan_object_name(plan.zone), data, "fewer probes per zone")
    return data


def _to_wire(plan: ZonePlan) -> _WirePlan:
    peers = sorted({peer for probe in plan.probes for peer in (probe.origin, probe.destination)})
    index_of = {peer: i for i, peer in enumerate(peers)}
    return _WirePlan(
        **plan.header_fields,
        nodes=tuple((peer.node, peer.address, peer.zone, peer.region) for peer in peers),
        probes=tuple(
            (index_of[p.origin], index_of[p.destination], p.slot, p.pair_index, p.rotation) for p in plan.probes
        ),
    )


class DecodedPlan(msgspec.Struct, frozen=True):
    """A plan without its invalid probes, and a refusal of each invalid probe by its index in the object."""

    plan: ZonePlan
    refusals: tuple[Refusal, ...] = ()


def decode_plan(
    data: Mapping[str, str] | None, *, zone: str | None = None, current: ZonePlan | None = None
) -> DecodedPlan:
    """Decode a plan object; invalid probes are left out, and listed in the ``refusals``.

    Args:
        data: the ConfigMap's ``data``.
        zone: our zone; None for any.
        current: the plan in use, if any; an older epoch of the same zone is refused.

    Raises:
        PlanRefusedError: the plan is invalid as a whole; keep the current one.
    """
    text = (data or {}).get(PLAN_KEY)
    if text is None:
        raise PlanRefusedError("missing", f"no key {PLAN_KEY}")
    try:
        decoded = _from_wire(_decode_wire_plan(text))
    except msgspec.ValidationError as error:
        raise PlanRefusedError("bad-field", str(error)) from error
    except DECODE_ERRORS as error:
        raise PlanRefusedError("bad-json", str(error)) from error
    plan = decoded.plan
    if zone is not None and plan.zone != zone:
        raise PlanRefusedError("wrong-zone", f"it is for zone {plan.zone!r}, we are in {zone!r}")
    if current is not None and plan.zone == current.zone and plan.epoch < current.epoch:
        raise PlanRefusedError("past-epoch", f"epoch {plan.epoch} is before {current.epoch}, the current one")
    return decoded


def _from_wire(wire: _WirePlan) -> DecodedPlan:
    peers = [Peer(*node) for node in wire.nodes]
    probes: list[Probe] = []
    refusals: list[Refusal] = []
    for index, (origin, destination, slot, pair_index, rotation) in enumerate(wire.probes):
        if max(origin, destination) >= len(peers):
            refusals.append(_refuse_probe(index, "unknown-node", f"there are {len(peers)} nodes in the plan"))
            continue
        probe = Probe(
            origin=peers[origin], destination=peers[destination], slot=slot, pair_index=pair_index, rotation=rotation
        )
        problem = _find_probe_problem(probe, wire)
        if problem is None:
            probes.append(probe)
        else:
            refusals.append(_refuse_probe(index, *problem))
    return DecodedPlan(ZonePlan(**wire.header_fields, probes=tuple(probes)), tuple(refusals))


def _refuse_probe(index: int, reason: str, detail: str) -> Refusal:
    return make_refusal(f"probes[{index}]", reason, detail)


def _find_probe_problem(probe: Probe, plan: _PlanHeader) -> tuple[str, str] | None:
    """Reason and detail if a probe is invalid; None if it is valid."""
    if probe.slot >= plan.slot_count:
        return "bad-slot", f"slot {probe.slot} of {plan.slot_count}"
    if probe.origin.zone != plan.zone:
        return "wrong-zone", f"origin {probe.origin.node} is in zone {probe.origin.zone!r}"
    origin, destination = parse_host_address(probe.origin.address), parse_host_address(probe.destination.address)
    if origin is None or destination is None:
        peer = probe.origin if origin is None else probe.destination
        return "bad-address", f"{peer.node}: {peer.address!r} is not the IP address of a host"
    if destination.is_loopback and not origin.is_loopback:
        return "bad-address", f"{probe.destination.node}: {probe.destination.address!r} is a loopback address"
    if origin == destination or probe.origin.node == probe.destination.node:
        return "self-probe", f"{probe.origin.node} cannot probe itself"
    return None
