"""Which keys of a results ConfigMap nobody will write again, so that the object does not grow for ever.

When a pair of zones moves to other nodes, its old sample stays until the new nodes have written theirs: a pair must not
lose its latency for a round only because the plan was rotated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from netperf.plans import ZonePlan
from netperf.results import decode_results, upstream_key, vanished_keys
from netperf.sample import PERCENTILES, Place, Sample


def keys_to_remove(data: Mapping[str, str], plans: Iterable[ZonePlan], places: Mapping[str, Place]) -> set[str]:
    """Keys of ours whose pair of nodes is not planned any more, less those that still speak for their zones.

    Args:
        data: of one results ConfigMap that our agents write.
        plans: all plans in force.
        places: the cluster's nodes by name.
    """
    plans = tuple(plans)
    doomed = vanished_keys(data, plans)
    if not doomed:
        return doomed
    samples = decode_results(data, places).samples
    planned = {frozenset((p.origin.zone, p.destination.zone)) for plan in plans for p in plan.probes}
    replaced = {frozenset(sample.zones) for key, sample in samples.items() if key not in doomed}
    for key in sorted(doomed & samples.keys()):
        zones = frozenset(samples[key].zones)
        if zones in planned and zones not in replaced:
            doomed.discard(key)
            doomed -= _upstream_keys(samples[key])
    return doomed


def _upstream_keys(sample: Sample) -> set[str]:
    names = (upstream_key(sample.origin.node, sample.destination.node, p) for p in PERCENTILES)
    return {name for name in names if name is not None}
