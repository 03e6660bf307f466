"""Settings of the AppGroup controller: the section ``appGroup`` of the controller's configuration file."""

from __future__ import annotations

import msgspec

from kubekit.errors import ConfigError


class AppGroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How groups are kept. Which costs the condition CostsMet is judged by is the scheduler's choice: its section tells.

    Attributes:
        namespaces: where AppGroups are looked after; empty for everywhere.
        settle_s: pods and costs change in bursts; a group is looked at once per this time at most.
        resync_s: every group is looked at again after this time, whatever happened.
    """

    namespaces: tuple[str, ...] = ()
    settle_s: float = 0.3
    resync_s: float = 300.0

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        if not 0 <= self.settle_s <= 60:
            raise ConfigError("appGroup.settleS", f"{self.settle_s} is out of range", "0 to 60 seconds")
        if not 10 <= self.resync_s <= 86400:
            raise ConfigError("appGroup.resyncS", f"{self.resync_s} is out of range", "10 to 86400 seconds")
