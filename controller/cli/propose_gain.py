"""What a proposed AppGroup would gain: where its rollout would end, against where the pods are today.

Two things are told. *Then*: new pods come while old ones hold their room, as the proposal is to be applied. *Anew*: all of them
placed by one plan on a cluster without the old ones, which is as good as it gets.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from controller.cli.looking import belongs_to, state_of
from controller.cli.session import Session
from controller.cli.simulate import simulate
from controller.cli.templates import Controller
from controller.cli.traffic_reading import Traffic
from controller.cluster.costs import CostTable, Location
from controller.cluster.graph import build_graph
from controller.cluster.hosts import hosts_of
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPod
from controller.cluster.requests import add
from controller.cluster.resources import APPGROUP_LABEL, SERVICES, WORKLOAD_LABEL, AppGroup, WorkloadRef
from controller.cluster.services import Service
from controller.scheduler.planner import GroupSnapshot
from controller.scheduler.problem_builder import latency_us
from controller.scheduler.rollout import LONGEST_S, OldPod, Rolled, roll_out
from controller.traffic.placed import CROSSING, ONE, GroupTraffic, Priced, by_zones, kept_near, month_of, weighed
from controller.traffic.prices import PriceTable, per_month
from controller.traffic.proposals import Proposal
from controller.traffic.workloads import Place


class Gain(msgspec.Struct, frozen=True):
    """Of one proposal, with the traffic that was measured.

    Attributes:
        group: name of the AppGroup.
        crossing_now, crossing_then: bytes per second that leave their zone.
        crossing_least, crossing_most: over several rollouts, of which *then* is the median: who comes first is chance.
        zones_now, zones_then: caller's zone -> called one's zone -> bytes per second.
        crossing_anew: of one plan of all pods.
        call_now_us, call_then_us: what a byte's call spends on the way, round trip, in the mean over all bytes between workloads
            that are placed; within a zone 100 µs where nobody measured it.
        month_now, month_then: money a month; null without prices.
        month_anew: of one plan of all pods.
        unplaced: pods that find no room; they count nowhere.
        places_now, places_then: workload -> zone -> pods.
    """

    group: str
    crossing_now: float
    crossing_then: float
    call_now_us: float = 0.0
    call_then_us: float = 0.0
    month_now: float | None = None
    month_then: float | None = None
    currency: str = ""
    unplaced: int = 0
    places_then: Mapping[str, Mapping[str, int]] = {}
    places_now: Mapping[str, Mapping[str, int]] = {}
    crossing_least: float = 0.0
    crossing_most: float = 0.0
    crossing_anew: float = 0.0
    month_anew: float | None = None
    zones_now: Mapping[str, Mapping[str, float]] = {}
    zones_then: Mapping[str, Mapping[str, float]] = {}


async def gain_of(
    session: Session,
    proposal: Proposal,
    traffic: Traffic,
    prices: PriceTable | None,
    existing: AppGroup | None = None,
    *,
    one_by_one: bool = False,
    longest_s: float = LONGEST_S,
) -> Gain:
    """Plan the group for the cluster as it is; ``existing`` is the group as it stands, ``one_by_one`` how it is to be rolled out, and
    rollouts are drawn for ``longest_s`` seconds.

    What is now is told by the zones that were measured: connections stay with the replica that they found, so that two replicas need
    not get the same. Where a source tells no zones, and for what will be, calls go as the Services say.

    Raises:
        KubekitError: no answer.
    """
    group = msgspec.convert(proposal.manifest, AppGroup)
    if existing is not None:
        # Applying leaves them as they are, and they say how its pods are spread and judged.
        annotations = (existing.metadata.annotations or {}) | (group.metadata.annotations or {})
        metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
        group = msgspec.structs.replace(group, metadata=metadata)
    namespace = proposal.namespace
    named = {(item.workload.kind, item.workload.name): item.workload for item in group.spec.workloads or ()}
    snapshot = traffic.snapshot
    templates = {(c.kind, c.metadata.name): c for c in await session.controllers(namespace)}
    known = {ref.selector: templates[which] for which, ref in named.items() if which in templates}
    replicas = {selector: controller.pods for selector, controller in known.items()}
    labels = {selector: controller.labels for selector, controller in known.items()}
    own = {f"{namespace}/{kind}/{name}" for kind, name in named}
    state = state_of(msgspec.structs.replace(snapshot, groups=tuple(traffic.groups)), ())
    key = f"{namespace}/{proposal.name}"
    state.take_group(key, existing, group)
    is_of_group = belongs_to(state, key)
    used, standing = await session.room_and_pods(lambda pod: is_of_group(pod) or pod.workload in own)
    hosts = hosts_of(snapshot.nodes)
    services = await session.list_all(SERVICES, Service, namespace)
    costs = state.costs(namespace)
    planned = await asyncio.to_thread(
        simulate, group, replicas, hosts, used, costs=costs, services=services, labels=labels, prices=prices
    )
    selectors = {f"{namespace}/{name}": ref.selector for (_, name), ref in named.items()}
    near = kept_near(services, namespace, labels)
    rates = {(selectors[d.client], selectors[d.server]): d.bytes_per_s for d in proposal.dependencies}
    measured, modelled = _zones_of(proposal, traffic, selectors)
    all_rates = GroupTraffic(rates, measured=True, near=near)
    zoneless = GroupTraffic(modelled, measured=True, near=near)
    now = {
        selectors[end.key]: places
        for end, places in traffic.workloads.places.items()
        if end.namespace == namespace and (end.kind, end.name) in named
    }
    anew = planned.network_aware.placed(hosts)
    start = GroupSnapshot(
        graph=build_graph(group.spec),
        pods=(),
        replicas={},
        costs=costs.table,
        measured=bool(costs.topology),
        hosts=hosts,
        used=used,
        group=group,
        services=services,
        prices=prices,
    )
    ends = await asyncio.to_thread(
        _ends, start, proposal, templates, named, standing, one_by_one=one_by_one, longest_s=longest_s
    )
    ends.sort(key=lambda end: weighed(all_rates, end.placed, CROSSING))
    then = ends[len(ends) // 2].placed
    ways = Ways(costs.table, measured=bool(costs.topology))

    def of_today(priced: Priced) -> float:
        """Sum of rate times price of the way, of today's traffic."""
        known = sum(rate * priced.per_gb(a, b) for a, b, rate in measured)
        return known + weighed(zoneless, now, priced)

    total = sum(rate for *_, rate in measured) + weighed(zoneless, now, ONE)
    return Gain(
        proposal.name,
        crossing_now=of_today(CROSSING),
        crossing_then=weighed(all_rates, then, CROSSING),
        call_now_us=round(of_today(ways) / total, 1) if total else 0.0,
        call_then_us=round(weighed(all_rates, then, ways) / placed, 1)
        if (placed := weighed(all_rates, then, ONE))
        else 0.0,
        month_now=per_month(of_today(prices), 1.0) if prices else None,
        month_then=month_of(all_rates, then, prices) if prices else None,
        currency=prices.currency if prices else "",
        unplaced=ends[len(ends) // 2].unplaced,
        places_then=_zones(then),
        places_now=_zones(now),
        crossing_least=weighed(all_rates, ends[0].placed, CROSSING),
        crossing_most=weighed(all_rates, ends[-1].placed, CROSSING),
        crossing_anew=weighed(all_rates, anew, CROSSING),
        month_anew=month_of(all_rates, anew, prices) if prices else None,
        zones_now=_and_measured(by_zones(zoneless, now), measured),
        zones_then=by_zones(all_rates, then),
    )


def _and_measured(
    table: dict[str, dict[str, float]], measured: Sequence[tuple[Place, Place, float]]
) -> dict[str, dict[str, float]]:
    for (_, origin), (_, destination), rate in measured:
        row = table.setdefault(origin, {})
        row[destination] = row.get(destination, 0.0) + rate
    return table


_Which = tuple[str, str]
"""Kind and name: a Deployment and a StatefulSet of one namespace may have one name."""


class _End(NamedTuple):
    """Of a rollout."""

    placed: dict[str, Counter[Place]]
    unplaced: int


def _ends(
    start: GroupSnapshot,
    proposal: Proposal,
    templates: Mapping[_Which, Controller],
    named: Mapping[_Which, WorkloadRef],
    standing: Sequence[PodInfo],
    *,
    one_by_one: bool,
    longest_s: float,
) -> list[_End]:
    """Where the pods may be once the proposal's patches are rolled out; what it does not patch stays."""
    namespace, replace = proposal.namespace, msgspec.structs.replace
    patched = [
        (kind, name)
        for kind, name, _ in proposal.patches
        if (kind, name) in named and (kind, name) in templates and templates[kind, name].rolls
    ]
    used = {node: dict(amounts) for node, amounts in start.used.items()}
    old: dict[str, list[OldPod]] = defaultdict(list)
    staying: list[GroupPod] = []
    of_pods = {f"{namespace}/{kind}/{name}": (kind, name) for kind, name in named}
    placed: dict[str, Counter[Place]] = defaultdict(Counter)
    for pod in standing:
        which = of_pods.get(pod.workload)
        own = pod.wire if pod.labels.get(APPGROUP_LABEL) == proposal.name else None
        if which in patched:
            old[named[which].selector].append(OldPod(pod.node, pod.asks, own))
            continue
        add(used.setdefault(pod.node, {}), pod.asks)
        if own is not None:
            staying.append(own)
        if which is not None and pod.node in start.hosts:
            placed[named[which].selector][start.hosts[pod.node].location] += 1
    rolled = []
    for which in patched:
        template, selector = templates[which], named[which].selector
        if template.replicas:
            labels = {**template.labels, APPGROUP_LABEL: proposal.name, WORKLOAD_LABEL: selector}
            metadata = replace(template.spec.template.metadata, namespace=namespace, labels=labels)
            pods = [
                GroupPod(replace(metadata, name=f"{which[1]}-{number:05d}"), spec)
                for number, spec in enumerate(template.pods)
            ]
            rolled.append(Rolled(selector, pods, old[selector], *template.room))
    replicas = {ref.selector: templates[which].replicas for which, ref in named.items() if which in templates}
    question = replace(start, pods=staying, replicas=replicas, used=used)
    workload_of = {pod.metadata.key: one.workload for one in rolled for pod in one.pods}
    ends = []
    for settled in roll_out(question, rolled, one_by_one=one_by_one, longest_s=longest_s):
        found = {selector: Counter(places) for selector, places in placed.items()}
        for key, node in settled.nodes.items():
            found.setdefault(workload_of[key], Counter())[start.hosts[node].location] += 1
        ends.append(_End(found, settled.unplaced))
    return ends


def _zones(placed: Mapping[str, Counter[Place]]) -> dict[str, dict[str, int]]:
    return {workload: dict(Counter(zone for _, zone in places.elements())) for workload, places in placed.items()}


def _zones_of(
    proposal: Proposal, traffic: Traffic, selectors: Mapping[str, str]
) -> tuple[list[tuple[Place, Place, float]], dict[tuple[str, str], float]]:
    """Bytes per second from place to place as measured; and by selectors, those whose zones nobody told."""
    inside = {(d.client, d.server) for d in proposal.dependencies}
    measured: list[tuple[Place, Place, float]] = []
    modelled: dict[tuple[str, str], float] = {}
    for d in traffic.graph.dependencies:
        if (d.client.key, d.server.key) not in inside:
            continue
        place_of = traffic.workloads.place_of
        measured += [(place_of(a), place_of(b), rate) for (a, b), rate in d.zones.items()]
        if d.zoneless_bytes_per_s:
            modelled[selectors[d.client.key], selectors[d.server.key]] = d.zoneless_bytes_per_s
    return measured, modelled


@dataclass(frozen=True)
class Ways:
    """The time of a call as a price of the way."""

    costs: CostTable
    measured: bool

    def per_gb(self, origin: Place, destination: Place) -> float:
        """Microseconds between two hosts."""
        return latency_us(Location(*origin), Location(*destination), self.costs, measured=self.measured)
