"""The results ConfigMap: one codec for writing and reading.

Each agent writes only keys of its own node pairs, as a JSON merge patch: the API server merges key by key, so a hundred
writers neither conflict nor lose each other's updates. Our own format carries a whole `Sample` per key; upstream's, a bare
number per key (the measurement ConfigMap, docs/contracts), is always read and optionally written beside it. Anyone may
write here, so every key is read alone: what is malformed is refused by name and never becomes a number.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from kubekit.settings import YEAR_S
from kubekit.wire import UNREADABLE
from netperf.errors import OBJECT_LIMIT_BYTES, Refusal, check_size, refuse, size_bytes
from netperf.plans import Probe, ZonePlan
from netperf.sample import LONGEST_US, PERCENTILES, TESTS, Failure, Measurement, Percentile, Place, Sample, Test

_parse_sample = msgspec.json.Decoder(Sample).decode
_parse_failure = msgspec.json.Decoder(Failure).decode

OWN_PREFIX = "netaware.v1."
FAILED_SUFFIX = ".failed"
SIZE_WARNING_BYTES = OBJECT_LIMIT_BYTES * 3 // 4
"""From here on the controller warns: a results object of ours stays far below it, so somebody else writes here."""
REFRESH_S, REFRESH_ROUNDS = 170.0, 1.5
KEY_LIMIT = 253
SHOWN_REFUSALS = 100
ZONES_PER_SHARD = 10
SAMPLES_PER_SHARD = 65
MOST_SHARDS = 100
"""The agents' role and policy name so many objects, and refuse a write to any other."""
"""Every write makes etcd keep another copy of the whole object until it compacts, and sends one to each watcher. At 100
zones 8 samples per second are written: to objects of 30 kB that costs 240 kB/s, to objects that are just not too large
it would cost 8 MB/s. So shards are kept small, long before 1 MiB."""

_LEGAL_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_FOREIGN = re.compile(
    r"netperf(?P<dot>[._])(?P<percentile>p50|p90|p99)(?P=dot)latency(?P=dot)(?P<unit>milliseconds|microseconds)"
    r"\.origin\.(?P<nodes>.+)",
    re.DOTALL,
)
_NO_EARLIER_S = 1_795_000_000
"""November 2026: a clock that shows less was never set."""
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_UNIT_US = {"milliseconds": 1000.0, "microseconds": 1.0}


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What one or more ConfigMaps held.

    Attributes:
        failures: by key; those that a newer sample of the same pair has not overtaken.
        samples: by key; upstream's keys of one node pair come together as one sample of prober ``external``, under the
            last of these keys.
        refusals: the first 100 malformed keys.
        refused: number of malformed keys by reason.
        foreign_keys: keys in no format we know, left alone.
        size_bytes: of all keys and values.
    """

    samples: dict[str, Sample]
    failures: dict[str, Failure] = {}
    refusals: tuple[Refusal, ...] = ()
    refused: dict[str, int] = {}
    foreign_keys: int = 0
    size_bytes: int = 0


# --- writing -------------------------------------------------------------------------------------------------------


def sample_key(origin: Place, destination: Place, test: Test) -> str:
    """Our key for a pair of nodes: readable zones, and a hash that keeps node pairs and tests apart.

    Always under 253 characters, whatever the nodes are called; the value has all names in full.
    """
    identity = "\0".join((origin.zone, origin.node, destination.zone, destination.node, test))
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    return f"{OWN_PREFIX}{_legal(origin.zone)}.{_legal(destination.zone)}.{digest}"


def failure_key(origin: Place, destination: Place, test: Test) -> str:
    """The key that says that a pair could not be measured; beside the sample's, so that the last good one stays."""
    return sample_key(origin, destination, test) + FAILED_SUFFIX


def encode_failure(failure: Failure, test: Test) -> dict[str, str | None]:
    """The key that a writer sets for a failure, and removes with a later success."""
    value = msgspec.structs.replace(failure, taken_at=round(failure.taken_at, 3))
    return {failure_key(failure.origin, failure.destination, test): msgspec.json.encode(value).decode()}


def last_sequence(data: Mapping[str, str], node: str, now_s: float) -> tuple[int, set[str]]:
    """What a node counts on from, by its own entries in a results ConfigMap. Never raises.

    Own is only what stands under the very key of its pair: whoever may write here may name any node in a value.

    Args:
        data: of one results ConfigMap, by whomever.
        node: whose entries count.
        now_s: wall clock, seconds since 1970.

    Returns:
        The highest sequence, 0 without any; and the keys, to be removed, of those whose sequence no clock gives.
    """
    last, beyond = 0, set[str]()
    for key, value in data.items():
        found = _decode_keyed(key, value) if key.startswith(OWN_PREFIX) else None
        if isinstance(found, Sample | Failure) and found.origin.node == node:
            if found.sequence > _most_sequence(now_s):
                beyond.add(key)
            else:
                last = max(last, found.sequence)
    return last, beyond


def _most_sequence(now_s: float) -> float:
    """Sequences begin with the clock, in seconds. Of a machine that woke up in 1970, today's are still those of a clock."""
    return max(now_s, _NO_EARLIER_S) + 10 * YEAR_S


def upstream_key(origin_node: str, destination_node: str, percentile: Percentile) -> str | None:
    """Upstream's millisecond key, or None where the two names make it longer than a key may be."""
    key = f"netperf.{percentile}.latency.milliseconds.origin.{origin_node}.destination.{destination_node}"
    return key if len(key) <= KEY_LIMIT else None


def encode_samples(samples: Iterable[Sample], upstream: Collection[Percentile] = ()) -> dict[str, str | None]:
    """The keys that a writer sets (or, None, removes) for its samples.

    Args:
        samples: what to publish, of any test.
        upstream: percentiles to write in upstream's format too, as whole milliseconds, at least 1. That format has no
            room for a doubt, so a doubtful sample leaves the previous number in place, and a missing one removes it.
    """
    data: dict[str, str | None] = {}
    for sample in samples:
        measurement = sample.measurement
        key = sample_key(sample.origin, sample.destination, measurement.test)
        data[key] = msgspec.json.encode(_rounded(sample)).decode()
        if measurement.test == "TCP_STREAM" or not set(sample.doubts) <= {"loss"}:
            continue
        for percentile in upstream:
            name = upstream_key(sample.origin.node, sample.destination.node, percentile)
            if name is not None:
                value = sample.priced.percentile_us(percentile)
                data[name] = None if value is None else str(max(1, math.floor(value / 1000 + 0.5)))
    return data


def merge_patch(data: Mapping[str, str | None]) -> dict[str, dict[str, str | None]]:
    """A JSON merge patch (RFC 7386) of a ConfigMap: only the named keys change, None removes."""
    return {"data": dict(data)}


def removal_patch(keys: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """A merge patch that removes keys."""
    return merge_patch(dict.fromkeys(sorted(keys)))


def planned_keys(plans: Iterable[ZonePlan]) -> dict[str, Probe]:
    """Every key that some agent is meant to write, of samples and of failures, and the probe that it is for."""
    return {
        key + suffix: probe
        for plan in plans
        for probe in plan.probes
        for key in keys_of(plan, probe)
        for suffix in ("", FAILED_SUFFIX)
    }


def keys_of(plan: ZonePlan, probe: Probe) -> list[str]:
    """The keys of a probe's samples; for datagrams alone the usual test's name stands, and there are no extra ones."""
    tests = plan.settings.tests if probe.rank == 0 else (plan.settings.test,)
    return [sample_key(probe.origin.place, probe.destination.place, test) for test in tests]


def vanished_keys(data: Mapping[str, str], planned: Container[str]) -> set[str]:
    """Keys of ours whose node pair, or whose test, is in none of the plans, for the controller to remove.

    Upstream-format keys go along when the same pair has a key of ours, since then we wrote them; those of other
    components stay.

    Args:
        data: of one results ConfigMap.
        planned: `planned_keys` of all plans in force; made once for all objects, for there is one object a zone.
    """
    doomed: set[str] = set()
    for key in data:
        if not key.startswith(OWN_PREFIX) or key in planned:
            continue
        doomed.add(key)
        sample = _decode_keyed(key, data[key])
        if isinstance(sample, Sample):
            names = (upstream_key(sample.origin.node, sample.destination.node, p) for p in PERCENTILES)
            doomed |= {name for name in names if name is not None and name in data}
    return doomed


def _legal(text: str) -> str:
    return re.sub(r"[^-_a-zA-Z0-9]", "-", text)[:63]


def _rounded(sample: Sample) -> Sample:
    """Hundredths are finer than any clock involved, and bytes in etcd are not free."""
    return msgspec.structs.replace(
        sample,
        measurement=_round_figures(sample.measurement),
        datagrams=None if sample.datagrams is None else _round_figures(sample.datagrams),
        taken_at=round(sample.taken_at, 3),
    )


def _round_figures(measurement: Measurement) -> Measurement:
    changes = {
        name: round(value, 6 if name.endswith("_ratio") else 2)
        for name in measurement.__struct_fields__
        if isinstance(value := getattr(measurement, name), float)
    }
    return msgspec.structs.replace(measurement, **changes)


# --- reading -------------------------------------------------------------------------------------------------------


def decode_results(
    data: Mapping[str, str],
    places: Mapping[str, Place],
    planned: Collection[str] | None = None,
    *,
    now_s: float = math.inf,
) -> Results:
    """Read the ``data`` of a results ConfigMap, or of all shards together. Never raises.

    Args:
        data: keys and values, by whomever.
        planned: keys that agents are meant to write (`planned_keys`); any other key of ours is refused (``unplanned``),
            and the node that it says it comes from is named. None where the reader knows no plan.
        places: the cluster's nodes by name; upstream's keys name nodes only. Our own samples name their zones, but
            one of a node that moved to another zone, or is gone, is refused (``unknown-node``, ``moved-node``).
        now_s: wall clock, seconds since 1970; a sequence beyond what a clock gives is read as 0, so that it overtakes
            nothing. Whoever does not ask which of two words is the newer needs none.
    """
    samples: dict[str, Sample] = {}
    failures: dict[str, Failure] = {}
    refusals: list[Refusal] = []
    refused: Counter[str] = Counter()
    external: dict[tuple[str, str], dict[Percentile, tuple[str, float, str]]] = {}
    foreign = 0
    for key, value in data.items():
        outcome: Sample | Failure | Refusal | None
        if len(key) > KEY_LIMIT or not _LEGAL_KEY.fullmatch(key):
            outcome = refuse(key, "illegal-key", f"at most {KEY_LIMIT} of [-._a-zA-Z0-9]")
        elif key.startswith(OWN_PREFIX):
            found = _decode_keyed(key, value)
            # A year more than writers count on from: theirs are other clocks, and they count on.
            if not isinstance(found, Refusal) and found.sequence > _most_sequence(now_s) + YEAR_S:
                found = msgspec.structs.replace(found, sequence=0)
            outcome = _check_planned(key, _check_places(key, found, places), planned)
        else:
            outcome = _collect_external(key, value, places, external)
            foreign += outcome is None and not _FOREIGN.fullmatch(key)
        if isinstance(outcome, Sample):
            samples[key] = outcome
        elif isinstance(outcome, Failure):
            failures[key] = outcome
        elif outcome is not None:
            refused[outcome.reason] += 1
            refusals.append(outcome)
    newest: dict[tuple[str, str], int] = {}
    for own in samples.values():
        pair = own.origin.node, own.destination.node
        newest[pair] = max(own.sequence, newest.get(pair, 0))
    for (origin, destination), values in external.items():
        # Beside a sample of ours the bare number is ours as well, and says less.
        if (origin, destination) not in newest:
            key, sample = _external_sample(places[origin], places[destination], values)
            samples[key] = sample
    return Results(
        samples=samples,
        failures={
            # Of whatever test: an extra one comes round again in ten rounds, and until then its failure would stand.
            key: f
            for key, f in failures.items()
            if newest.get((f.origin.node, f.destination.node), -1) <= f.sequence
        },
        refusals=tuple(refusals[:SHOWN_REFUSALS]),
        refused=dict(refused),
        foreign_keys=foreign,
        size_bytes=size_bytes(data),
    )


def _decode_keyed(key: str, value: str) -> Sample | Failure | Refusal:
    """What one of our keys holds."""
    try:
        if key.endswith(FAILED_SUFFIX):
            return _check_failure(key, _parse_failure(value))
        return _check_sample(key, _parse_sample(value))
    except msgspec.ValidationError as error:
        return refuse(key, "bad-field", str(error))
    except UNREADABLE as error:
        return refuse(key, "half-written", str(error))


def _check_sample(key: str, sample: Sample) -> Sample | Refusal:
    if key != sample_key(sample.origin, sample.destination, sample.measurement.test):
        return refuse(key, "wrong-key", f"holds {sample.origin.node} to {sample.destination.node}")
    fault = _fault_of(sample)
    return sample if fault is None else refuse(key, *fault)


def _fault_of(sample: Sample) -> tuple[str, str] | None:
    """Why figures of well-formed fields cannot be."""
    measurement = sample.measurement
    for figures in (measurement, *([sample.datagrams] if sample.datagrams else [])):
        if figures.prober == "external":
            return "bad-field", "no agent's prober is called external: that is a bare number by somebody else"
        ascending = [v for v in (figures.p50_us, figures.p90_us, figures.p99_us) if v is not None]
        if ascending != sorted(ascending):
            return "bad-field", "percentiles do not ascend"
    known = [v for v in (measurement.p50_us, measurement.p90_us, measurement.p99_us) if v is not None]
    if not known and measurement.throughput_bps is None:
        return "no-value", "neither a percentile nor a throughput"
    return None


def _check_failure(key: str, failure: Failure) -> Failure | Refusal:
    if key not in {failure_key(failure.origin, failure.destination, test) for test in TESTS}:
        return refuse(key, "wrong-key", f"holds {failure.origin.node} to {failure.destination.node}")
    return failure


def _check_planned(
    key: str, found: Sample | Failure | Refusal, planned: Collection[str] | None
) -> Sample | Failure | Refusal:
    """Whoever may write results may say what he likes, but only about what he was asked."""
    if planned is None or isinstance(found, Refusal) or key in planned:
        return found
    node = found.origin.node
    return refuse(key, "unplanned", f"node {node} was not asked to measure {found.destination.node}", node)


def _check_places(
    key: str, sample: Sample | Failure | Refusal, places: Mapping[str, Place]
) -> Sample | Failure | Refusal:
    if isinstance(sample, Refusal):
        return sample
    for place in (sample.origin, sample.destination):
        now = places.get(place.node)
        if now is None:
            return refuse(key, "unknown-node", f"there is no node {place.node!r}")
        if now.zone != place.zone:
            return refuse(key, "moved-node", f"{place.node} was in zone {place.zone!r} and is in {now.zone!r}")
    return sample


def _collect_external(
    key: str,
    value: str,
    places: Mapping[str, Place],
    external: dict[tuple[str, str], dict[Percentile, tuple[str, float, str]]],
) -> Refusal | None:
    """Add one of upstream's keys to ``external`` (pair -> percentile -> key, microseconds, unit), or say why not."""
    match = _FOREIGN.fullmatch(key)
    if match is None:
        return None
    pairs = _split_nodes(match["nodes"])
    if not pairs:
        return refuse(key, "bad-key", "no .destination. in it")
    known = [(a, b) for a, b in pairs if a in places and b in places]
    if len(known) != 1:
        return refuse(key, "ambiguous-key" if known else "unknown-node", f"nodes {match['nodes']!r}")
    number = value.strip()
    if not _NUMBER.fullmatch(number) or float(number) <= 0:
        return refuse(key, "bad-value", f"{value[:40]!r} is no decimal number of {match['unit']} above 0")
    value_us = float(number) * _UNIT_US[match["unit"]]
    if value_us > LONGEST_US:
        return refuse(key, "bad-value", f"{value[:40]!r} {match['unit']} is more than 10 minutes")
    percentile = next(p for p in PERCENTILES if p == match["percentile"])
    there = external.setdefault(known[0], {}).get(percentile)
    if there is None or there[2] == "milliseconds":  # microseconds are the finer reading
        external[known[0]][percentile] = (key, value_us, match["unit"])
    return None


def _split_nodes(text: str) -> list[tuple[str, str]]:
    """Every reading of ``<node>.destination.<node>``: names may hold dots, and even that word."""
    parts = text.split(".destination.")
    return [(".destination.".join(parts[:i]), ".destination.".join(parts[i:])) for i in range(1, len(parts))]


def _external_sample(
    origin: Place, destination: Place, values: Mapping[Percentile, tuple[str, float, str]]
) -> tuple[str, Sample]:
    known = {percentile: value_us for percentile, (_, value_us, _) in values.items()}
    measurement = Measurement(
        prober="external",
        test="TCP_RR",
        p50_us=known.get("p50"),
        p90_us=known.get("p90"),
        p99_us=known.get("p99"),
    )
    key = max(key for key, _, _ in values.values())
    return key, Sample(origin=origin, destination=destination, measurement=measurement)


# --- size and shards -----------------------------------------------------------------------------------------------


def check_growth(name: str, current: Mapping[str, str], patch: Mapping[str, str | None]) -> int:
    """The size in bytes after a merge patch.

    A patch that adds no key is let pass whatever the size, since it hardly makes the object larger and costs must not go
    stale because somebody else filled it.

    Raises:
        TooLargeError: the patch adds keys to an object that is, or would then be, over the limit.
    """
    after = {key: value for key, value in {**current, **patch}.items() if value is not None}
    if after.keys() <= current.keys():
        return size_bytes(after)
    return check_size(name, after, "remove foreign keys, or turn the second format off")


def refresh_s(interval_s: float) -> float:
    """A value that does not change is written again in the first round after this, so in every second one where rounds are long.
    The controller calls it stale after the longer of 300 s and three rounds (cost policy).
    """
    return max(REFRESH_S, REFRESH_ROUNDS * interval_s)


def shard_name(base: str, index: int) -> str:
    """``base`` for shard 0, so that a small cluster has the one object that other tools know; else ``base-index``."""
    return base if index == 0 else f"{base}-{index}"


def shard_index(base: str, name: str) -> int | None:
    """The number of a shard of ``base``, or None for an object that is none."""
    if name == base:
        return 0
    suffix = name.removeprefix(f"{base}-")
    if suffix == name or not re.fullmatch(r"[1-9][0-9]{0,3}", suffix):
        return None
    return int(suffix)


def zones_per_shard(zone_count: int) -> int:
    """How many zones' agents write to one object: 10 up to 13 zones, 3 at 40, 1 from 66 on, 2 above 100.

    A zone starts (Z - 1) / 2 probes, so this keeps an object at about `SAMPLES_PER_SHARD` samples of 500 bytes, twice
    that with both directions, as long as there are names for so many.
    """
    fitting = min(ZONES_PER_SHARD, 2 * SAMPLES_PER_SHARD // max(1, zone_count))
    return max(1, fitting, math.ceil(zone_count / MOST_SHARDS))


def shard_names(base: str, zone_count: int) -> list[str]:
    """Every object that agents of so many zones may be told to write to."""
    return [shard_name(base, i) for i in range(max(1, math.ceil(zone_count / zones_per_shard(zone_count))))]


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
