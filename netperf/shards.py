"""Assigns zones to results ConfigMaps, so that each stays small.

Every write makes etcd keep another copy of the whole object until it compacts, and sends one to each watcher. At 100
zones 8 samples per second are written: to objects of 30 kB that costs 240 kB/s, to objects that are just not too large
it would cost 8 MB/s. So shards are kept small, long before 1 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

ZONES_PER_SHARD = 10
SAMPLES_PER_SHARD = 65
MAX_SHARDS = 100
"""The agents' Role and admission policy list exactly this many names."""


def zones_per_shard(zone_count: int) -> int:
    """Number of zones whose agents write to one object: 10 up to 13 zones, 3 at 40, 1 from 66 on, 2 above 100.

    A zone starts (Z - 1) / 2 probes. So an object has about `SAMPLES_PER_SHARD` samples of 500 bytes (twice as many if both
    directions are measured), until `MAX_SHARDS` forces more zones into each.
    """
    fitting = min(ZONES_PER_SHARD, 2 * SAMPLES_PER_SHARD // max(1, zone_count))
    return max(1, fitting, math.ceil(zone_count / MAX_SHARDS))


def shard_names(base: str, zone_count: int) -> list[str]:
    """Names of all results objects for this number of zones; the first is ``base``, the one object that other tools know."""
    return [base, *(f"{base}-{i}" for i in range(1, math.ceil(zone_count / zones_per_shard(zone_count))))]


def assign_shards(zones: Sequence[str], base: str, previous: Mapping[str, str]) -> dict[str, str]:
    """Zone -> ConfigMap that its agents write, `zones_per_shard` of them to each; zones stay where there is room."""
    capacity = zones_per_shard(len(zones))
    room = dict.fromkeys(shard_names(base, len(zones)), capacity)
    assigned: dict[str, str] = {}
    for zone in sorted(zones):
        name = previous.get(zone, "")
        if room.get(name, 0) > 0:
            assigned[zone] = name
            room[name] -= 1
    for zone in sorted(zones):
        if zone not in assigned:
            name = next(n for n, free in room.items() if free > 0)
            assigned[zone] = name
            room[name] -= 1
    return assigned
