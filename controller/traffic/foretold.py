"""What a proposal foretold, kept on its AppGroup once it is applied: the page holds it against what came of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from controller.cluster.resources import AppGroup
from kubekit.wire import UNREADABLE
from netperf.contract import PROPOSAL_ANNOTATION

LARGEST = 65_536
"""Characters; whoever may write an AppGroup writes this, and everybody who looks at the page is sent it."""


class Foretold(msgspec.Struct, frozen=True, rename="camel"):
    """A proposal's before and after.

    Attributes:
        at: when it was applied, unix seconds.
        zones_before, zones_then: caller's zone -> called one's zone -> bytes per second.
        places_before, places_then: selector -> zone -> pods.
    """

    at: float
    zones_before: Mapping[str, Mapping[str, float]] = {}
    zones_then: Mapping[str, Mapping[str, float]] = {}
    places_before: Mapping[str, Mapping[str, int]] = {}
    places_then: Mapping[str, Mapping[str, int]] = {}


_decode_foretold = msgspec.json.Decoder(Foretold).decode


def write_foretold(foretold: Foretold) -> str:
    """The annotation's value; without places where it would be too large, and empty where it still is."""
    for found in (foretold, msgspec.structs.replace(foretold, places_before={}, places_then={})):
        text = msgspec.json.encode(found).decode()
        if len(text) <= LARGEST:
            return text
    return ""


def read_foretold(group: AppGroup) -> Foretold | None:
    """What stands there; None where nothing does, or nothing that makes sense."""
    text = group.metadata.annotation(PROPOSAL_ANNOTATION)
    if not text or len(text) > LARGEST:
        return None
    try:
        found = _decode_foretold(text)
    except UNREADABLE:
        return None
    rates = [
        rate for table in (found.zones_before, found.zones_then) for row in table.values() for rate in row.values()
    ]
    return found if all(0 <= number < math.inf for number in (found.at, *rates)) else None
