"""Assigns zones to results ConfigMaps, so that each stays small.

After every write, etcd keeps another copy of the whole object until its next compaction, and each watcher receives a copy. 100 zones with
3 pairs of nodes per link write 25 samples per second: 2.5 MB/s with objects of 100 kB, 26 MB/s with objects of 1 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MAX_ZONES_PER_SHARD, SAMPLES_PER_SHARD = 10, 65
"""Limits of one object, unless there would be more than `MAX_SHARDS`: its zones, and its samples of one pair index."""
MAX_SHARDS = 100
"""Number of names that the agents' Role and admission policy list."""


def zones_per_shard(zone_count: int) -> int:
    """Number of zones whose agents write to one object: 10 for up to 13 zones, 3 for 40, 1 for 66 to 100, then 2 or more.

    A zone starts (Z - 1) / 2 probes of each pair index. So an object has about `SAMPLES_PER_SHARD` samples of each pair index, with 500
    to 1000 bytes each, and more only if there would be more than `MAX_SHARDS` objects.
    """
    by_size = min(MAX_ZONES_PER_SHARD, 2 * SAMPLES_PER_SHARD // max(1, zone_count))
    return max(1, by_size, math.ceil(zone_count / MAX_SHARDS))


def shard_names(base: str, zone_count: int) -> list[str]:
    """Names of all results ConfigMaps for this number of zones; the first is ``base``, which other tools read."""
    return [base, *(f"{base}-{i}" for i in range(1, math.ceil(zone_count / zones_per_shard(zone_count))))]


def assign_shards(zones: Sequence[str], base: str, previous: Mapping[str, str]) -> dict[str, str]:
    """Assign to each zone the ConfigMap into which its agents write, at most `zones_per_shard` zones to each; returns names by zone.

    A zone keeps its name in ``previous`` if possible. ``base`` is the name of the first ConfigMap.
    """
    free_counts = dict.fromkeys(shard_names(base, len(zones)), zones_per_shard(len(zones)))
    name_by_zone: dict[str, str] = {}
    for zone in sorted(zones):
        name = previous.get(zone, "")
        if free_counts.get(name, 0) > 0:
            name_by_zone[zone] = name
            free_counts[name] -= 1
    for zone in sorted(zones):
        if zone not in name_by_zone:
            name = next(name for name, count in free_counts.items() if count > 0)
            name_by_zone[zone] = name
            free_counts[name] -= 1
    return name_by_zone
