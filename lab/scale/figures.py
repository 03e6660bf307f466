"""What a scale run found, and how it compares with Kubernetes' own objectives.

Objectives are those of the Kubernetes project (community repository, sig-scalability/slos/api_call_latency.md): p99 of mutating calls
of each resource and verb at most 1 s; of reads at most 1 s for one object, 30 s for a namespace or the whole cluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lab.scale.agents import Traffic
from lab.scale.life import Audience
from lab.scale.populate import ACCOUNTS, Sizes
from lab.scale.readings import Labels, Quantiles, Readings, percentile

LOOKBACK_S = 60.0
"""Of the controller's gauge of its longest steps."""
_CALLS = "apiserver_request_sli_duration_seconds"
_DISPATCHED = "apiserver_flowcontrol_dispatched_requests_total"
_EXECUTED = "apiserver_flowcontrol_request_execution_seconds_sum"
SERVER = (f"{_CALLS}_bucket", _DISPATCHED, _EXECUTED)
ETCD = (
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_disk_wal_write_bytes_total",
    "etcd_mvcc_put_total",
    "etcd_mvcc_db_total_size_in_bytes",
)
CONTROLLER = (
    "netaware_loop_delay_seconds_bucket",
    "netaware_loop_busy_seconds_bucket",
    "netaware_plan_duration_seconds_bucket",
    "netaware_plans_total",
    "netaware_gate_wait_seconds_bucket",
    "netaware_plan_writes_total",
    "netaware_topology_writes_total",
    "netaware_appgroup_writes_total",
    "netaware_zone_pairs",
    "netaware_page_dropped_viewers_total",
)
EXTENDER = ("netaware_loop_delay_seconds_bucket", "netaware_loop_busy_seconds_bucket")
_READS = frozenset({"GET", "LIST"})
_LONG = frozenset({"WATCH", "CONNECT", "WATCHLIST", "PROXY"})
_FEWEST = 100
"""Calls of a resource and verb below which a p99 says nothing."""


class Levels(msgspec.Struct, frozen=True):
    """What programs take at one moment; ``rss`` in bytes, ``cpu_s`` with their children."""

    at_s: float
    rss: dict[str, int]
    cpu_s: dict[str, float]
    connections: int


class Latency(msgspec.Struct, frozen=True):
    """Of a kind of call, seconds; ``objective`` is for the p99, None where there is none."""

    count: int
    p50: float | None
    p99: float | None
    objective: float | None = None
    ok: bool | None = None


class LoopFigures(msgspec.Struct, frozen=True):
    """Of an event loop, seconds: how late it was, and how much CPU its thread took between two looks (no step took longer)."""

    delay_p99: float | None
    delay_max: float | None
    busy_p99: float | None
    busy_max: float | None
    over_50_ms: int


class ScaleReport(msgspec.Struct, frozen=True):
    """What a run found.

    Attributes:
        sizes: asked for.
        seconds: how long was measured; ``took_s`` the whole run.
        calls: to the API server by verb, and scope for reads.
        worst_calls: those resources and verbs that missed their objective, by name.
        share_of_requests, share_of_execution: of our accounts, of the API server's requests and of its time on them.
        etcd: bytes and writes a second.
        loop, extender_loop: event loops.
        lease_transitions: while it was measured.
        leadership_losses: how often the controller could not renew its Lease in time, be it its own next leader or not.
        connections: of the controller to the API server, most at a time.
        rss_mib: of the controller, each minute.
        programs_mib: of each program in the end.
        cores: that each program took, in the mean.
        plans: how many, and seconds per plan.
        gate_wait: of pods, seconds from creation to release.
        start_up: of pods, seconds from creation until they were known as Running, gates and waiting for their turn included.
        scraped: what Prometheus says of the agents that it scrapes.
        plan_bytes_per_minute: of probe plans to all agents together.
        results: writes of agents a second, and bytes stored a second.
        writes: of ours, by what was written, a minute.
        zone_pairs: by what their cost rests on, in the end.
        viewers: of the page: messages and bytes a minute to each, and streams that ended.
        done: what happened to the cluster.
        failures: of what took part, kubelets, agents, viewers: which failed and why. The figures are then not those of a whole
            cluster.
    """

    sizes: Sizes
    seconds: float
    calls: dict[str, Latency]
    worst_calls: dict[str, Latency]
    share_of_requests: dict[str, float]
    share_of_execution: dict[str, float]
    requests_per_s: float
    etcd: dict[str, float]
    loop: LoopFigures
    extender_loop: LoopFigures
    lease_transitions: int
    leadership_losses: int
    connections: int
    rss_mib: list[int]
    programs_mib: dict[str, int]
    cores: dict[str, float]
    plans: Latency
    gate_wait: Latency
    start_up: Latency
    plan_bytes_per_minute: float
    results: dict[str, float]
    writes: dict[str, float]
    zone_pairs: dict[str, float]
    viewers: dict[str, float]
    scraped: dict[str, float]
    done: dict[str, int]
    took_s: float = 0.0
    failures: tuple[str, ...] = ()


def report(
    sizes: Sizes,
    before: Mapping[str, Readings],
    after: Mapping[str, Readings],
    *,
    seconds: float,
    levels: Sequence[Levels],
    longest: Mapping[str, float],
    lease_transitions: int,
    leadership_losses: int,
    traffic: Traffic,
    audience: Audience,
    started_s: Sequence[float],
    scraped: Mapping[str, float],
    done: dict[str, int],
    failures: Sequence[str],
) -> ScaleReport:
    """Put the figures together. Pure."""
    server, controller = after["server"], after["controller"]
    minutes = seconds / 60
    loop = _loop(controller, before["controller"])
    return ScaleReport(
        sizes=sizes,
        seconds=round(seconds, 1),
        calls=_calls(server, before["server"]),
        worst_calls=_missed(server, before["server"]),
        share_of_requests=_shares(server, before["server"], _DISPATCHED),
        share_of_execution=_shares(server, before["server"], _EXECUTED),
        requests_per_s=round(server.total(_DISPATCHED, before["server"]) / seconds, 1),
        etcd=_etcd(after["etcd"], before["etcd"], seconds),
        loop=msgspec.structs.replace(loop, delay_max=round(longest["delay"], 4), busy_max=round(longest["busy"], 4)),
        extender_loop=_loop(after["extender"], before["extender"]),
        lease_transitions=lease_transitions,
        leadership_losses=leadership_losses,
        connections=max(level.connections for level in levels),
        rss_mib=_each_minute(levels),
        programs_mib={name: rss >> 20 for name, rss in sorted(levels[-1].rss.items())},
        cores=_cores(levels),
        plans=_latency(controller.quantiles("netaware_plan_duration_seconds", _all, before["controller"]).get("")),
        gate_wait=_latency(controller.quantiles("netaware_gate_wait_seconds", _all, before["controller"]).get("")),
        start_up=_of_values(started_s),
        plan_bytes_per_minute=round(traffic.plan_bytes / minutes),
        results={
            "writes_per_s": round(traffic.result_writes / seconds, 2),
            "failed": traffic.failed_writes,
            "stored_bytes_per_s": round(traffic.stored_bytes / seconds),
        },
        writes={
            name: round(value / minutes, 2)
            for family in (
                "netaware_plan_writes_total",
                "netaware_topology_writes_total",
                "netaware_appgroup_writes_total",
            )
            for labels, value in controller.of(family, before["controller"])
            for name in [labels.get("what", "appgroup-status")]
        },
        zone_pairs={labels["basis"]: value for labels, value in controller.of("netaware_zone_pairs")},
        viewers={
            "messages_per_minute": round(audience.messages / minutes / max(1, sizes.viewers), 1),
            "bytes_per_minute": round(audience.bytes / minutes / max(1, sizes.viewers)),
            "ended": audience.lost,
        },
        scraped=dict(scraped),
        done=dict(done),
        failures=tuple(failures),
    )


def _all(_: Labels) -> str:
    return ""


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _latency(found: Quantiles | None, objective: float | None = None) -> Latency:
    if found is None:
        return Latency(0, None, None, objective)
    p99 = found.at(0.99)
    ok = None if objective is None or p99 is None else p99 <= objective
    return Latency(found.count, _rounded(found.at(0.5)), _rounded(p99), objective, ok)


def _of_values(values: Sequence[float]) -> Latency:
    ordered = sorted(values)
    if not ordered:
        return Latency(0, None, None)
    return Latency(len(ordered), _rounded(percentile(ordered, 0.5)), _rounded(percentile(ordered, 0.99)))


def _objective(labels: Labels) -> float | None:
    if labels["verb"] in _LONG:
        return None
    return 30.0 if labels["verb"] in _READS and labels.get("scope") in {"namespace", "cluster"} else 1.0


def _calls(server: Readings, before: Readings) -> dict[str, Latency]:
    """Calls by verb, and by scope where they read."""

    def name(labels: Labels) -> str:
        verb = labels["verb"]
        return f"{verb} ({labels.get('scope')})" if verb in _READS else verb

    return _latencies(server, before, name, 1)


def _missed(server: Readings, before: Readings) -> dict[str, Latency]:
    """Calls by resource and verb, as the objective counts them, where they missed it."""

    def name(labels: Labels) -> str:
        resource = "/".join(filter(None, (labels.get("resource", ""), labels.get("subresource", ""))))
        return f"{labels['verb']} {resource} ({labels.get('scope')})"

    return {call: found for call, found in _latencies(server, before, name, _FEWEST).items() if found.ok is False}


def _latencies(server: Readings, before: Readings, name: Callable[[Labels], str], fewest: int) -> dict[str, Latency]:
    """Of calls that have an objective, by name, where there were at least so many."""
    objectives: dict[str, float] = {}

    def of(labels: Labels) -> str | None:
        objective = _objective(labels)
        if objective is None:
            return None
        call = name(labels)
        objectives[call] = objective
        return call

    calls = server.quantiles(_CALLS, of, before).items()
    return {call: _latency(found, objectives[call]) for call, found in calls if found.count >= fewest}


def _shares(server: Readings, before: Readings, family: str) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for labels, value in server.of(family, before):
        spent[labels["flow_schema"]] += value
    total = sum(spent.values()) or math.inf
    return {account: round(spent[account] / total, 4) for account in ACCOUNTS}


def _etcd(etcd: Readings, before: Readings, seconds: float) -> dict[str, float]:
    return {
        "received_bytes_per_s": round(etcd.total(ETCD[0], before) / seconds),
        "log_bytes_per_s": round(etcd.total(ETCD[1], before) / seconds),
        "puts_per_s": round(etcd.total(ETCD[2], before) / seconds, 1),
        "database_bytes": etcd.total(ETCD[3]),
    }


def _loop(program: Readings, before: Readings) -> LoopFigures:
    delay = program.quantiles("netaware_loop_delay_seconds", _all, before).get("", Quantiles({}))
    busy = program.quantiles("netaware_loop_busy_seconds", _all, before).get("", Quantiles({}))
    return LoopFigures(
        delay_p99=_rounded(delay.at(0.99)),
        delay_max=_rounded(delay.at(1.0)),
        busy_p99=_rounded(busy.at(0.99)),
        busy_max=_rounded(busy.at(1.0)),
        over_50_ms=busy.above(0.05),
    )


def _each_minute(levels: Sequence[Levels]) -> list[int]:
    """The controller's memory at the beginning, after each minute, and in the end."""
    begin_s = levels[0].at_s
    chosen: dict[int, Levels] = {}
    for level in levels:
        chosen.setdefault(int((level.at_s - begin_s) // 60), level)
    return [level.rss.get("controller", 0) >> 20 for level in [*chosen.values(), levels[-1]]]


def _cores(levels: Sequence[Levels]) -> dict[str, float]:
    first, last = levels[0], levels[-1]
    seconds = max(1e-9, last.at_s - first.at_s)
    return {
        name: round((spent - first.cpu_s[name]) / seconds, 3)
        for name, spent in last.cpu_s.items()
        if name in first.cpu_s
    }
