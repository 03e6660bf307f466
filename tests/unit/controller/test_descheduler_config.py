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

KOORDINATOR_EXAMPLE = """
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
ALL_LOW_NODE_LOAD_ARGS = """
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
ENABLED = {"plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}}
LOW_ONLY = {"lowThresholds": {"cpu": 80}}
WITHOUT_VALUES = {"matchExpressions": [{"key": "a", "operator": "In"}]}
FIRST_ARGS = "profiles[0].pluginConfig[0].args"
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"koord-descheduler-config": KOORDINATOR_EXAMPLE}}


def make_args(**fields: Any) -> dict[str, Any]:
    return {"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 50}, **fields}


def make_configuration(**fields: Any) -> dict[str, Any]:
    return {"kind": "DeschedulerConfiguration", **fields}


def make_profile(**fields: Any) -> dict[str, Any]:
    return make_configuration(profiles=[fields])


def enable_plugin(point: str, plugin: str) -> dict[str, Any]:
    return make_profile(plugins={point: {"enabled": [{"name": plugin}]}})


def make_migration_args(**fields: Any) -> dict[str, Any]:
    return {"name": "MigrationController", "args": fields}


def make_section(**fields: Any) -> DeschedulerConfig:
    """The section ``descheduler`` of the controller's configuration."""
    return msgspec.convert(fields, DeschedulerConfig)


@pytest.mark.parametrize("document", [yaml.safe_load(KOORDINATOR_EXAMPLE), CONFIG_MAP])
def test_the_example_of_koordinator_is_read_alone_and_from_a_config_map(document: dict[str, Any]) -> None:
    config = make_section(policy=document).resolve()
    assert config.low_node_load is not None
    assert config.interval_s == 60
    assert config.low_node_load.args.evictable_namespaces.exclude == ["kube-system", "koordinator-system"]
    (pool,) = config.low_node_load.pools
    assert pool.low_thresholds == {"cpu": 20, "memory": 30}
    assert pool.high_thresholds == {"cpu": 50, "memory": 60}


def test_every_field_of_low_node_load_args_is_read_and_node_pools_inherit_those_that_they_do_not_have() -> None:
    load = make_section(policy=yaml.safe_load(ALL_LOW_NODE_LOAD_ARGS)).resolve().low_node_load
    assert load is not None
    args = load.args
    assert (args.paused, args.dry_run, args.node_fit) == (True, True, False)
    assert (args.number_of_nodes, args.node_metric_expiration_seconds) == (3, 90)
    assert args.evictable_namespaces.include == ["shop"]
    assert load.detector_cache_timeout_s == 600
    assert load.pod_selectors[0].matches({"app": "b"})
    assert not load.pod_selectors[0].matches({"app": "c"})

    gpu, rest = load.pools
    assert not gpu.use_deviation
    assert gpu.high_thresholds["cpu"] == 90
    assert gpu.selector.matches({"gpu": "true"})
    assert gpu.low_thresholds["cpu"] == 10, "inherited"
    assert gpu.anomaly_timeout_s == 150, "inherited"
    assert (gpu.consecutive_abnormalities, gpu.consecutive_normalities) == (4, 2), "inherited"
    assert rest.use_deviation
    assert rest.high_thresholds["cpu"] == 15.5
    assert rest.selector.matches({"disk": "ssd"})
    assert not rest.selector.matches({})
    assert rest.weights == {"cpu": 2, "memory": 1}


def test_defaults_of_low_node_load_args() -> None:
    load = make_section().resolve().low_node_load
    assert load is not None
    args = load.args
    assert (args.paused, args.dry_run, args.node_fit, args.number_of_nodes) == (False, False, True, 0)
    assert (args.node_metric_expiration_seconds, load.detector_cache_timeout_s) == (180, 300)
    (pool,) = load.pools
    assert not pool.use_deviation
    assert pool.weights == {"cpu": 1, "memory": 1}
    assert (pool.anomaly_timeout_s, pool.consecutive_abnormalities, pool.consecutive_normalities) == (60, 5, 3)
    limits = make_section().resolve().limits
    assert (limits.per_node, limits.workload_backoff_s) == (2, 300)
    assert not make_section().enabled, "pods are evicted only if the descheduler is enabled"


def test_low_node_load_is_off_unless_the_profile_enables_it_and_its_args_are_then_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check-config` and the dry run show the warning."""
    document = yaml.safe_load(KOORDINATOR_EXAMPLE)
    document["profiles"][0]["plugins"]["balance"]["enabled"] = []

    config = make_section(policy=document).resolve()

    assert config.low_node_load is None
    (warning,) = config.warnings
    assert warning.startswith("descheduler.policy.profiles[0].plugins.balance.enabled: does not name LowNodeLoad, so")
    assert decide_once(make_snapshot([], [], {}), config).plan.notes == (warning,)
    path, head = tmp_path / "config.yaml", {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    path.write_text(yaml.safe_dump({**head, "descheduler": {"policy": document}}))
    assert main(["check-config", str(path)]) == 0
    assert warning in capsys.readouterr().err

    del document["profiles"][0]["pluginConfig"]
    config = make_section(policy=document).resolve()
    assert config.low_node_load is None
    assert config.warnings == ()


def test_the_policy_overrides_limits_interval_dry_run_and_node_selector() -> None:
    document = yaml.safe_load(KOORDINATOR_EXAMPLE) | {
        "maxNoOfPodsToEvictPerNode": 5,
        "maxNoOfPodsToEvictPerNamespace": 7,
        "maxNoOfPodsToEvictTotal": 9,
        "dryRun": True,
        "nodeSelector": {"matchLabels": {"disk": "ssd"}},
    }
    migration_controller = make_migration_args(
        maxMigratingPerNode=1,
        maxMigratingPerWorkload="20%",
        evictFailedBarePods=True,
        objectLimiters={"workload": {"duration": "10m"}},
    )
    document["profiles"][0]["pluginConfig"].append(migration_controller)

    config = make_section(policy=document, intervalS=5).resolve()

    assert (config.limits.per_node, config.limits.per_namespace, config.limits.per_round) == (1, 7, 9)
    assert config.limits.per_workload == "20%"
    assert config.limits.workload_backoff_s == 600
    assert config.dry_run
    assert config.interval_s == 60
    assert config.low_node_load is not None
    assert not config.low_node_load.pools[0].selector.matches({})


@pytest.mark.parametrize(("other_limit", "limit"), [({}, 1_000_000), ({"maxNoOfPodsToEvictTotal": 9}, 9)])
def test_a_max_migrating_of_zero_is_no_limit_as_in_koordinator(other_limit: dict[str, int], limit: int) -> None:
    policy = make_profile(pluginConfig=[make_migration_args(maxMigratingGlobally=0)]) | other_limit
    assert make_section(policy=policy).resolve().limits.per_round == limit


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (make_args(lowThresholds={"cpu": 60}), "lowThresholds.cpu"),
        (make_args(highThresholds={"cpu": 101}), "highThresholds.cpu"),
        (make_args(highThresholds={"cpu": float("nan")}), "highThresholds.cpu"),
        (make_args(lowThresholds={"gpu": 1}, highThresholds={"gpu": 2}), "lowThresholds.gpu"),
        (make_args(highThresholds={"cpu": 50, "memory": 60}), "lowThresholds.memory"),
        (make_args(lowThresholds={"cpu": 20, "memory": 60}), "highThresholds.memory"),
        (make_args(evictableNamespaces={"include": ["a"], "exclude": ["b"]}), "evictableNamespaces"),
        (make_args(nodeSelector={"matchLabel": {"a": "b"}}), "nodeSelector.matchLabel"),
        (make_args(nodePools=[{}], nodeSelector=WITHOUT_VALUES), "nodeSelector"),
        (make_args(podSelectors=[{"name": "x"}]), "podSelectors[0].selector"),
        (make_args(podSelectors=[{"selector": WITHOUT_VALUES}]), "podSelectors[0].selector"),
        (make_args(resourceWeights={"cpu": 0}), "resourceWeights.cpu"),
        (make_args(nodePools=[{}], anomalyCondition={"timeout": "soon"}), "anomalyCondition.timeout"),
        (make_args(detectorCacheTimeout="-5m"), "detectorCacheTimeout"),
        (make_args(nodePools=[{"name": "a"}, {"name": "a"}]), "nodePools"),
        (make_args(nodePools=[{"name": "a", "lowThresholds": {"cpu": 70}}]), "nodePools[0].lowThresholds.cpu"),
        (make_args(nodePools=[{"name": "a", "prodHighThresholds": {"cpu": 70}}]), "nodePools[0].prodHighThresholds"),
        ({"useDeviationThresholds": True}, "highThresholds"),
        ({"kind": "HighNodeLoadArgs"}, "kind"),
        ({"apiVersion": "descheduler/v1"}, "apiVersion"),
        ({"kind": "ConfigMap", "data": {}}, "data"),
        (make_configuration(deschedulingInterval="often"), "deschedulingInterval"),
        (make_configuration(profiles=[{}, {}]), "profiles"),
        (make_profile(pluginConfig=[{"name": "LoadAware"}]), "profiles[0].pluginConfig[0].name"),
        (
            make_profile(**ENABLED, pluginConfig=[{"name": "LowNodeLoad", "args": LOW_ONLY}]),
            f"{FIRST_ARGS}.highThresholds.cpu",
        ),
        (enable_plugin("deschedule", "LowNodeLoad"), "profiles[0].plugins.deschedule.enabled[0].name"),
        (enable_plugin("balance", "MigrationController"), "profiles[0].plugins.balance.enabled[0].name"),
        (enable_plugin("balance", "HighNodeUtilization"), "profiles[0].plugins.balance.enabled[0].name"),
    ],
)
def test_an_invalid_policy_is_refused_naming_the_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_section(policy=document).validate("descheduler")
    assert refused.value.field == f"descheduler.policy.{field}"
