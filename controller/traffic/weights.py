"""Reads weights of dependencies from an AppGroup's annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.resources import AppGroup
from kubekit.text import join_first
from kubekit.wire import DECODE_ERRORS

MAX_WEIGHT = 1e18
"""Upper limit of a weight, so that sums of weighted latencies stay finite."""
SHOWN_EDGES = 5
Weights = Mapping[str, Mapping[str, float]]
"""Caller's selector -> callee's selector -> bytes per second."""
Edges = dict[tuple[str, str], float]
"""(caller's selector, callee's selector) -> bytes per second."""

_decode_weights = msgspec.json.Decoder(dict[str, dict[str, float]]).decode


def by_edge(weights: Weights) -> Edges:
    """Flatten weights to one entry per dependency."""
    return {(caller, callee): weight for caller, row in weights.items() for callee, weight in row.items()}


def read_weights(group: AppGroup, name: str, problems: list[str]) -> Edges:
    """Weights from the annotation ``name``; invalid ones are omitted and reported in ``problems``."""
    text = group.metadata.annotation(name)
    if not text:
        return {}
    try:
        weights = by_edge(_decode_weights(text))
    except DECODE_ERRORS as error:
        problems.append(f"annotation {name}: {error}")
        return {}
    valid = {edge: weight for edge, weight in weights.items() if 0 <= weight <= MAX_WEIGHT}
    invalid = [f"{caller} to {callee}" for caller, callee in weights if (caller, callee) not in valid]
    if invalid:
        problems.append(f"annotation {name}: not within 0 to {MAX_WEIGHT:g}: {join_first(invalid, SHOWN_EDGES)}")
    return valid
