"""Builds peers, plans, measurements and outcomes for the tests of probing."""

from __future__ import annotations

from typing import Any

from agent.probing.scheduler import ProbeOutcome
from netperf.measurement import Measurement
from netperf.plans import Peer, Probe, ProbeSettings, ZonePlan
from tests.support.samples import make_sample

ORIGIN = Peer("n1", "10.0.0.1", "z1", "r1")
PEERS = [Peer("n2", "10.0.0.2", "z2", "r1"), Peer("n3", "10.0.0.3", "z3", "r2"), Peer("n4", "10.0.0.4", "z4", "r2")]


def make_peer(node: str) -> Peer:
    """A node in a zone of its own."""
    return Peer(node, "10.0.0.1", f"z-{node}")


def make_plan(
    *destinations: Peer, origin: Peer = ORIGIN, settings: dict[str, Any] | None = None, **changes: Any
) -> ZonePlan:
    """The plan of ``origin``'s zone, by default with a round of 60 s; it also has a probe of another node of the zone."""
    probes = [Probe(origin=origin, destination=peer, slot=slot) for slot, peer in enumerate(destinations)]
    other_node = Peer("other", "10.0.0.9", origin.zone)
    fields: dict[str, Any] = {
        "epoch": 1,
        "interval_s": 60.0,
        "slot_count": 4,
        "results_name": "netperf-metrics",
        "probes": (*probes, Probe(origin=other_node, destination=PEERS[0], slot=3)),
        **changes,
    }
    return ZonePlan(zone=origin.zone, settings=ProbeSettings(**(settings or {})), **fields)


def make_measurement(p50_us: float = 500.0, **fields: Any) -> Measurement:
    """A run of netperf's TCP_RR."""
    defaults: dict[str, Any] = {"prober": "netperf", "test": "TCP_RR", "p90_us": 1.2 * p50_us, "transactions": 1000}
    return Measurement(p50_us=p50_us, **(defaults | fields))


def make_outcome(
    destination: Peer, measurement: Measurement | None = None, *, pair_index: int = 0, **fields: Any
) -> ProbeOutcome:
    """The outcome of a run from `ORIGIN`: ok with ``measurement``, unless ``fields`` say otherwise."""
    probe = Probe(origin=ORIGIN, destination=destination, slot=0, pair_index=pair_index)
    sample = measurement and make_sample(probe, measurement, sequence=0, taken_at=1000.0)
    defaults = {"test": "TCP_RR", "result": "ok", "sample": sample}
    return ProbeOutcome(probe=probe, **(defaults | fields))
