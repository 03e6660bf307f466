"""The controller's configuration file: strict YAML, checked before anything starts.

Each package has the struct of its section; this module combines them and reads the file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from controller.appgroups.config import AppGroupConfig
from controller.bootstrap import BootstrapConfig
from controller.descheduler.config import DeschedulerConfig
from controller.page.config import PageConfig
from controller.scheduler.config import SchedulerConfig
from controller.topology.config import TopologyConfig
from controller.traffic.config import TrafficConfig
from kubekit.errors import ConfigError
from kubekit.http import parse_listen
from kubekit.lease import LeaderElectionConfig
from kubekit.settings import Range, Section, convert, join_path, load_yaml, parse_yaml
from kubekit.wire import DNS_LABEL
from netperf.contract import API_VERSION, NETAWARE_NAMESPACE

KIND = "ControllerConfiguration"
RENEW_DEADLINE_SHARE = 0.7
"""Part of the lease duration after which a leader without renewal stops writing."""
RETRY_PERIOD_SHARE, MAX_RETRY_PERIOD_S = 0.2, 2.0
"""Retry period as a part of the lease duration, and its upper limit."""


class LeaderElectionSection(Section, frozen=True):
    """Leader election among the replicas.

    Attributes:
        enabled: false for a single replica.
        lease_duration_s: time without renewal after which another replica takes over; the leader stops writing after 70 % of it.
    """

    enabled: bool = True
    lease_duration_s: Annotated[float, Range(1, 3600)] = 10.0

    def resolve(self) -> LeaderElectionConfig:
        """The lease duration, renew deadline and retry period that follow from the lease duration."""
        duration_s = self.lease_duration_s
        return LeaderElectionConfig(
            duration_s, RENEW_DEADLINE_SHARE * duration_s, min(MAX_RETRY_PERIOD_S, RETRY_PERIOD_SHARE * duration_s)
        )


class ControllerConfiguration(Section, frozen=True):
    """The configuration file of the manager and the extender. Other packages describe their sections.

    Attributes:
        namespace: namespace of netaware's programs, probe plans, results and the Lease.
        listen: address of the controller's page, metrics and health checks; the extender takes only `--listen`.
        log_level: lowest level that is logged.
        log_format: ``text`` for key=value pairs, ``json`` for an object per line.
    """

    api_version: str = API_VERSION
    kind: str = KIND
    namespace: str = NETAWARE_NAMESPACE
    listen: str = "0.0.0.0:9851"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    leader_election: LeaderElectionSection = LeaderElectionSection()
    topology: TopologyConfig = TopologyConfig()
    app_group: AppGroupConfig = AppGroupConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    descheduler: DeschedulerConfig = DeschedulerConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    page: PageConfig = PageConfig()
    traffic: TrafficConfig = TrafficConfig()

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if the namespace or the address is invalid."""
        if not DNS_LABEL.fullmatch(self.namespace):
            problem = f"{self.namespace!r} is not the name of a namespace"
            raise ConfigError(join_path(field, "namespace"), problem, "write lower-case letters, digits and -")
        parse_listen(self.listen, join_path(field, "listen"))


def load_config(path: str | None) -> ControllerConfiguration:
    """Read and check a configuration file; the defaults if ``path`` is None.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown, of the wrong type or out of range; names the file and the field.
    """
    return ControllerConfiguration() if path is None else _convert_document(load_yaml(path, "--config"), path)


def parse_config(text: str, source: str) -> ControllerConfiguration:
    """Parse and check a configuration; ``source`` names it in errors. Raises as `load_config`."""
    return _convert_document(parse_yaml(text, "--config", source), source)


def _convert_document(document: Any, source: str) -> ControllerConfiguration:
    document = {} if document is None else document
    if not isinstance(document, dict):
        fix = "write apiVersion, kind and sections, see docs/configuration.md"
        raise ConfigError("--config", f"{source} is not a mapping", fix)
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            raise ConfigError(f"{source}: {field}", f"is {document.get(field)!r}", f"write {field}: {expected}")
    try:
        config = convert(document, ControllerConfiguration)
        config.validate()
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.field}", error.problem, error.fix) from error
    return config
