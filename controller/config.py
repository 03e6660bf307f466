"""The controller's one configuration file: strict YAML, every field with a default, checked before anything starts.

Each room owns the struct of its section; this module puts them together, reads the file, and turns what does not decode into
an error that names the field. Flags lie over the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import yaml

from controller.appgroup.config import AppGroupConfig
from controller.bootstrap import BootstrapConfig
from controller.descheduler.config import DeschedulerConfig
from controller.page.config import PageConfig
from controller.scheduler.config import SchedulerConfig
from controller.topology.config import TopologyConfig
from kubekit.errors import ConfigError
from kubekit.http import parse_listen
from kubekit.lease import Timing

API_VERSION = "netaware.io/v1alpha1"
KIND = "ControllerConfiguration"
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class LeaderElectionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which replica works.

    Attributes:
        enabled: off for a single replica that need not wait.
        lease_name: name of the Lease, in netaware's namespace.
        lease_duration_s: after this time without renewal another replica may take over.
        renew_deadline_s: after this time without renewal the leader stops writing.
        retry_period_s: between attempts.
    """

    enabled: bool = True
    lease_name: str = "netaware-controller"
    lease_duration_s: float = 10.0
    renew_deadline_s: float = 7.0
    retry_period_s: float = 2.0

    def timing(self) -> Timing:
        """The same for `kubekit.lease.Elector`.

        Raises:
            ConfigError: the times do not fit together.
        """
        return Timing(self.lease_duration_s, self.renew_deadline_s, self.retry_period_s)

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        if not self.lease_name:
            raise ConfigError("leaderElection.leaseName", "is empty", "name a Lease, such as netaware-controller")
        self.timing()


class ControllerConfiguration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file.

    Attributes:
        namespace: where netaware lives: plans, results, the Lease.
        listen: address of the manager's page, metrics and health checks; the extender takes its own by flag.
    """

    api_version: str = API_VERSION
    kind: str = KIND
    namespace: str = "netaware-system"
    listen: str = "0.0.0.0:9851"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    topology: TopologyConfig = TopologyConfig()
    app_group: AppGroupConfig = AppGroupConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    descheduler: DeschedulerConfig = DeschedulerConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    page: PageConfig = PageConfig()

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        if not _DNS_LABEL.match(self.namespace):
            raise ConfigError("namespace", f"{self.namespace!r} is no namespace", "lower-case letters, digits and -")
        parse_listen(self.listen, "listen")
        sections: tuple[_Section, ...] = (
            self.leader_election,
            self.topology,
            self.app_group,
            self.scheduler,
            self.descheduler,
            self.bootstrap,
            self.page,
        )
        for section in sections:
            section.validate()


class _Section(Protocol):
    def validate(self) -> None: ...


def load_config(path: str | None) -> ControllerConfiguration:
    """Read and check a configuration file; None gives the defaults.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown, of the wrong type or out of range; names it.
    """
    if path is None:
        config = ControllerConfiguration()
        config.validate()
        return config
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError("--config", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("--config", f"{path} is not YAML: {error}") from error
    return parse_config(text, path)


def parse_config(text: str, where: str) -> ControllerConfiguration:
    """Check a configuration that was read from ``where``, a file or an object.

    Raises:
        ConfigError: a field is unknown, of the wrong type or out of range; names it.
    """
    config = _decode(text, where)
    try:
        config.validate()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.field}", error.problem, error.fix) from error
    return config


def _decode(text: str, where: str) -> ControllerConfiguration:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("--config", f"{where} is not YAML: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError("--config", f"{where} holds no mapping", "see docs/configuration.md for an example")
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != wanted:
            raise ConfigError(f"{where}: {field}", f"is {document.get(field)!r}", f"write {field}: {wanted}")
    try:
        return msgspec.convert(document, ControllerConfiguration)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_field_of(str(error))}", str(error).partition(" - at `")[0]) from error


def _field_of(message: str) -> str:
    """``topology.probing`` of ``... - at `$.topology.probing` ``; the unknown field itself where that is the fault."""
    where = re.search(r"at `\$\.?([^`]*)`", message)
    path = where.group(1) if where else ""
    unknown = re.search(r"unknown field `([^`]*)`", message)
    parts = [p for p in (path, unknown.group(1) if unknown else "") if p]
    return ".".join(parts) or "the document"
