"""Builds peers, plans, measurements and outcomes for the tests of probing."""

from __future__ import annotations

from typing import Any

from agent.probing.scheduler import ProbeOutcome
from netperf.measurement import Measurement
from netperf.plans import Peer, Probe, ProbeSettings, ZonePlan
from netperf.sample import Sample

HERE = Peer("n1", "10.0.0.1", "z1", "r1")
THERE = [Peer("n2", "10.0.0.2", "z2", "r1"), Peer("n3", "10.0.0.3", "z3", "r2"), Peer("n4", "10.0.0.4", "z4", "r2")]


def make_peer(node: str) -> Peer:
    """A node in a zone of its own."""
    return Peer(node, "10.0.0.1", f"z-{node}")


def make_plan(
    *destinations: Peer, origin: Peer = HERE, settings: dict[str, Any] | None = None, **changes: Any
) -> ZonePlan:
    """The plan of ``origin``'s zone: its probes, and one probe of another node of the zone."""
    probes = [Probe(origin=origin, destination=to, slot=slot) for slot, to in enumerate(destinations)]
    probe_of_other_node = Probe(origin=Peer("other", "10.0.0.9", origin.zone), destination=THERE[0], slot=3)
    fields: dict[str, Any] = {
        "epoch": 1,
        "interval_s": 60.0,
        "slot_count": 4,
        "results_name": "netperf-metrics",
        **changes,
    }
    probe_settings = ProbeSettings(**(settings or {}))
    return ZonePlan(zone=origin.zone, settings=probe_settings, probes=(*probes, probe_of_other_node), **fields)


def make_measurement(p50_us: float = 500.0, **fields: Any) -> Measurement:
    defaults: dict[str, Any] = {"prober": "netperf", "test": "TCP_RR", "p90_us": 1.2 * p50_us, "transactions": 1000}
    return Measurement(p50_us=p50_us, **(defaults | fields))


def make_outcome(
    to: Peer, measurement: Measurement | None = None, *, pair_index: int = 0, **fields: Any
) -> ProbeOutcome:
    """The outcome of a run from `HERE`: ok with ``measurement``, unless ``fields`` say otherwise."""
    sample = measurement and Sample(
        origin=HERE.location, destination=to.location, measurement=measurement, taken_at=1000.0
    )
    defaults = {"test": "TCP_RR", "result": "ok", "sample": sample}
    probe = Probe(origin=HERE, destination=to, slot=0, pair_index=pair_index)
    return ProbeOutcome(probe=probe, **(defaults | fields))
