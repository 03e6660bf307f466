"""What a scale run found, and how it compares with Kubernetes' own objectives.

Objectives are those of the Kubernetes project (community repository, sig-scalability/slos/api_call_latency.md): p99 of mutating calls
of each resource and verb at most 1 s; of reads at most 1 s for one object, 30 s for a namespace or the whole cluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from tests.scale.agents import Traffic
from tests.scale.metrics import Labels, Quantiles, Readings
from tests.scale.populate import ACCOUNTS, Sizes

_CALLS = "apiserver_request_sli_duration_seconds"
_DISPATCHED = "apiserver_flowcontrol_dispatched_requests_total"
SERVER = (f"{_CALLS}_bucket", _DISPATCHED)
ETCD = (
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_disk_wal_write_bytes_total",
    "etcd_mvcc_put_total",
    "etcd_mvcc_db_total_size_in_bytes",
)
_LOOP, _PLANS, _GATES = (
    "netaware_loop_busy_seconds",
    "netaware_placement_plan_duration_seconds",
    "netaware_gate_wait_seconds",
)
CONTROLLER = (*(f"{name}_bucket" for name in (_LOOP, _PLANS, _GATES)), "netaware_zone_pairs")
_READS = frozenset({"GET", "LIST"})
_LONG = frozenset({"WATCH", "CONNECT", "WATCHLIST", "PROXY"})


class Levels(msgspec.Struct, frozen=True):
    """The controller at one moment: resident bytes, and seconds of processor time with its children."""

    at_s: float
    rss: int
    cpu_s: float


class Latency(msgspec.Struct, frozen=True):
    """Of a kind of call, seconds; ``objective`` is for the p99, None where there is none."""

    count: int
    p50: float | None
    p99: float | None
    objective: float | None = None
    ok: bool | None = None


class ScaleReport(msgspec.Struct, frozen=True):
    """What a run found.

    Attributes:
        sizes: asked for.
        seconds: how long was measured; ``took_s`` the whole run.
        calls: to the API server by verb, and scope for reads.
        share_of_requests: of our accounts, of the API server's requests.
        etcd: bytes and writes a second.
        loop: CPU that the thread of the controller's event loop took between two looks, seconds: no step took longer.
        lease_transitions: while it was measured.
        rss_mib: of the controller, the most.
        cores: that the controller took, in the mean.
        plans: how many, and seconds per plan.
        gate_wait: of pods, seconds from creation to release.
        plan_bytes_per_minute: of probe plans to all agents together.
        results: writes of agents a second, and bytes stored a second.
        zone_pairs: by what their cost rests on, in the end.
        done: what happened to the cluster.
        failures: of what took part, kubelets or agents: which failed and why. The figures are then not those of a whole cluster.
    """

    sizes: Sizes
    seconds: float
    calls: dict[str, Latency]
    share_of_requests: dict[str, float]
    requests_per_s: float
    etcd: dict[str, float]
    loop: Latency
    lease_transitions: int
    rss_mib: int
    cores: float
    plans: Latency
    gate_wait: Latency
    plan_bytes_per_minute: float
    results: dict[str, float]
    zone_pairs: dict[str, float]
    done: dict[str, int]
    failures: tuple[str, ...] = ()
    took_s: float = 0.0


class Moment(msgspec.Struct, frozen=True):
    """What programs said of themselves at one moment, and how often the Lease had changed hands."""

    server: Readings
    etcd: Readings
    controller: Readings
    lease_transitions: int


def report(
    sizes: Sizes,
    before: Moment,
    after: Moment,
    *,
    levels: Sequence[Levels],
    traffic: Traffic,
    done: Mapping[str, int],
    failures: Sequence[str],
) -> ScaleReport:
    """Put the figures together. Pure."""
    server, controller, etcd = after.server, after.controller, after.etcd
    first, last = levels[0], levels[-1]
    seconds = last.at_s - first.at_s

    def spread(family: str) -> Latency:
        return _latency(controller.quantiles(family, lambda _: "", before.controller).get("", Quantiles({})))

    return ScaleReport(
        sizes=sizes,
        seconds=round(seconds, 1),
        calls=_calls(server, before.server),
        share_of_requests=_shares(server, before.server),
        requests_per_s=round(server.total(_DISPATCHED, before.server) / seconds, 1),
        etcd={
            "received_bytes_per_s": round(etcd.total(ETCD[0], before.etcd) / seconds),
            "log_bytes_per_s": round(etcd.total(ETCD[1], before.etcd) / seconds),
            "puts_per_s": round(etcd.total(ETCD[2], before.etcd) / seconds, 1),
            "database_bytes": etcd.total(ETCD[3]),
        },
        loop=spread(_LOOP),
        lease_transitions=after.lease_transitions - before.lease_transitions,
        rss_mib=max(level.rss for level in levels) >> 20,
        cores=round((last.cpu_s - first.cpu_s) / seconds, 3),
        plans=spread(_PLANS),
        gate_wait=spread(_GATES),
        plan_bytes_per_minute=round(traffic.plan_bytes / seconds * 60),
        results={
            "writes_per_s": round(traffic.result_writes / seconds, 2),
            "failed": traffic.failed_writes,
            "stored_bytes_per_s": round(traffic.stored_bytes / seconds),
        },
        zone_pairs={labels["basis"]: value for labels, value in controller.of("netaware_zone_pairs")},
        done=dict(done),
        failures=tuple(failures),
    )


def _latency(found: Quantiles, objective: float | None = None) -> Latency:
    p50, p99 = (None if value is None else round(value, 4) for value in (found.at(0.5), found.at(0.99)))
    ok = None if objective is None or p99 is None else p99 <= objective
    return Latency(found.count, p50, p99, objective, ok)


def _calls(server: Readings, before: Readings) -> dict[str, Latency]:
    """Calls by verb, and by scope where they read."""
    objectives: dict[str, float] = {}

    def name(labels: Labels) -> str | None:
        verb, scope = labels["verb"], labels.get("scope")
        if verb in _LONG:
            return None
        call = f"{verb} ({scope})" if verb in _READS else verb
        objectives[call] = 30.0 if verb in _READS and scope in {"namespace", "cluster"} else 1.0
        return call

    found = server.quantiles(_CALLS, name, before).items()
    return {call: _latency(quantiles, objectives[call]) for call, quantiles in found if quantiles.count}


def _shares(server: Readings, before: Readings) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for labels, value in server.of(_DISPATCHED, before):
        spent[labels["flow_schema"]] += value
    total = sum(spent.values()) or math.inf
    return {account: round(spent[account] / total, 4) for account in ACCOUNTS}
