"""Assigns slots to pairs of zones: probes of one slot may run at the same time.

This is an edge colouring: zones are vertices, probes are edges, slots are colours. No zone occurs twice in a slot, so no node takes part
in two probes at once. For a complete graph the circle method of a round-robin tournament needs the fewest colours: Z - 1 for even Z, and
Z for odd Z.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from netperf.consensus import ZoneLink


def order_pairs(zones: Sequence[str]) -> list[ZoneLink]:
    """Pairs of ``zones`` (sorted bytewise), by their round of the circle method, so that `assign_slots` needs the fewest slots."""
    count = len(zones) + len(zones) % 2
    tournament_rounds: dict[ZoneLink, int] = {}
    for i, a in enumerate(zones):
        for j in range(i + 1, len(zones)):
            # The last zone (for an odd number a dummy) stays in place and the others rotate: i and j meet in round (i + j) mod (count - 1).
            tournament_rounds[a, zones[j]] = (i + j if j < count - 1 else 2 * i) % (count - 1)
    return sorted(tournament_rounds, key=lambda pair: (tournament_rounds[pair], pair))


def assign_slots(pairs: Sequence[ZoneLink], previous_slots: Mapping[ZoneLink, int]) -> tuple[dict[ZoneLink, int], int]:
    """Assign a slot to every pair; a pair keeps its previous slot, unless that needs more than ceil(1.25 n) + 1 slots instead of n.

    Args:
        pairs: the pairs of `order_pairs`; earlier ones get lower slots.
        previous_slots: slots of the current plans, so that a new zone moves no other pair's probes; empty to start over.

    Returns:
        Slot by pair, and the number of slots (at least 1).
    """
    kept_slots, kept_count = _assign_first_fit(pairs, previous_slots)
    new_slots, new_count = _assign_first_fit(pairs, {})
    return (kept_slots, kept_count) if kept_count <= math.ceil(1.25 * new_count) + 1 else (new_slots, new_count)


def _assign_first_fit(
    pairs: Sequence[ZoneLink], previous_slots: Mapping[ZoneLink, int]
) -> tuple[dict[ZoneLink, int], int]:
    """Keep the previous slots that are free, and give the lowest free slot to other pairs; returns what `assign_slots` does."""
    used_slots: dict[str, int] = defaultdict(int)  # bit sets by zone
    slots: dict[ZoneLink, int] = {}
    unassigned: list[ZoneLink] = []

    def assign(pair: ZoneLink, slot: int) -> None:
        slots[pair] = slot
        for zone in pair:
            used_slots[zone] |= 1 << slot

    for pair in pairs:
        slot = previous_slots.get(pair)
        # A slot comes from a ConfigMap and may be any number; the limit bounds the bit sets and the number of slots.
        if slot is None or slot > 4 * len(pairs) or (used_slots[pair[0]] | used_slots[pair[1]]) >> slot & 1:
            unassigned.append(pair)
        else:
            assign(pair, slot)
    for pair in unassigned:
        used_by_either = used_slots[pair[0]] | used_slots[pair[1]]
        lowest_free_bit = ~used_by_either & (used_by_either + 1)
        assign(pair, lowest_free_bit.bit_length() - 1)
    return slots, max(slots.values(), default=0) + 1
