"""A node that nodes of two zones cannot reach is excluded from probing, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from controller.topology.quarantine import QUARANTINE_S, Liveness, update_liveness, without_suspects
from netperf.pairs import PlanOptions, ProbeNode, plan_pairs
from netperf.plans import Probe, ZonePlan
from netperf.sample import Failure, Measurement, ProberName, Sample

ZONES = ("z1", "z2", "z3", "z4")
FACTS = [
    ProbeNode(name=f"{zone}{copy}", address=f"10.0.{i}.{ord(copy)}", zone=zone)
    for i, zone in enumerate(ZONES)
    for copy in "ab"
]
ALL_WELL = 10
Fate = Callable[[Probe], str]
"""What becomes of a probe: ``ok``, ``failed`` (the path is dead), ``hung`` (the host answers, its agent does not), ``silent``."""


def cut(a: str, b: str) -> Fate:
    return lambda p: "failed" if {p.origin.zone, p.destination.zone} == {a, b} else "ok"


def frozen(node: str, how: str = "failed") -> Fate:
    return lambda p: "silent" if p.origin.node == node else how if p.destination.node == node else "ok"


class World:
    """Plans, agents that do what a fate says, and the controller's look at their results, round by round (simulated)."""

    def __init__(
        self, facts: list[ProbeNode], round_s: float = 60.0, write_every: int = 1, prober: ProberName = "datagrams"
    ) -> None:
        self.facts, self.round_s, self.write_every = facts, round_s, write_every
        self.plans: Mapping[str, ZonePlan] = plan_pairs(facts, PlanOptions(), None, 1000.0).zones
        self.liveness, self.number = Liveness(), 0
        self._samples: dict[tuple[str, str], Sample] = {}
        self._failures: dict[tuple[str, str], Failure] = {}
        self.blamed: set[str] = set()
        self._prober: ProberName = prober

    def rounds(self, count: int, fate: Fate) -> set[str]:
        for _ in range(count):
            self.number += 1
            for plan in self.plans.values():
                for probe in plan.probes:
                    self._probe(probe, fate(probe))
            now_s = self.number * self.round_s
            self.liveness = update_liveness(
                self.liveness,
                self.plans.values(),
                self._samples.values(),
                self._failures.values(),
                now_s=now_s,
                interval_s=self.round_s,
            )
            self.blamed |= set(self.liveness.quarantine)
            facts = without_suspects(self.facts, self.liveness.quarantine)
            additional_pairs = self.liveness.additional_pairs
            self.plans = plan_pairs(
                facts, PlanOptions(), self.plans, 1000.0 + now_s, additional_pairs=additional_pairs
            ).zones
        return set(self.liveness.quarantine)

    def _probe(self, probe: Probe, fate: str) -> None:
        pair, ends = (probe.origin.node, probe.destination.node), (probe.origin.place, probe.destination.place)
        if fate == "ok":
            self._failures.pop(pair, None)
            if self.number % self.write_every == 0 or pair not in self._samples:
                measurement = Measurement(prober=self._prober, test="TCP_RR", p50_us=1.0)
                self._samples[pair] = Sample(
                    origin=ends[0], destination=ends[1], measurement=measurement, sequence=self.number
                )
        elif fate != "silent":
            before = self._failures.get(pair)
            self._failures[pair] = Failure(
                origin=ends[0],
                destination=ends[1],
                failure="timeout",
                in_a_row=before.in_a_row + 1 if before is not None else 1,
                alive=fate == "hung",
                sequence=self.number,
            )
            self._samples.pop(pair, None)


def busiest(plans: Mapping[str, ZonePlan]) -> str:
    nodes = [node for found in plans.values() for p in found.probes for node in (p.origin.node, p.destination.node)]
    return max(sorted(set(nodes)), key=nodes.count)


@pytest.mark.parametrize("how", ["failed", "hung"])
def test_a_frozen_node_is_left_out_once_witnesses_of_two_zones_cannot_reach_it(how: str) -> None:
    world = World(FACTS)
    world.rounds(ALL_WELL, lambda _: "ok")
    victim = busiest(world.plans)
    assert world.rounds(12, frozen(victim, how)) == {victim}
    used = {n for found in world.plans.values() for p in found.probes for n in (p.origin.node, p.destination.node)}
    assert victim not in used
    assert world.blamed == {victim}


ONE_EACH = [fact for fact in FACTS if fact.name.endswith("a")]
TWO_ZONES = [fact for fact in FACTS if fact.zone in {"z1", "z2"}]


@pytest.mark.parametrize(
    ("facts", "rounds", "fate"),
    [
        (FACTS, 90, cut("z1", "z2")),
        (ONE_EACH, 60, cut("z1", "z2")),
        (TWO_ZONES, 60, cut("z1", "z2")),
        # An agent's silence alone is no proof.
        (FACTS, 60, lambda p: "silent" if p.origin.node == "z1a" else "ok"),
        (FACTS, 60, lambda p: "silent" if p.origin.node == "z1b" else "ok"),
        # A dead network.
        (FACTS, 30, lambda _: "failed"),
    ],
)
def test_what_may_have_other_reasons_excludes_nobody(facts: list[ProbeNode], rounds: int, fate: Fate) -> None:
    world = World(facts)
    world.rounds(ALL_WELL, lambda _: "ok")
    world.rounds(rounds, fate)
    assert world.blamed == set()


@pytest.mark.parametrize("round_s", [10.0, 30.0, 60.0, 594.0])
def test_healthy_nodes_that_write_seldom_are_never_blamed(round_s: float) -> None:
    world = World(FACTS, round_s, write_every=max(2, int(180 / round_s)))
    world.rounds(120, lambda _: "ok")
    assert world.blamed == set()
    assert world.liveness.additional_pairs == ()


def test_where_udp_is_filtered_hosts_that_answer_are_not_blamed() -> None:
    world = World(FACTS, prober="netperf")
    world.rounds(60, lambda p: "ok" if p.pair_index == 0 and p.origin.zone < p.destination.zone else "hung")
    assert world.blamed == set()


def test_a_suspect_gets_another_chance() -> None:
    world = World(FACTS)
    world.rounds(ALL_WELL, lambda _: "ok")
    victim = busiest(world.plans)
    assert world.rounds(12, frozen(victim)) == {victim}
    world.rounds(int(QUARANTINE_S / world.round_s) + 5, lambda _: "ok")
    assert world.liveness.quarantine == {}


def test_a_zone_keeps_its_last_prober() -> None:
    facts = [f for f in FACTS if f.name != "z1b"]
    left = without_suspects(facts, {"z1a": 5.0, "z2a": 5.0})
    assert {f.name for f in left if f.agent_ready} == {"z1a", "z2b", "z3a", "z3b", "z4a", "z4b"}


def test_of_a_pair_that_runs_several_tests_the_newest_word_counts() -> None:
    world = World(FACTS)
    probe = next(probe for found in world.plans.values() for probe in found.probes)
    runs = (
        (20, Measurement(prober="netperf", test="TCP_RR", p50_us=1.0)),
        (10, Measurement(prober="netperf", test="TCP_STREAM")),
    )
    origin, destination = probe.origin.place, probe.destination.place
    samples = [Sample(origin=origin, destination=destination, measurement=m, sequence=number) for number, m in runs]
    for order in (samples, samples[::-1]):
        found = update_liveness(Liveness(), world.plans.values(), order, (), now_s=0.0, interval_s=60.0)
        last = found.last_results[probe.origin.node, probe.destination.node]
        assert last.version is not None
        assert last.version[0] == 20
