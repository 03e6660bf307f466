"""The probe plan as agents read it: one object per origin zone, strictly decoded.

An agent watches only its own zone's object, so a change elsewhere costs it nothing. The object is a ConfigMap with a
single key holding JSON; everything in it was written by our controller, but it is read as if anyone might have.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from netperf.errors import PlanRefusedError, Refusal, TooLargeError, refuse
from netperf.sample import Count, Label, NodeName, Place, Test

PLAN_KEY = "plan.json"
PLAN_NAME_PREFIX = "netaware-plan-"
OBJECT_LIMIT_BYTES = 2**20 - 2**16
"""1 MiB is what the API server takes; metadata and managed fields need some of it."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Peer(msgspec.Struct, frozen=True, order=True):
    """A node that can be probed: ``address`` is a literal IPv4 or IPv6 address, never a name."""

    node: NodeName
    address: str
    zone: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    region: Label = ""

    @property
    def place(self) -> Place:
        """Without the address."""
        return Place(self.node, self.zone, self.region)


class Probe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run per round from ``origin`` to ``destination``.

    Attributes:
        slot: which of the round's slots it runs in; no zone occurs twice in a slot.
        rank: 0 for the pair of nodes that speaks for its zones, 1 for the second opinion.
        reverse: the other direction of the same pair of nodes.
        rotation: the rotation in which the nodes were chosen.
    """

    origin: Peer
    destination: Peer
    slot: Count
    rank: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    reverse: bool = False
    rotation: int = 0


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run looks like; the same for all probes of a plan.

    Attributes:
        test: the netperf test.
        extra_tests: tests that now and then take the usual one's place, one after the other. Each pair has its own phase,
            so that streams are spread over the rounds.
        extra_every: in one of so many rounds, at least 2.
        duration_s: length of a run; latency probes busy-loop, so 1 to 2 s is right.
        port: netserver's control port; data_port: the one its data connection uses, fixed so that it can be let
            through a firewall; echo_port: the built-in echo server, TCP and UDP.
    """

    test: Test = "TCP_RR"
    extra_tests: tuple[Test, ...] = ()
    extra_every: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 10
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    port: Port = 12865
    data_port: Port = 12866
    echo_port: Port = 12867

    @property
    def tests(self) -> tuple[Test, ...]:
        """Every test that some round runs, the usual one first."""
        return (self.test, *self.extra_tests)


class ZonePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All probes that start in one zone.

    Attributes:
        epoch: grows with every change of this object and never goes back.
        interval_s: length of a round. Rounds are aligned to the wall clock, so that agents agree without talking.
        slots: a round has this many slots of equal length.
        results: name of the ConfigMap that this zone's agents write to.
    """

    zone: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    epoch: Count
    interval_s: Annotated[float, msgspec.Meta(ge=1, le=86400)]
    slots: Annotated[int, msgspec.Meta(ge=1)]
    results: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    settings: ProbeSettings
    probes: tuple[Probe, ...]


def plan_object_name(zone: str) -> str:
    """A legal, readable and unique ConfigMap name for a zone's plan: ``netaware-plan-<slug>-<hash>``.

    Label values may hold upper case and underscores, and may be longer than is handy, hence slug and hash.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", zone.lower())[:40].strip("-") or "zone"
    digest = hashlib.blake2b(zone.encode(), digest_size=4).hexdigest()
    return f"{PLAN_NAME_PREFIX}{slug}-{digest}"


def encode_plan(plan: ZonePlan) -> dict[str, str]:
    """The ``data`` of a plan's ConfigMap.

    Raises:
        TooLargeError: it would not fit; 100 zones come to about 30 kB, so this means something else is wrong.
    """
    text = msgspec.json.encode(plan).decode()
    if len(text) + len(PLAN_KEY) > OBJECT_LIMIT_BYTES:
        raise TooLargeError(plan_object_name(plan.zone), len(text), OBJECT_LIMIT_BYTES, "fewer zones per plan")
    return {PLAN_KEY: text}


def encode_plans(plans: Mapping[str, ZonePlan]) -> dict[str, dict[str, str]]:
    """Plans by zone -> ``data`` by ConfigMap name."""
    return {plan_object_name(zone): encode_plan(plan) for zone, plan in plans.items()}


class DecodedPlan(msgspec.Struct, frozen=True):
    """A plan without the probes that cannot be run, and these by name."""

    plan: ZonePlan
    refusals: tuple[Refusal, ...] = ()


def decode_plan(
    data: Mapping[str, str] | None,
    *,
    zone: str | None = None,
    in_force: ZonePlan | None = None,
    known_nodes: Collection[str] | None = None,
) -> DecodedPlan:
    """Read a plan object; single probes that make no sense are left out, by name.

    Args:
        data: the ConfigMap's ``data``.
        zone: our zone; None takes any.
        in_force: the plan in use, whose epoch must not be undercut.
        known_nodes: names of the nodes that exist; None when the reader does not know.

    Raises:
        PlanRefusedError: nothing in it can be used; the plan in force should stay. Reasons: ``missing``,
            ``half-written`` (no complete JSON), ``bad-field``, ``wrong-zone``, ``past-epoch``.
    """
    text = (data or {}).get(PLAN_KEY)
    if text is None:
        raise PlanRefusedError("missing", f"no key {PLAN_KEY}")
    try:
        plan = msgspec.json.decode(text, type=ZonePlan)
    except msgspec.ValidationError as error:
        raise PlanRefusedError("bad-field", str(error)) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PlanRefusedError("half-written", str(error)) from error
    if zone is not None and plan.zone != zone:
        raise PlanRefusedError("wrong-zone", f"it is for zone {plan.zone!r}, we are in {zone!r}")
    if in_force is not None and plan.zone == in_force.zone and plan.epoch < in_force.epoch:
        raise PlanRefusedError("past-epoch", f"epoch {plan.epoch} is before {in_force.epoch}, which is in force")
    good: list[Probe] = []
    refusals: list[Refusal] = []
    for index, probe in enumerate(plan.probes):
        problem = _problem(probe, plan, known_nodes)
        if problem is None:
            good.append(probe)
        else:
            refusals.append(refuse(f"probes[{index}]", *problem))
    return DecodedPlan(msgspec.structs.replace(plan, probes=tuple(good)), tuple(refusals))


def _problem(probe: Probe, plan: ZonePlan, known_nodes: Collection[str] | None) -> tuple[str, str] | None:
    if probe.slot >= plan.slots:
        return "bad-slot", f"slot {probe.slot} of {plan.slots}"
    if probe.origin.zone != plan.zone:
        return "wrong-zone", f"origin {probe.origin.node} is in zone {probe.origin.zone!r}"
    for peer in (probe.origin, probe.destination):
        if not is_address(peer.address):
            return "bad-address", f"{peer.node}: {peer.address!r} is no IP address"
        if known_nodes is not None and peer.node not in known_nodes:
            return "unknown-node", f"there is no node {peer.node!r}"
    if probe.origin.node == probe.destination.node:
        return "self-probe", f"{probe.origin.node} cannot probe itself"
    return None


def is_address(text: str) -> bool:
    """Whether the text is a literal IP address that can be connected to; names are not resolved."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)
