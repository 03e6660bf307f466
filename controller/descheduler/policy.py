"""Reads koordinator's policy: LowNodeLoadArgs, a DeschedulerConfiguration, or a ConfigMap with one.

Fields and enabled plugins without a counterpart here are errors that name them. Disabled plugins are ignored.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from controller.descheduler.args import ARGS_KIND, Count, LowNodeLoadArgs, LowNodeLoadConfig
from kubekit.durations import parse_duration
from kubekit.errors import ConfigError
from kubekit.settings import Section, SelectorSpec, convert_object, join_path, parse_yaml

CONFIGURATION_KIND = "DeschedulerConfiguration"
API_VERSION = "descheduler/v1alpha2"
_NO_LIMIT = 1_000_000
"""The greatest limit that `controller.descheduler.config.LimitsConfig` accepts."""
_LOW_NODE_LOAD: Final = "LowNodeLoad"
_MIGRATION: Final = "MigrationController"
_PLUGIN_BY_POINT = {"deschedule": "", "balance": _LOW_NODE_LOAD, "evict": _MIGRATION, "filter": _MIGRATION}
"""Extension point -> the only plugin that may be enabled there; empty for none."""

# koordinator's types (pkg/descheduler/apis/config/v1alpha2), reduced to the fields that have an effect here.


class _Plugin(Section, frozen=True):
    name: str


class _PluginSet(Section, frozen=True):
    enabled: list[_Plugin] = []
    disabled: list[dict[str, str]] = []


class _Plugins(Section, frozen=True):
    deschedule: _PluginSet = _PluginSet()
    balance: _PluginSet = _PluginSet()
    evict: _PluginSet = _PluginSet()
    filter: _PluginSet = _PluginSet()

    def check_rules(self, field: str) -> None:
        """Raise ConfigError for a plugin that has no effect where it is enabled."""
        for point, supported in _PLUGIN_BY_POINT.items():
            for i, plugin in enumerate(getattr(self, point).enabled):
                if plugin.name != supported:
                    remedy = f"enable only {supported} there" if supported else "remove it"
                    raise ConfigError(f"{field}.{point}.enabled[{i}].name", f"is {plugin.name!r}", remedy)


class _PluginConfig(Section, frozen=True):
    name: Literal["LowNodeLoad", "MigrationController"]
    args: dict[str, Any] = {}


class _Profile(Section, frozen=True):
    name: str = ""
    plugins: _Plugins = _Plugins()
    plugin_config: list[_PluginConfig] = []


class _Configuration(Section, frozen=True):
    descheduling_interval: str | float | None = None
    dry_run: bool = False
    node_selector: SelectorSpec | None = None
    max_no_of_pods_to_evict_per_node: Count | None = None
    max_no_of_pods_to_evict_per_namespace: Count | None = None
    max_no_of_pods_to_evict_total: Count | None = None
    profiles: list[_Profile] = []


class _Limiter(Section, frozen=True):
    duration: str | float | None = None


class _Limiters(Section, frozen=True):
    workload: _Limiter = _Limiter()


class _MigrationArgs(Section, frozen=True):
    """MigrationControllerArgs; ``evictFailedBarePods`` is ignored, because failed pods use nothing, and are never moved."""

    max_migrating_per_node: Count | None = None
    max_migrating_per_namespace: Count | None = None
    max_migrating_globally: Count | None = None
    max_migrating_per_workload: int | str | None = None
    max_unavailable_per_workload: int | str | None = None
    evict_failed_bare_pods: bool | None = None
    evict_local_storage_pods: bool | None = None
    object_limiters: _Limiters = _Limiters()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a policy document.

    Attributes:
        low_node_load: None if the profile does not enable LowNodeLoad.
        interval_s: seconds between rounds; None if it is not set.
        dry_run: of the document; LowNodeLoadArgs have their own.
        limits, protection: those that are set, by their names in ``LimitsConfig`` and ``ProtectionConfig``.
        warnings: settings that have no effect, each with its field.
    """

    low_node_load: LowNodeLoadConfig | None
    interval_s: float | None = None
    dry_run: bool = False
    limits: dict[str, Any] = {}
    protection: dict[str, bool] = {}
    warnings: tuple[str, ...] = ()


def read_policy(document: object, field: str = "") -> Policy:
    """Read and check LowNodeLoadArgs, a DeschedulerConfiguration, or a ConfigMap with one, from parsed YAML.

    Raises:
        ConfigError: names a field that is unknown or invalid, by its path; ``field`` is that of the document.
    """
    if not isinstance(document, dict):
        raise ConfigError(field or "the document", "is not a mapping", f"give a {ARGS_KIND} or a {CONFIGURATION_KIND}")
    kind = document.get("kind", ARGS_KIND)
    if kind == "ConfigMap":
        return _read_config_map(document, field)
    _check_type(document, field, ARGS_KIND, CONFIGURATION_KIND)
    if kind == ARGS_KIND:
        return Policy(low_node_load=convert_object(document, LowNodeLoadArgs, field).resolve(field))
    return _convert_configuration(convert_object(document, _Configuration, field), field)


def _check_type(document: dict[str, Any], field: str, *kinds: str) -> None:
    kind, version = document.get("kind", ARGS_KIND), document.get("apiVersion", API_VERSION)
    if kind not in kinds:
        raise ConfigError(join_path(field, "kind"), f"is {kind!r}", f"write {' or '.join(kinds)}")
    if version != API_VERSION:
        raise ConfigError(join_path(field, "apiVersion"), f"is {version!r}", f"write {API_VERSION}")


def _read_config_map(document: dict[str, Any], field: str) -> Policy:
    data = document.get("data")
    texts = {k: v for k, v in data.items() if isinstance(v, str)} if isinstance(data, dict) else {}
    if len(texts) != 1:
        raise ConfigError(join_path(field, "data"), f"has {len(texts)} entries", f"give one {CONFIGURATION_KIND}")
    ((key, text),) = texts.items()
    field_of_text = join_path(field, f"data[{key}]")
    return read_policy(parse_yaml(text, field_of_text), field_of_text)


def _convert_configuration(config: _Configuration, field: str) -> Policy:
    config.validate(field)
    profiles_field = join_path(field, "profiles")
    if len(config.profiles) > 1:
        raise ConfigError(profiles_field, f"has {len(config.profiles)} profiles", "give one, with nodePools")
    profile = config.profiles[0] if config.profiles else _Profile()
    args_and_field_by_plugin = {
        entry.name: (entry.args, f"{profiles_field}[0].pluginConfig[{i}].args")
        for i, entry in enumerate(profile.plugin_config)
    }
    load_document, load_field = args_and_field_by_plugin.get(_LOW_NODE_LOAD, ({}, profiles_field))
    _check_type(load_document, load_field, ARGS_KIND)
    load_args = convert_object(load_document, LowNodeLoadArgs, load_field)
    if load_args.node_selector is None:
        load_args = msgspec.structs.replace(load_args, node_selector=config.node_selector)
    migration_document, migration_field = args_and_field_by_plugin.get(_MIGRATION, ({}, ""))
    migration = convert_object(migration_document, _MigrationArgs, migration_field)
    migration.validate(migration_field)
    interval, evict_local_storage = config.descheduling_interval, migration.evict_local_storage_pods
    interval_field = join_path(field, "deschedulingInterval")
    is_enabled = bool(profile.plugins.balance.enabled)
    enabled_field = f"{profiles_field}[0].plugins.balance.enabled"
    warning = f"{enabled_field}: does not name {_LOW_NODE_LOAD}, so {load_field} have no effect"
    return Policy(
        low_node_load=load_args.resolve(load_field) if is_enabled else None,
        interval_s=None if interval is None else parse_duration(interval, interval_field, minimum_s=1),
        dry_run=config.dry_run,
        limits=_limits_of(config, migration, migration_field),
        protection={} if evict_local_storage is None else {"evict_local_storage": evict_local_storage},
        warnings=(warning,) if _LOW_NODE_LOAD in args_and_field_by_plugin and not is_enabled else (),
    )


def _limits_of(config: _Configuration, migration: _MigrationArgs, migration_field: str) -> dict[str, Any]:
    """The limits that the document sets, by their names in ``LimitsConfig``."""
    backoff = migration.object_limiters.workload.duration
    if backoff is not None:
        backoff = parse_duration(backoff, join_path(migration_field, "objectLimiters.workload.duration"))
    limits: dict[str, int | str | float | None] = {
        "per_node": _smaller_limit(config.max_no_of_pods_to_evict_per_node, migration.max_migrating_per_node),
        "per_namespace": _smaller_limit(
            config.max_no_of_pods_to_evict_per_namespace, migration.max_migrating_per_namespace
        ),
        "per_round": _smaller_limit(config.max_no_of_pods_to_evict_total, migration.max_migrating_globally),
        "per_workload": migration.max_migrating_per_workload,
        "unavailable_per_workload": migration.max_unavailable_per_workload,
        "workload_backoff_s": backoff,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _smaller_limit(max_evictions: int | None, max_migrating: int | None) -> int | None:
    """The smaller limit, None if neither is set; a ``maxMigrating`` of 0 means no limit."""
    limits = max_evictions, _NO_LIMIT if max_migrating == 0 else max_migrating
    return min((limit for limit in limits if limit is not None), default=None)
