"""Reads weights of dependencies from an AppGroup's annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.resources import AppGroup
from kubekit.wire import DECODE_ERRORS

GREATEST_WEIGHT = 1e18
"""Beyond, sums of weights would leave the range of numbers, and no latency would come of them."""
Weights = Mapping[str, Mapping[str, float]]
"""Caller's selector -> callee's selector -> bytes per second."""
Edges = dict[tuple[str, str], float]
"""The same by (caller's selector, callee's selector)."""

_decode_weights = msgspec.json.Decoder(dict[str, dict[str, float]]).decode


def by_edge(weights: Weights) -> Edges:
    """One entry per dependency."""
    return {(caller, callee): weight for caller, row in weights.items() for callee, weight in row.items()}


def annotated_weights(group: AppGroup, name: str, problems: list[str]) -> Edges:
    """Weights from an annotation; appends what cannot be used to ``problems``."""
    text = group.metadata.annotation(name)
    if not text:
        return {}
    try:
        found = by_edge(_decode_weights(text))
    except DECODE_ERRORS as error:
        problems.append(f"annotation {name}: {error}")
        return {}
    bad = [f"{caller} to {callee}" for (caller, callee), weight in found.items() if not 0 <= weight <= GREATEST_WEIGHT]
    if bad:
        problems.append(f"annotation {name}: not within 0 to {GREATEST_WEIGHT:g}: {', '.join(bad[:5])}")
    return {edge: weight for edge, weight in found.items() if 0 <= weight <= GREATEST_WEIGHT}
