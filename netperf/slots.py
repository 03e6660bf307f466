"""Assigns slots to pairs of zones: probes of one slot may run at the same time.

This is an edge colouring: zones are vertices, probes are edges, slots are colours. No zone occurs twice in a slot, so no node takes part
in two probes at once. For a complete graph the circle method of a round-robin tournament needs the fewest colours: Z - 1 for even Z, and
Z for odd Z.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

ZonePair = tuple[str, str]
"""Two zones in bytewise order."""


def round_of_pairs(zones: Sequence[str]) -> dict[tuple[str, str], int]:
    """Round of every pair of zones by the circle method; each key has its zones in the order of ``zones``."""
    count = len(zones) + len(zones) % 2
    rounds: dict[tuple[str, str], int] = {}
    for i in range(len(zones)):
        for j in range(i + 1, len(zones)):
            # The last zone stays in place and the others rotate: zones i and j meet in round (i + j) mod (n - 1).
            number = (i + j) % (count - 1) if j < count - 1 else (2 * i) % (count - 1)
            rounds[zones[i], zones[j]] = number
    return rounds


def assign_slots(pairs: Sequence[ZonePair], previous_slots: Mapping[ZonePair, int]) -> tuple[dict[ZonePair, int], int]:
    """Assign a slot to every pair; pairs that had one keep it.

    Args:
        pairs: in order of preference for the low slots.
        previous_slots: current slots, as far as known.

    Returns:
        Slot by pair, and the number of slots (at least 1). Starts over if keeping would need more than
        ceil(1.25 n) + 1 slots, where n are enough for a fresh start.
    """
    kept, count = _first_fit(pairs, previous_slots)
    if not previous_slots:
        return kept, count
    fresh, fresh_count = _first_fit(pairs, {})
    return (kept, count) if count <= math.ceil(1.25 * fresh_count) + 1 else (fresh, fresh_count)


def _first_fit(pairs: Sequence[ZonePair], previous_slots: Mapping[ZonePair, int]) -> tuple[dict[ZonePair, int], int]:
    busy: dict[str, int] = defaultdict(int)  # zone -> bit set of its slots
    slots: dict[ZonePair, int] = {}
    unassigned: list[ZonePair] = []

    def assign(pair: ZonePair, slot: int) -> None:
        slots[pair] = slot
        for zone in pair:
            busy[zone] |= 1 << slot

    for pair in pairs:
        slot = previous_slots.get(pair)
        # A slot comes from a ConfigMap and may be any number; the limit bounds the bit sets and the number of slots.
        if slot is None or slot > 4 * len(pairs) or (busy[pair[0]] | busy[pair[1]]) >> slot & 1:
            unassigned.append(pair)
        else:
            assign(pair, slot)
    for pair in unassigned:
        taken = busy[pair[0]] | busy[pair[1]]
        assign(pair, (~taken & (taken + 1)).bit_length() - 1)
    return slots, max(slots.values(), default=0) + 1
