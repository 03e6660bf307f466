"""Each alert fires in its situation and in no other, for an hour of simulated series in promtool.

The alerts of a situation are those that its findings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.diagnosis.diagnose import diagnose
from tests.support.prometheus_program import PROMTOOL_TIMEOUT_S, run_promtool
from tests.unit.controller.situations import SITUATIONS
from tests.unit.manifests.metric_names import PROMETHEUS, read_rules

ALERTS = {rule["alert"] for rule in read_rules("alerts.rules.yaml")}
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(PROMTOOL_TIMEOUT_S + 40)]

Series = Mapping[str, str | None]
"""Series -> an hour of values, one a minute; None removes a series of `HEALTHY`.

In promtool's notation ``1x4 0x55`` is 1 for five minutes and then 0, ``0+10x60`` grows by 10 a minute, ``_`` is no
value, and ``stale`` ends a series.
"""

ZONE_BY_NODE = {f"n{i}": f"z{i % 2}" for i in range(4)}
PAIRS = (("z0", "z1"), ("z1", "z0"))
# Changes happen after five minutes, so that alerts with ``for`` of up to half an hour fire within the hour.
ONE, ZERO, RISING = "1x60", "0x60", "0+10x60"
ONE_THEN_ZERO, ZERO_THEN_ONE, ONE_THEN_STALE = "1x4 0x55", "0x4 1x55", "1x4 stale"
SCHEDULER_READY = 'kube_pod_container_status_ready{container="kube-scheduler", pod="netaware-scheduler-1"}'


def format_series(metric: str, **labels: str) -> str:
    pairs = (f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{', '.join(pairs)}}}"


def up_series(job: str, instance: str, **labels: str) -> str:
    return format_series("up", job=f"netaware-system/{job}", instance=instance, **labels)


def agent_up(node: str) -> str:
    return up_series("netaware-agent", node, node=node, zone=ZONE_BY_NODE[node])


def node_pair_series(metric: str, origin: str, destination: str, **labels: str) -> str:
    regions = {"origin_region": "r", "destination_region": "r"}
    return format_series(metric, origin_zone=origin, destination_zone=destination, **regions, **labels)


def probe_runs(origin: str, destination: str, outcome: str) -> str:
    return node_pair_series("netaware_probe_runs_total", origin, destination, outcome=outcome)


def zone_pairs(name: str) -> str:
    return format_series("netaware_zone_pairs", topology="s/nt", basis=name)


def network_cost(origin: str, destination: str) -> str:
    labels = {"topology": "s/nt", "level": "zone", "origin": origin, "destination": destination}
    return format_series("netaware_network_cost", **labels)


def zone_latency(origin: str, destination: str, basis: str = "measured") -> str:
    labels = {"topology": "s/nt", "origin": origin, "destination": destination, "basis": basis}
    return format_series("netaware_zone_latency_seconds", **labels)


def node_series(metric: str, node: str) -> str:
    return format_series(f"netaware_node_{metric}", node=node)


AGENT_SERIES = {
    **{agent_up(node): ONE for node in ZONE_BY_NODE},
    **{node_series("bandwidth_known", node): ONE for node in ZONE_BY_NODE},
    **{node_series("bandwidth_capacity_bytes_per_second", node): ONE for node in ZONE_BY_NODE},
    **{node_series("network_transmit_bytes_total", node): "0+6x60" for node in ZONE_BY_NODE},
    **{node_series("network_receive_bytes_total", node): "0+6x60" for node in ZONE_BY_NODE},
    **{probe_runs(*pair, "ok"): RISING for pair in PAIRS},
    **{node_pair_series("netaware_probe_sample_trusted", *pair): ONE for pair in PAIRS},
    **{node_pair_series("netaware_probe_latency_seconds", *pair, quantile="0.5"): "0.002x60" for pair in PAIRS},
    'netaware_probe_results_writes_total{job="agent", instance="n0", outcome="ok"}': RISING,
    'netaware_pod_bandwidth_verdict{namespace="web", pod="p", direction="egress", verdict="enforced"}': ONE,
}
LEADER_SERIES = {
    'netaware_leader{instance="c1"}': ONE,
    zone_pairs("measured"): ONE,
    zone_pairs("mirrored"): ONE,
    **{zone_pairs(name): ZERO for name in ("absent", "unreachable")},
    **{network_cost(*pair): "2x60" for pair in PAIRS},
    **{zone_latency(*pair): "0.002x60" for pair in PAIRS},
    "netaware_gated_pods": ZERO,
    'netaware_gate_releases_total{cause="turn"}': RISING,
    'netaware_appgroup_dependencies{appgroup="web/shop", verdict="met"}': ONE,
    'netaware_appgroup_dependencies{appgroup="web/shop", verdict="violated"}': ZERO,
    'netaware_appgroup_cycles{appgroup="web/shop"}': ZERO,
    'netaware_appgroup_traffic_drift{namespace="web", appgroup="shop", kind="new"}': ZERO,
}
EXTENDER_SERIES = {
    'netaware_extender_duration_seconds_bucket{instance="s1", verb="filter", le="0.01"}': RISING,
    'netaware_extender_duration_seconds_bucket{instance="s1", verb="filter", le="+Inf"}': RISING,
}
HEALTHY: dict[str, str] = {
    **AGENT_SERIES,
    **LEADER_SERIES,
    **EXTENDER_SERIES,
    up_series("netaware-controller", "c1"): ONE,
    up_series("netaware-scheduler", "s1"): ONE,
    SCHEDULER_READY: ONE,
}


def end_series(series: Mapping[str, str]) -> dict[str, str | None]:
    """The series of a program that exports nothing after five minutes."""
    return {name: f"{values.split('x')[0]}x4 stale" for name, values in series.items()}


NO_LEADER: Series = {**end_series(LEADER_SERIES), up_series("netaware-controller", "c1"): ONE_THEN_ZERO}
NO_CONTROLLER_POD: Series = {**end_series(LEADER_SERIES), up_series("netaware-controller", "c1"): ONE_THEN_STALE}
ONE_AGENT_DOWN: Series = {agent_up("n1"): ONE_THEN_ZERO, 'netaware_node_bandwidth_known{node="n1"}': ONE_THEN_STALE}
ZONE_WITHOUT_AGENT: Series = {
    **end_series({name: values for name, values in AGENT_SERIES.items() if 'node="n1"' in name or 'node="n3"' in name}),
    **{agent_up(node): ONE_THEN_ZERO for node in ("n1", "n3")},
    probe_runs("z1", "z0", "ok"): ONE_THEN_STALE,
    probe_runs("z0", "z1", "ok"): "0+10x4 50x55",
    probe_runs("z0", "z1", "timeout"): "0x4 0+10x55",
    # Stale for half an hour, then inferred.
    zone_pairs("measured"): "1x9 0x50",
    zone_pairs("mirrored"): "1x9 0x50",
    **{zone_latency(*pair): "0.002x9 stale" for pair in PAIRS},
    **{zone_latency(*pair, "stale"): "_x10 0.002x30 stale" for pair in PAIRS},
    **{zone_latency(*pair, "inferred"): "_x41 0.002x19" for pair in PAIRS},
}
NO_AGENTS: Series = {
    **end_series(AGENT_SERIES),
    **{agent_up(node): ONE_THEN_ZERO for node in ZONE_BY_NODE},
    zone_pairs("measured"): "1x9 0x50",
    **{zone_latency(*pair): "0.002x9 stale" for pair in PAIRS},
    **{zone_latency(*pair, "stale"): "_x10 0.002x30 stale" for pair in PAIRS},
    zone_pairs("absent"): "0x40 2x19",
}
UNREACHABLE: Series = {
    **{probe_runs(*pair, "ok"): "0+10x4 50x55" for pair in PAIRS},
    **{probe_runs(*pair, "timeout"): "0x4 0+10x55" for pair in PAIRS},
    **{zone_latency(*pair): ONE_THEN_STALE for pair in PAIRS},
    **{network_cost(*pair): "2x4 101x55" for pair in PAIRS},
    zone_pairs("measured"): ONE_THEN_ZERO,
    zone_pairs("mirrored"): ONE_THEN_ZERO,
    zone_pairs("unreachable"): "0x4 2x55",
}
ABSENT: Series = {
    zone_pairs("absent"): "2x60",
    zone_pairs("measured"): ZERO,
    zone_pairs("mirrored"): ZERO,
    **{metric(*pair): None for pair in PAIRS for metric in (network_cost, zone_latency)},
    **{probe_runs(*pair, "ok"): None for pair in PAIRS},
}
GATES_THAT_OPEN: Series = {"netaware_gated_pods": "0x4 11x3 0x52"}

SERIES_BY_SITUATION: Mapping[str, Series] = {
    "a cluster without netaware": dict.fromkeys(HEALTHY),
    "the controller hangs": NO_LEADER,
    "the controller has no pod": NO_CONTROLLER_POD,
    "the controller's image cannot be pulled": NO_CONTROLLER_POD,
    "the scheduler crashes": {SCHEDULER_READY: ONE_THEN_ZERO},
    "the extender does not answer": {
        **end_series(EXTENDER_SERIES),
        up_series("netaware-scheduler", "s1"): ONE_THEN_ZERO,
    },
    "the scheduler has no node to run on": {
        **end_series(EXTENDER_SERIES),
        up_series("netaware-scheduler", "s1"): ONE_THEN_STALE,
        SCHEDULER_READY: ONE_THEN_STALE,
    },
    "one agent has failed": ONE_AGENT_DOWN,
    "both agents of a zone hang": ZONE_WITHOUT_AGENT,
    "no agent runs anywhere": NO_AGENTS,
    "two zones cannot reach each other": UNREACHABLE,
    "a pair was never measured": ABSENT,
    "there is no probe plan": ABSENT,
    "the NetworkTopology was deleted": end_series(
        {name: v for name, v in LEADER_SERIES.items() if "topology=" in name}
    ),
    "nodes without a zone label": {'netaware_probe_plan_left_out{reason="no-zone"}': "0x4 2x55"},
    "an inconsistent costPolicy": {},
    "unplanned results": {'netaware_results_refused_keys{topology="s/nt", reason="unplanned"}': "0x4 3x55"},
    "old measurements": {zone_latency("z0", "z1"): ONE_THEN_STALE, zone_latency("z0", "z1", "stale"): "_x5 0.002x55"},
    "a cycle of dependencies": {'netaware_appgroup_cycles{appgroup="web/shop"}': ZERO_THEN_ONE},
    "violated dependencies": {
        'netaware_appgroup_dependencies{appgroup="web/shop", verdict="violated"}': ZERO_THEN_ONE,
        'netaware_appgroup_dependencies{appgroup="web/shop", verdict="met"}': ONE_THEN_ZERO,
    },
    "a wrong workload label": GATES_THAT_OPEN,
    "an AppGroup that does not exist": GATES_THAT_OPEN,
    "pods gated for ten minutes": {
        "netaware_gated_pods": "0x4 11x55",
        'netaware_gate_releases_total{cause="turn"}': "50x60",
    },
    "no node has enough bandwidth": {node_series("bandwidth_known", node): ZERO for node in ZONE_BY_NODE},
}
"""Name of a situation -> the series that it changes; a situation that is not here changes none."""
FURTHER_ALERTS: Mapping[str, set[str]] = {
    # An alert cannot distinguish a program that is not installed from one that is down.
    "a cluster without netaware": {"NetawareNoLeader"},
    # The scheduler's message does not tell whether bandwidth is used up or unknown; here it is unknown.
    "no node has enough bandwidth": {"NetawareCapacityUnknown"},
}
FAILING = 'netaware_probe_results_writes_total{job="agent", instance="n0", outcome="failed"}'
SERIES_BY_ALERT: Mapping[str, Series] = {
    "NetawareMultipleLeaders": {'netaware_leader{instance="c2"}': ZERO_THEN_ONE},
    "NetawareApiWritesFailing": {FAILING: RISING},
    "NetawareProbeSecretRefused": {'netaware_probe_secret_refused{instance="n0"}': ZERO_THEN_ONE},
    "NetawareZonePairUnmeasured": {
        zone_latency("z0", "z1"): ONE_THEN_STALE,
        zone_latency("z0", "z1", "inferred"): "_x5 0.002x55",
    },
    "NetawareProbesFailing": {
        probe_runs("z0", "z1", "ok"): "0+10x4 50x55",
        probe_runs("z0", "z1", "too-few-samples"): "0x4 0+10x55",
    },
    "NetawareSamplesUntrusted": {node_pair_series("netaware_probe_sample_trusted", "z0", "z1"): ONE_THEN_ZERO},
    "NetawarePathLossy": {node_pair_series("netaware_probe_loss_ratio", "z0", "z1"): "0x4 0.1x55"},
    "NetawareLatencyRegression": {
        node_pair_series("netaware_probe_latency_seconds", "z0", "z1", quantile="0.5"): "0.002x30 0.02x29"
    },
    "NetawareLimitNotEnforced": {
        'netaware_pod_bandwidth_verdict{namespace="web", pod="p", direction="egress", verdict="enforced"}': ONE_THEN_STALE,
        'netaware_pod_bandwidth_verdict{namespace="web", pod="p", direction="egress", verdict="wrong-rate"}': ZERO_THEN_ONE,
    },
    "NetawareBandwidthOvercommitted": {
        'netaware_bandwidth_capacity_bytes_per_second{topology="s/nt", level="zone", origin="z0", destination="z1"}': ONE,
        'netaware_bandwidth_allocated_bytes_per_second{topology="s/nt", level="zone", origin="z0", destination="z1"}': "0x4 2x55",
    },
    "NetawareNodeNetworkSaturated": {'netaware_node_network_transmit_bytes_total{node="n0"}': "0+6x4 24+57x55"},
    "NetawareTrafficDrift": {
        'netaware_appgroup_traffic_drift{namespace="web", appgroup="shop", kind="new"}': ZERO_THEN_ONE
    },
    "NetawareExtenderErrors": {'netaware_extender_errors_total{instance="s1", verb="filter", status="400"}': RISING},
    "NetawareExtenderSlow": {
        'netaware_extender_duration_seconds_bucket{instance="s1", verb="filter", le="0.01"}': "0x60",
        'netaware_extender_duration_seconds_bucket{instance="s1", verb="filter", le="1"}': RISING,
    },
    "NetawareEvictionsFailing": {'netaware_descheduler_evictions_total{result="forbidden"}': RISING},
    "NetawareDeschedulerStopped": {'netaware_descheduler_stopped{strategy="LowNodeLoad"}': ZERO_THEN_ONE},
}
"""Alert without a finding, because it needs a history -> series that make it fire."""
EVER_FIRED = 'group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1h]))'


def make_promtool_test(name: str, series: Series, alerts: set[str]) -> dict[str, Any]:
    """A test that just these alerts fire within an hour of a cluster that is healthy except for some series."""
    values_by_series = {key: values for key, values in {**HEALTHY, **series}.items() if values is not None}
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in values_by_series.items()],
        "promql_expr_test": [{"expr": EVER_FIRED, "eval_time": "59m", "exp_samples": expected}],
    }


def test_each_alert_fires_only_in_its_situation(prometheus_programs: Mapping[str, Path], tmp_path: Path) -> None:
    alerts_by_situation = {
        situation.name: {finding.alert for finding in diagnose(situation.facts)} - {""} for situation in SITUATIONS
    }
    assert SERIES_BY_SITUATION.keys() | FURTHER_ALERTS.keys() <= alerts_by_situation.keys()
    for name, alerts in FURTHER_ALERTS.items():
        alerts_by_situation[name] |= alerts
    assert set().union(*alerts_by_situation.values()) | SERIES_BY_ALERT.keys() == ALERTS

    tests = [
        make_promtool_test("a healthy cluster", {}, set()),
        make_promtool_test("agents are upgraded", {agent_up("n2"): "1x4 0x3 1x52"}, set()),
        *(
            make_promtool_test(name, SERIES_BY_SITUATION.get(name, {}), alerts)
            for name, alerts in alerts_by_situation.items()
        ),
        *(make_promtool_test(alert, series, {alert}) for alert, series in SERIES_BY_ALERT.items()),
    ]
    rule_files = [str(path) for path in sorted(PROMETHEUS.glob("*.rules.yaml"))]
    test_file = tmp_path / "situations.yaml"
    suite = {"rule_files": rule_files, "evaluation_interval": "1m", "tests": tests}
    test_file.write_text(yaml.safe_dump(suite, width=1000))
    run_promtool(prometheus_programs, "test", "rules", test_file)
