"""Encodes and decodes results keys in upstream's format (docs/contracts, section 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from netperf.measurement import MAX_LATENCY_US, PERCENTILES, Measurement, Percentile
from netperf.refusals import Refusal, make_refusal
from netperf.sample import NodeLocation, Sample

MAX_KEY_LENGTH = 253
_KEY_PATTERN = re.compile(
    r"netperf(?P<dot>[._])(?P<percentile>p50|p90|p99)(?P=dot)latency(?P=dot)(?P<unit>milliseconds|microseconds)"
    r"\.origin\.(?P<nodes>.+)",
    re.DOTALL,
)
_NUMBER_PATTERN = re.compile(r"[0-9]{1,12}(\.[0-9]{1,20})?")
_US_BY_UNIT = {"milliseconds": 1000.0, "microseconds": 1.0}

NodePair = tuple[str, str]
"""Names of the origin and the destination."""


class UpstreamValue(NamedTuple):
    """A decoded key with its nodes and percentile, its number converted to microseconds, and the number's unit."""

    key: str
    nodes: NodePair
    percentile: Percentile
    value_us: float
    unit: str


UpstreamValues = dict[Percentile, UpstreamValue]


def upstream_key(origin_node: str, destination_node: str, percentile: Percentile) -> str | None:
    """Upstream's key in milliseconds; None if the two names make it too long."""
    key = f"netperf.{percentile}.latency.milliseconds.origin.{origin_node}.destination.{destination_node}"
    return key if len(key) <= MAX_KEY_LENGTH else None


def decode_upstream_value(
    key: str, value: str, locations: Mapping[str, NodeLocation]
) -> UpstreamValue | Refusal | None:
    """Decode a key in upstream's format; a refusal if key or value is invalid, None if the key has another format."""
    match = _KEY_PATTERN.fullmatch(key)
    if match is None:
        return None
    pairs = _split_nodes(match["nodes"])
    if not pairs:
        return make_refusal(key, "bad-key", "has no .destination. between two names")
    existing_pairs = [(a, b) for a, b in pairs if a in locations and b in locations]
    if len(existing_pairs) != 1:
        return make_refusal(key, "ambiguous-key" if existing_pairs else "unknown-node", f"nodes {match['nodes']!r}")
    number = value.strip()
    if not _NUMBER_PATTERN.fullmatch(number) or float(number) <= 0:
        return make_refusal(key, "bad-value", f"{value[:40]!r} is not a decimal number of {match['unit']} above 0")
    value_us = float(number) * _US_BY_UNIT[match["unit"]]
    if value_us > MAX_LATENCY_US:
        return make_refusal(key, "bad-value", f"{value[:40]!r} {match['unit']} is more than 10 minutes")
    percentile = next(p for p in PERCENTILES if p == match["percentile"])
    return UpstreamValue(key, existing_pairs[0], percentile, value_us, match["unit"])


def add_upstream_value(values_by_nodes: dict[NodePair, UpstreamValues], value: UpstreamValue) -> None:
    """Add a number, unless the percentile of its nodes has one in microseconds, which are more precise."""
    values = values_by_nodes.setdefault(value.nodes, {})
    previous = values.get(value.percentile)
    if previous is None or previous.unit == "milliseconds":
        values[value.percentile] = value


def combine_upstream_values(
    origin: NodeLocation, destination: NodeLocation, values: UpstreamValues
) -> tuple[str, Sample]:
    """The numbers of a pair as one sample of prober ``external``, with the last of its keys in bytewise order."""
    us = {percentile: value.value_us for percentile, value in values.items()}
    measurement = Measurement(
        prober="external", test="TCP_RR", p50_us=us.get("p50"), p90_us=us.get("p90"), p99_us=us.get("p99")
    )
    key = max(value.key for value in values.values())
    return key, Sample(origin=origin, destination=destination, measurement=measurement)


def _split_nodes(text: str) -> list[NodePair]:
    """All ways to split ``<node>.destination.<node>``, because names may contain ``.destination.``."""
    parts = text.split(".destination.")
    return [(".destination.".join(parts[:i]), ".destination.".join(parts[i:])) for i in range(1, len(parts))]
