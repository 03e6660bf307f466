"""The descheduler's configuration: koordinator's documents are read, and errors and warnings name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.__main__ import main
from kubekit.errors import ConfigError
from tests.support.descheduler_builders import DeschedulerConfig, decide_once, make_snapshot

SEED = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
# Execute the LowNodeLoad plugin every 60s
deschedulingInterval: 60s
profiles:
- name: koord-descheduler
  plugins:
    deschedule:
      disabled:
      - name: "*"
    balance:
      enabled:
      - name: LowNodeLoad # Configure to enable the LowNodeLoad plugin
  pluginConfig:
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces:
        exclude:
        - "kube-system"
        - "koordinator-system"
      lowThresholds:
        cpu: 20
        memory: 30
      highThresholds:
        cpu: 50
        memory: 60
"""
EVERYTHING = """
apiVersion: descheduler/v1alpha2
kind: LowNodeLoadArgs
paused: true
dryRun: true
numberOfNodes: 3
nodeMetricExpirationSeconds: 90
evictableNamespaces: {include: [shop]}
nodeSelector: {matchLabels: {disk: ssd}}
podSelectors:
- name: movable
  selector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}
nodeFit: false
useDeviationThresholds: true
lowThresholds: {cpu: 10, memory: 10, network.aware.com/bandwidth: 10}
highThresholds: {cpu: 15.5, memory: 20, network.aware.com/bandwidth: 30}
resourceWeights: {cpu: 2, memory: 1}
anomalyCondition: {timeout: 2m30s, consecutiveAbnormalities: 4, consecutiveNormalities: 2}
detectorCacheTimeout: 10m
nodePools:
- name: gpu
  nodeSelector: {matchLabels: {gpu: "true"}}
  useDeviationThresholds: false
  highThresholds: {cpu: 90, memory: 90, network.aware.com/bandwidth: 90}
- name: rest
"""


def args(**fields: Any) -> dict[str, Any]:
    return {"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 50}, **fields}


def configuration(**fields: Any) -> dict[str, Any]:
    return {"kind": "DeschedulerConfiguration", **fields}


def profile(**fields: Any) -> dict[str, Any]:
    return configuration(profiles=[fields])


def enabling(point: str, plugin: str) -> dict[str, Any]:
    return profile(plugins={point: {"enabled": [{"name": plugin}]}})


def migration_args(**fields: Any) -> dict[str, Any]:
    return {"name": "MigrationController", "args": fields}


def section(**fields: Any) -> DeschedulerConfig:
    return msgspec.convert(fields, DeschedulerConfig)


ENABLED = {"plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}}
LOW_ONLY = {"lowThresholds": {"cpu": 80}}
WITHOUT_VALUES = {"matchExpressions": [{"key": "a", "operator": "In"}]}
FIRST_ARGS = "profiles[0].pluginConfig[0].args"
BANDWIDTH_POLICY = {f"{name}Thresholds": {"network.aware.com/bandwidth": 30} for name in ("low", "high")}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"koord-descheduler-config": SEED}}


@pytest.mark.parametrize("document", [yaml.safe_load(SEED), CONFIG_MAP])
def test_the_example_of_koordinator_is_read_alone_and_from_a_config_map(document: dict[str, Any]) -> None:
    config = section(policy=document).resolve()
    assert config.low_node_load is not None
    assert config.interval_s == 60
    assert config.low_node_load.args.evictable_namespaces.exclude == ["kube-system", "koordinator-system"]
    (pool,) = config.low_node_load.pools
    assert (pool.low_thresholds, pool.high_thresholds) == ({"cpu": 20, "memory": 30}, {"cpu": 50, "memory": 60})


def test_every_field_of_low_node_load_args_is_read() -> None:
    load = section(policy=yaml.safe_load(EVERYTHING)).resolve().low_node_load
    assert load is not None
    args = load.args
    assert (args.paused, args.dry_run, args.number_of_nodes, args.node_metric_expiration_seconds) == (True, True, 3, 90)
    assert (args.evictable_namespaces.include, args.node_fit, load.detector_cache_timeout_s) == (["shop"], False, 600.0)
    assert load.pod_selectors[0].matches({"app": "b"})
    assert not load.pod_selectors[0].matches({"app": "c"})
    gpu, rest = load.pools
    assert not gpu.use_deviation
    assert gpu.high_thresholds["cpu"] == 90
    assert gpu.low_thresholds["cpu"] == 10, "inherited"
    assert gpu.anomaly_timeout_s == 150, "inherited"
    assert (gpu.consecutive_abnormalities, gpu.consecutive_normalities) == (4, 2)
    assert gpu.selector.matches({"gpu": "true"})
    assert rest.use_deviation
    assert rest.high_thresholds["cpu"] == 15.5
    assert rest.selector.matches({"disk": "ssd"}), "inherited"
    assert not rest.selector.matches({})
    assert rest.weights == {"cpu": 2, "memory": 1}


def test_defaults_of_low_node_load_args() -> None:
    load = section().resolve().low_node_load
    assert load is not None
    args = load.args
    assert (args.paused, args.dry_run, args.node_fit, args.number_of_nodes) == (False, False, True, 0)
    assert (args.node_metric_expiration_seconds, load.detector_cache_timeout_s) == (180, 300)
    (pool,) = load.pools
    assert not pool.use_deviation
    assert pool.weights == {"cpu": 1, "memory": 1}
    assert (pool.anomaly_timeout_s, pool.consecutive_abnormalities, pool.consecutive_normalities) == (60, 5, 3)
    limits = section().resolve().limits
    assert (limits.per_node, limits.workload_backoff_s) == (2, 300)
    assert not section().enabled, "pods are evicted only if the descheduler is enabled"


def test_low_node_load_is_off_unless_the_profile_enables_it_and_ignored_args_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(SEED)
    document["profiles"][0]["plugins"]["balance"]["enabled"] = []
    config = section(policy=document).resolve()
    assert config.low_node_load is None
    (warning,) = config.warnings
    assert warning.startswith("descheduler.policy.profiles[0].plugins.balance.enabled: does not name LowNodeLoad, so")
    assert decide_once(make_snapshot([], [], {}), config).plan.notes == (warning,), "the dry run shows it"
    path, head = tmp_path / "config.yaml", {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    path.write_text(yaml.safe_dump({**head, "descheduler": {"policy": document}}))
    assert main(["check-config", str(path)]) == 0
    assert warning in capsys.readouterr().err
    del document["profiles"][0]["pluginConfig"]
    assert section(policy=document).resolve().warnings == ()


def test_the_policy_overrides_limits_interval_dry_run_and_node_selector() -> None:
    document = yaml.safe_load(SEED) | {
        "maxNoOfPodsToEvictPerNode": 5,
        "maxNoOfPodsToEvictPerNamespace": 7,
        "maxNoOfPodsToEvictTotal": 9,
        "dryRun": True,
        "nodeSelector": {"matchLabels": {"disk": "ssd"}},
    }
    migration = migration_args(maxMigratingPerNode=1, maxMigratingPerWorkload="20%", evictFailedBarePods=True)
    migration["args"]["objectLimiters"] = {"workload": {"duration": "10m"}}
    document["profiles"][0]["pluginConfig"].append(migration)
    config = section(policy=document, intervalS=5).resolve()
    assert (config.limits.per_node, config.limits.per_namespace, config.limits.per_round) == (1, 7, 9)
    assert (config.limits.per_workload, config.limits.workload_backoff_s) == ("20%", 600)
    assert config.dry_run
    assert config.interval_s == 60
    assert config.low_node_load is not None
    assert not config.low_node_load.pools[0].selector.matches({})


@pytest.mark.parametrize(("total", "limit"), [({}, 1_000_000), ({"maxNoOfPodsToEvictTotal": 9}, 9)])
def test_a_max_migrating_of_zero_is_no_limit_as_in_koordinator(total: dict[str, int], limit: int) -> None:
    policy = profile(pluginConfig=[migration_args(maxMigratingGlobally=0)]) | total
    assert section(policy=policy).resolve().limits.per_round == limit


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (args(lowThresholds={"cpu": 60}), "lowThresholds.cpu"),
        (args(highThresholds={"cpu": 101}), "highThresholds.cpu"),
        (args(highThresholds={"cpu": float("nan")}), "highThresholds.cpu"),
        (args(lowThresholds={"gpu": 1}, highThresholds={"gpu": 2}), "lowThresholds.gpu"),
        (args(highThresholds={"cpu": 50, "memory": 60}), "lowThresholds.memory"),
        (args(lowThresholds={"cpu": 20, "memory": 60}), "highThresholds.memory"),
        (args(highThresholds={"cpu": "much"}), "highThresholds.cpu"),
        (args(evictableNamespaces={"include": ["a"], "exclude": ["b"]}), "evictableNamespaces"),
        (args(nodeSelector={"matchLabel": {"a": "b"}}), "nodeSelector.matchLabel"),
        (args(nodePools=[{}], nodeSelector=WITHOUT_VALUES), "nodeSelector"),
        (args(podSelectors=[{"name": "x"}]), "podSelectors[0].selector"),
        (args(podSelectors=[{"selector": WITHOUT_VALUES}]), "podSelectors[0].selector"),
        (args(numberOfNodes=-1), "numberOfNodes"),
        (args(nodeMetricExpirationSeconds=0), "nodeMetricExpirationSeconds"),
        (args(resourceWeights={"cpu": 0}), "resourceWeights.cpu"),
        (args(nodePools=[{}], anomalyCondition={"timeout": "soon"}), "anomalyCondition.timeout"),
        (args(anomalyCondition={"consecutiveAbnormalities": 0}), "anomalyCondition.consecutiveAbnormalities"),
        (args(detectorCacheTimeout="-5m"), "detectorCacheTimeout"),
        (args(nodePools=[{"name": "a"}, {"name": "a"}]), "nodePools"),
        (args(nodePools=[{"name": "a", "lowThresholds": {"cpu": 70}}]), "nodePools[0].lowThresholds.cpu"),
        (args(nodePools=[{"name": "a", "prodHighThresholds": {"cpu": 70}}]), "nodePools[0].prodHighThresholds"),
        ({"useDeviationThresholds": True}, "highThresholds"),
        ({"kind": "HighNodeLoadArgs"}, "kind"),
        ({"apiVersion": "descheduler/v1"}, "apiVersion"),
        ({"kind": "ConfigMap", "data": {}}, "data"),
        (configuration(deschedulingInterval="often"), "deschedulingInterval"),
        (configuration(maxNoOfPodsToEvictPerNode=-1), "maxNoOfPodsToEvictPerNode"),
        (configuration(profiles=[{}, {}]), "profiles"),
        (profile(pluginConfig=[migration_args(maxMigratingPerNode=-1)]), f"{FIRST_ARGS}.maxMigratingPerNode"),
        (profile(pluginConfig=[{"name": "LoadAware"}]), "profiles[0].pluginConfig[0].name"),
        (
            profile(**ENABLED, pluginConfig=[{"name": "LowNodeLoad", "args": LOW_ONLY}]),
            f"{FIRST_ARGS}.highThresholds.cpu",
        ),
        (enabling("deschedule", "LowNodeLoad"), "profiles[0].plugins.deschedule.enabled[0].name"),
        (enabling("balance", "MigrationController"), "profiles[0].plugins.balance.enabled[0].name"),
        (enabling("balance", "HighNodeUtilization"), "profiles[0].plugins.balance.enabled[0].name"),
    ],
)
def test_an_invalid_policy_is_refused_naming_the_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        section(policy=document).validate("descheduler")
    assert refused.value.field == f"descheduler.policy.{field}"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"intervalS": 0}, "descheduler.intervalS"),
        ({"policy": {"lowThresholds": {"cpu": 101}}}, "descheduler.policy.lowThresholds.cpu"),
        ({"limits": {"perNode": -1}}, "descheduler.limits.perNode"),
        ({"limits": {"perWorkload": "150%"}}, "descheduler.limits.perWorkload"),
        ({"limits": {"perWorkload": "some"}}, "descheduler.limits.perWorkload"),
        ({"misplacement": {"margin": -1}}, "descheduler.misplacement.margin"),
        ({"usage": {"prometheus": {"url": "prometheus:9090"}}}, "descheduler.usage.prometheus.url"),
        ({"enabled": True, "usage": {"source": "prometheus"}}, "descheduler.usage.prometheus.url"),
        ({"enabled": True, "policy": BANDWIDTH_POLICY}, "descheduler.usage.prometheus.url"),
    ],
)
def test_an_invalid_section_is_refused_naming_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        section(**fields).validate("descheduler")
    assert refused.value.field == field
