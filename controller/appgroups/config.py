"""Settings of the AppGroup controller: the section ``appGroup`` of the controller's configuration file."""

from __future__ import annotations

from kubekit.settings import Section


class AppGroupConfig(Section, frozen=True):
    """Order and status of AppGroups. ``scheduler.networkOverhead`` sets the costs of the condition CostsMet.

    Attributes:
        namespaces: whose AppGroups are managed; empty for all.
    """

    namespaces: tuple[str, ...] = ()
