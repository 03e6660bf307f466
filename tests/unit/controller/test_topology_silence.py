"""A node from which nothing is heard loses its pairs; a cut between zones, or silence everywhere, suspects nobody."""

from __future__ import annotations

from controller.topology.silence import QUARANTINE_S, SILENT_ROUNDS, Listening, listen, without_suspects
from netperf.pairs import NodeFacts, PlanOptions, plan_pairs
from netperf.plans import ZonePlan
from netperf.sample import Measurement, Sample

ROUND_S = 60.0
ZONES = ("z1", "z2", "z3", "z4")
FACTS = [NodeFacts(name=f"{zone}{copy}", address="10.0.0.1", zone=zone) for zone in ZONES for copy in "ab"]


def plan(facts: list[NodeFacts], previous: dict[str, ZonePlan] | None = None) -> dict[str, ZonePlan]:
    return plan_pairs(facts, PlanOptions(), previous, 1000.0).zones


def rounds(plans: dict[str, ZonePlan], count: int, mute: set[str], cut: tuple[str, str] = ("", "")) -> Listening:
    """Look once per round; pairs with a mute node, or between the two cut zones, bring no sample."""
    listening = Listening()
    for number in range(count):
        samples = [
            Sample(
                origin=probe.origin.place,
                destination=probe.destination.place,
                measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=1.0),
                sequence=number,
                taken_at=float(number),
            )
            for found in plans.values()
            for probe in found.probes
            if not {probe.origin.node, probe.destination.node} & mute
            and {probe.origin.zone, probe.destination.zone} != set(cut)
        ]
        listening = listen(listening, plans.values(), samples, number * ROUND_S, ROUND_S)
    return listening


def busiest(plans: dict[str, ZonePlan]) -> str:
    nodes = [node for found in plans.values() for p in found.probes for node in (p.origin.node, p.destination.node)]
    return max(sorted(set(nodes)), key=nodes.count)


def used(plans: dict[str, ZonePlan]) -> set[str]:
    return {node for found in plans.values() for p in found.probes for node in (p.origin.node, p.destination.node)}


def test_a_mute_node_is_suspected_after_some_rounds_and_its_pairs_move_while_the_others_stay() -> None:
    plans = plan(FACTS)
    mute = busiest(plans)
    assert rounds(plans, SILENT_ROUNDS + 1, {mute}).quarantine == {}
    listening = rounds(plans, SILENT_ROUNDS + 2, {mute})
    assert set(listening.quarantine) == {mute}
    after = plan(without_suspects(FACTS, listening.quarantine), plans)
    assert mute not in used(after)
    kept = {
        (p.origin, p.destination)
        for f in plans.values()
        for p in f.probes
        if mute not in {p.origin.node, p.destination.node}
    }
    assert kept <= {(p.origin, p.destination) for f in after.values() for p in f.probes}


def test_zones_that_are_cut_off_from_each_other_suspect_no_node_with_another_pair() -> None:
    plans = plan([f for f in FACTS if f.name.endswith("a")])
    assert rounds(plans, 20, set(), cut=("z1", "z2")).quarantine == {}


def test_silence_everywhere_moves_nothing() -> None:
    plans = plan(FACTS)
    assert rounds(plans, 20, {f.name for f in FACTS}).quarantine == {}


def test_the_only_pair_of_two_zones_moves_when_it_is_silent() -> None:
    facts = [f for f in FACTS if f.zone in {"z1", "z2"}]
    plans = plan(facts)
    listening = rounds(plans, SILENT_ROUNDS + 2, used(plans))
    assert set(listening.quarantine) == used(plans)
    assert not used(plan(without_suspects(facts, listening.quarantine), plans)) & used(plans)


def test_a_zone_does_not_lose_its_last_prober() -> None:
    facts = [f for f in FACTS if f.name != "z1b"]
    assert without_suspects(facts, {"z1a": 1.0}) == facts


def test_a_suspect_gets_another_chance() -> None:
    listening = Listening(quarantine={"z1a": QUARANTINE_S})
    assert set(listen(listening, (), (), QUARANTINE_S - 1, ROUND_S).quarantine) == {"z1a"}
    assert listen(listening, (), (), QUARANTINE_S, ROUND_S).quarantine == {}


def test_a_pair_that_is_new_in_the_plan_has_its_time() -> None:
    plans = plan(FACTS)
    old = rounds(plans, 3, set())
    fresh = plan(FACTS[::2])
    assert listen(old, fresh.values(), (), 100 * ROUND_S, ROUND_S).quarantine == {}
