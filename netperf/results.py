"""Encodes, decodes and cleans up the results ConfigMap.

Each agent writes only keys of its own node pairs, as a JSON merge patch. The API server merges key by key, so writers neither conflict nor
lose each other's updates. Our format has a `Sample` or a `Failure` per key. Upstream's format has a number per key (the measurement
ConfigMap, docs/contracts); it is always read, and optionally written as well. A key names the origin node, and no other node may write the
key (manifests/policies). Each key is decoded alone; a malformed key is refused by name and never becomes a number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple, cast

import msgspec

from kubekit.settings import YEAR_S
from kubekit.wire import DECODE_ERRORS
from netperf.configmap_size import MAX_CONFIGMAP_BYTES, check_size
from netperf.measurement import PERCENTILES, TESTS, Measurement, Percentile, Test
from netperf.plans import Probe, ZonePlan
from netperf.refusals import Refusal, make_refusal
from netperf.sample import Failure, NodeLocation, Sample
from netperf.upstream_keys import (
    MAX_KEY_LENGTH,
    NodePair,
    UpstreamValue,
    UpstreamValues,
    add_upstream_value,
    combine_upstream_values,
    decode_upstream_value,
    upstream_key,
)

_decode_sample = msgspec.json.Decoder(Sample).decode
_decode_failure = msgspec.json.Decoder(Failure).decode

KEY_PREFIX = "netaware.v1."
FAILED_SUFFIX = ".failed"
SIZE_WARNING_BYTES = MAX_CONFIGMAP_BYTES * 3 // 4
"""Size above which the controller warns; only keys of other components can make the object so large."""
MIN_REFRESH_S, REFRESH_ROUNDS = 170.0, 1.5
"""An unchanged sample is written again after this time or after this many rounds, whichever is longer."""
MAX_VALUE_BYTES = 2048
"""Longest value of one of our keys; the agents' admission policy has the same limit."""
MAX_LISTED_REFUSALS = 100
MAX_NAME_LENGTH = 111
"""Longest node name that fits into a key: a key has two names, and the API server accepts 253 characters."""
_KEY_PATTERN = re.compile(r"[-._a-zA-Z0-9]+")
_OUR_KEY_PATTERN = re.compile(
    rf"{re.escape(KEY_PREFIX)}([-.a-z0-9]+)_([-.a-z0-9]+)_({'|'.join(TESTS)})({re.escape(FAILED_SUFFIX)})?"
)
_MIN_CLOCK_S = 1_795_000_000
"""Earliest plausible time, seconds since 1970; a clock that shows an earlier time was never set."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Samples, failures and refusals from one or more ConfigMaps.

    Attributes:
        samples: samples by key; the numbers of a node pair in upstream's format are one sample, under the last of their keys in bytewise order.
        failures: failures by key, without failures that are older than a sample of the same pair.
        refusals: the first `MAX_LISTED_REFUSALS` refused keys.
        refusal_counts: number of all refused keys by reason.
    """

    samples: dict[str, Sample]
    failures: dict[str, Failure] = {}
    refusals: tuple[Refusal, ...] = ()
    refusal_counts: dict[str, int] = {}


class ResultKey(NamedTuple):
    """A parsed key of our format: the pair of nodes, the test, and whether the key is of a failure.

    An underscore, which no node's name contains, ends each name. So the admission policy can check the writer by a prefix.
    """

    origin: str
    destination: str
    test: Test
    is_failure: bool = False

    def __str__(self) -> str:
        return f"{KEY_PREFIX}{self.origin}_{self.destination}_{self.test}{FAILED_SUFFIX if self.is_failure else ''}"


def parse_key(key: str) -> ResultKey | None:
    """Parse a key; None if the key is not in our format."""
    match = _OUR_KEY_PATTERN.fullmatch(key)
    return ResultKey(match[1], match[2], cast("Test", match[3]), bool(match[4])) if match else None


def sample_key(origin: NodeLocation, destination: NodeLocation, test: Test) -> str:
    """Our key for a pair of nodes."""
    return str(ResultKey(origin.node, destination.node, test))


def encode_failure(failure: Failure, test: Test) -> dict[str, str | None]:
    """Encode a failure under its own key, next to the key of the pair's sample. The writer removes the key after a success."""
    key = ResultKey(failure.origin.node, failure.destination.node, test, is_failure=True)
    value = msgspec.structs.replace(failure, taken_at=round(failure.taken_at, 3))
    return {str(key): msgspec.json.encode(value).decode()}


def encode_samples(
    samples: Iterable[Sample], upstream_percentiles: Collection[Percentile] = ()
) -> dict[str, str | None]:
    """Encode samples: the keys that a writer sets, with their values; None removes a key.

    Args:
        samples: samples of any test.
        upstream_percentiles: percentiles to write in upstream's format too, each as whole milliseconds but never 0. A missing
            percentile removes the number. A sample with another flag than ``loss`` leaves the last number unchanged, because upstream's format has no
            flags. Streams have no numbers.
    """
    data: dict[str, str | None] = {}
    for sample in samples:
        measurement = sample.measurement
        key = sample_key(sample.origin, sample.destination, measurement.test)
        data[key] = msgspec.json.encode(_round_sample(sample)).decode()
        if measurement.test == "TCP_STREAM" or not set(sample.quality_flags) <= {"loss"}:
            continue
        for percentile in upstream_percentiles:
            key_for_upstream = upstream_key(sample.origin.node, sample.destination.node, percentile)
            if key_for_upstream is not None:
                value_us = sample.percentile_us(percentile)
                data[key_for_upstream] = None if value_us is None else str(max(1, math.floor(value_us / 1000 + 0.5)))
    return data


def _round_sample(sample: Sample) -> Sample:
    """The sample with two decimals (ratios with six, its time with three), to save space in etcd. The measuring clocks are less precise."""
    return msgspec.structs.replace(
        sample,
        measurement=_round_measurement(sample.measurement),
        datagrams=None if sample.datagrams is None else _round_measurement(sample.datagrams),
        taken_at=round(sample.taken_at, 3),
    )


def _round_measurement(measurement: Measurement) -> Measurement:
    changes = {
        name: round(value, 6 if name.endswith("_ratio") else 2)
        for name in measurement.__struct_fields__
        if isinstance(value := getattr(measurement, name), float)
    }
    return msgspec.structs.replace(measurement, **changes)


def list_planned_keys(plans: Iterable[ZonePlan]) -> set[str]:
    """Keys of the samples and failures that agents should write."""
    return {
        key + suffix
        for plan in plans
        for probe in plan.probes
        for key in list_sample_keys(plan, probe)
        for suffix in ("", FAILED_SUFFIX)
    }


def list_sample_keys(plan: ZonePlan, probe: Probe) -> list[str]:
    """The keys of a probe's samples, one per test; if only datagrams measure the pair, one key with the usual test."""
    tests = plan.settings.tests if probe.pair_index == 0 else (plan.settings.test,)
    return [sample_key(probe.origin.location, probe.destination.location, test) for test in tests]


def find_keys_to_remove(data: Mapping[str, str], planned_keys: Container[str]) -> set[str]:
    """Keys for the controller to remove: keys with our prefix that are malformed or in no plan, or whose value is refused.

    The upstream keys of a pair of which no test is planned are removed too if the pair has a key of our format, because an agent then wrote
    them. ``planned_keys`` has `list_planned_keys` of all current plans.
    """
    obsolete_keys: set[str] = set()
    for key, value in data.items():
        result_key = parse_key(key)
        if result_key is None:
            if key.startswith(KEY_PREFIX):
                obsolete_keys.add(key)
        elif key not in planned_keys:
            obsolete_keys.add(key)
            pair = result_key.origin, result_key.destination
            if not _is_pair_planned(pair, planned_keys):
                obsolete_keys |= {k for p in PERCENTILES if (k := upstream_key(*pair, p)) is not None and k in data}
        elif isinstance(_decode_value(key, result_key, value), Refusal):
            obsolete_keys.add(key)
    return obsolete_keys


def _is_pair_planned(pair: NodePair, planned_keys: Container[str]) -> bool:
    return any(str(ResultKey(*pair, test)) in planned_keys for test in TESTS)


def find_last_sequence(data: Mapping[str, str], node: str, now_s: float) -> int:
    """The highest plausible sequence of a node's entries in a results ConfigMap; 0 if the node has none. Never raises."""
    last_sequence = 0
    for key, value in data.items():
        result_key = parse_key(key)
        if result_key is None or result_key.origin != node:
            continue
        result = _decode_value(key, result_key, value)
        if not isinstance(result, Refusal) and result.sequence <= _max_plausible_sequence(now_s):
            last_sequence = max(last_sequence, result.sequence)
    return last_sequence


def _max_plausible_sequence(now_s: float) -> float:
    """The highest plausible sequence. Sequences start from the writer's clock, in seconds; the reader's clock may not be set."""
    return max(now_s, _MIN_CLOCK_S) + 10 * YEAR_S


def decode_results(
    data: Mapping[str, str],
    locations: Mapping[str, NodeLocation],
    planned_keys: Collection[str] | None = None,
    *,
    now_s: float = math.inf,
) -> Results:
    """Decode the ``data`` of a results ConfigMap, or of all shards together. Never raises.

    Args:
        data: keys and values, by any writer.
        locations: the cluster's nodes by name. Samples and failures of nodes that are gone (``unknown-node``) or are in another zone now
            (``moved-node``) are refused.
        planned_keys: `list_planned_keys`. Other keys of our format, and upstream's keys of other pairs in zones that agents measure, are
            refused (``unplanned``). None if the plan is unknown.
        now_s: wall clock, seconds since 1970; an implausibly high sequence counts as 0, so that it hides no later result.
    """
    samples: dict[str, Sample] = {}
    failures: dict[str, Failure] = {}
    refusals: list[Refusal] = []
    values_by_nodes: dict[NodePair, UpstreamValues] = {}
    for key, value in data.items():
        outcome = _decode_key(key, value, locations, planned_keys)
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        elif isinstance(outcome, UpstreamValue):
            add_upstream_value(values_by_nodes, outcome)
        elif outcome is not None:
            # A year more than in `find_last_sequence`, because the writer's clock may be ahead and its sequence grows.
            if outcome.sequence > _max_plausible_sequence(now_s) + YEAR_S:
                outcome = msgspec.structs.replace(outcome, sequence=0)
            if isinstance(outcome, Sample):
                samples[key] = outcome
            else:
                failures[key] = outcome
    newest_sequences = _find_newest_sequences(samples.values())
    refusals += _add_upstream_samples(values_by_nodes, locations, planned_keys or (), newest_sequences, samples)
    return Results(
        samples=samples,
        failures={
            # A sample of any test counts: the next run of a failed extra test may be ten rounds away.
            key: failure
            for key, failure in failures.items()
            if newest_sequences.get((failure.origin.node, failure.destination.node), -1) <= failure.sequence
        },
        refusals=tuple(refusals[:MAX_LISTED_REFUSALS]),
        refusal_counts=dict(Counter(refusal.reason for refusal in refusals)),
    )


def _find_newest_sequences(samples: Iterable[Sample]) -> dict[NodePair, int]:
    newest_sequences: dict[NodePair, int] = {}
    for sample in samples:
        pair = sample.origin.node, sample.destination.node
        newest_sequences[pair] = max(sample.sequence, newest_sequences.get(pair, 0))
    return newest_sequences


def _decode_key(
    key: str, value: str, locations: Mapping[str, NodeLocation], planned_keys: Container[str] | None
) -> Sample | Failure | UpstreamValue | Refusal | None:
    """Decode a key of our or upstream's format; None if the key has another format."""
    if len(key) > MAX_KEY_LENGTH or not _KEY_PATTERN.fullmatch(key):
        return make_refusal(key, "illegal-key", f"at most {MAX_KEY_LENGTH} of [-._a-zA-Z0-9]")
    if key.startswith(KEY_PREFIX):
        return _decode_our_key(key, value, locations, planned_keys)
    return decode_upstream_value(key, value, locations)


def _add_upstream_samples(
    values_by_nodes: Mapping[NodePair, UpstreamValues],
    locations: Mapping[str, NodeLocation],
    planned_keys: Collection[str],
    measured_pairs: Container[NodePair],
    samples: dict[str, Sample],
) -> list[Refusal]:
    """Add the numbers of other components to ``samples``; returns refusals of unplanned numbers.

    The numbers of ``measured_pairs``, which have a sample in our format, are ignored, because our agent wrote them too.
    """
    refusals: list[Refusal] = []
    unplanned = _find_unplanned_pairs(values_by_nodes, locations, planned_keys)
    for (origin, destination), values in values_by_nodes.items():
        if (origin, destination) in unplanned:
            detail = f"no plan has the pair {origin}, {destination}"
            refusals += [make_refusal(key, "unplanned", detail, origin) for key, *_ in values.values()]
        elif (origin, destination) not in measured_pairs:
            key, sample = combine_upstream_values(locations[origin], locations[destination], values)
            samples[key] = sample
    return refusals


def _decode_our_key(
    key: str, value: str, locations: Mapping[str, NodeLocation], planned_keys: Container[str] | None
) -> Sample | Failure | Refusal:
    """Decode one of our keys, if it is planned and its nodes exist."""
    result_key = parse_key(key)
    if result_key is None:
        return make_refusal(key, "bad-key", f"write {KEY_PREFIX}<origin>_<destination>_<test>")
    writer = result_key.origin
    if planned_keys is not None and key not in planned_keys:
        return make_refusal(key, "unplanned", f"no plan has the pair {writer}, {result_key.destination}", writer)
    result = _decode_value(key, result_key, value)
    for location in () if isinstance(result, Refusal) else (result.origin, result.destination):
        current = locations.get(location.node)
        if current is None:
            return make_refusal(key, "unknown-node", f"there is no node {location.node!r}", writer)
        if current.zone != location.zone:
            detail = f"{location.node} was in zone {location.zone!r} and is in {current.zone!r}"
            return make_refusal(key, "moved-node", detail, writer)
    return result


def _decode_value(key: str, result_key: ResultKey, value: str) -> Sample | Failure | Refusal:
    """Decode a value; it is refused if it is not of the pair that the key names."""
    writer = result_key.origin
    if (size := len(value.encode(errors="replace"))) > MAX_VALUE_BYTES:
        return make_refusal(key, "too-large", f"{size} bytes, at most {MAX_VALUE_BYTES}", writer)
    result: Sample | Failure
    try:
        result = _decode_failure(value) if result_key.is_failure else _decode_sample(value)
        canonical = msgspec.json.encode(msgspec.json.decode(value)).decode()
    except msgspec.ValidationError as error:
        return make_refusal(key, "bad-field", str(error), writer)
    except DECODE_ERRORS as error:
        return make_refusal(key, "bad-json", str(error), writer)
    # Parsers differ in how they read a repeated member, so the admission policy might check another value.
    if canonical != value:
        return make_refusal(key, "not-canonical", "duplicate members, blanks or escapes", writer)
    if (result.origin.node, result.destination.node) != result_key[:2]:
        return make_refusal(key, "wrong-key", f"is of {result.origin.node} and {result.destination.node}", writer)
    problem = _find_sample_problem(result, result_key.test) if isinstance(result, Sample) else None
    return result if problem is None else make_refusal(key, *problem, writer)


def _find_sample_problem(sample: Sample, test: Test) -> tuple[str, str] | None:
    """Reason and detail if the values of a decoded sample contradict each other or the key; None if they do not."""
    measurement = sample.measurement
    if measurement.test != test:
        return "wrong-key", f"is of test {measurement.test}"
    for part in (measurement, *([sample.datagrams] if sample.datagrams else [])):
        if part.prober == "external":
            return "bad-field", "prober external is only for upstream's format"
        ascending = [v for v in (part.p50_us, part.p90_us, part.p99_us) if v is not None]
        if ascending != sorted(ascending):
            return "bad-field", "percentiles do not ascend"
    if measurement.throughput_bps is None and not any((measurement.p50_us, measurement.p90_us, measurement.p99_us)):
        return "no-value", "neither a percentile nor a throughput"
    return None


def _find_unplanned_pairs(
    pairs: Iterable[NodePair], locations: Mapping[str, NodeLocation], planned_keys: Collection[str]
) -> set[NodePair]:
    """The unplanned pairs with a node in a zone that agents measure; other components may measure elsewhere."""
    unplanned = {pair for pair in pairs if not _is_pair_planned(pair, planned_keys)}
    if not unplanned:
        return set()
    planned_nodes = {node for key in planned_keys for node in (parse_key(key) or ())[:2]}
    measured_zones = {locations[node].zone for node in planned_nodes if node in locations}
    return {pair for pair in unplanned if any(locations[node].zone in measured_zones for node in pair)}


def check_growth(name: str, current: Mapping[str, str], patch: Mapping[str, str | None]) -> None:
    """Check the size of a ConfigMap after a merge patch.

    A patch that adds no key is always allowed: it hardly changes the size, and a full object must not make costs stale.

    Raises:
        ConfigMapTooLargeError: the patch adds keys, and the object would be larger than `MAX_CONFIGMAP_BYTES`.
    """
    after = {key: value for key, value in {**current, **patch}.items() if value is not None}
    if not after.keys() <= current.keys():
        check_size(name, after, "remove keys of other components, or unset --upstream-keys")


def refresh_interval_s(interval_s: float) -> float:
    """Time after which an unchanged sample is written again, before it becomes stale (`CostPolicy.stale_after_s`, three rounds)."""
    return max(MIN_REFRESH_S, REFRESH_ROUNDS * interval_s)
