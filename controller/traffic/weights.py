"""Weights of an AppGroup's dependencies, and their decoding from its annotations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.crds import AppGroup
from kubekit.text import join_first
from kubekit.wire import DECODE_ERRORS

MAX_WEIGHT = 1e18
"""Upper limit of a weight, so that sums of weighted latencies stay finite."""
MAX_EDGES_SHOWN = 5
"""Invalid weights that a message names."""
Weights = Mapping[str, Mapping[str, float]]
"""Caller's selector -> callee's selector -> traffic: bytes per second if it is measured, in any unit if a user wrote it."""
WeightByEdge = dict[tuple[str, str], float]
"""(caller's selector, callee's selector) -> traffic, as in `Weights`."""

_decode_weights = msgspec.json.Decoder(dict[str, dict[str, float]]).decode


def flatten_weights(weights: Weights) -> WeightByEdge:
    """The weights with one key for each dependency."""
    return {(caller, callee): weight for caller, row in weights.items() for callee, weight in row.items()}


def read_weights(group: AppGroup, annotation: str, problems: list[str]) -> WeightByEdge:
    """Weights from an annotation, if the group has it; invalid weights, or a malformed text, are omitted with a message in ``problems``."""
    text = group.metadata.annotation(annotation)
    if not text:
        return {}
    try:
        weights = flatten_weights(_decode_weights(text))
    except DECODE_ERRORS as error:
        problems.append(f"annotation {annotation}: {error}")
        return {}
    valid = {edge: weight for edge, weight in weights.items() if 0 <= weight <= MAX_WEIGHT}
    invalid = [f"{caller} to {callee}" for caller, callee in weights if (caller, callee) not in valid]
    if invalid:
        listed = join_first(invalid, MAX_EDGES_SHOWN)
        problems.append(f"annotation {annotation}: not within 0 to {MAX_WEIGHT:g}: {listed}")
    return valid
