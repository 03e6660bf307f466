"""Settings of the AppGroup controller: the section ``appGroup`` of the controller's configuration file."""

from __future__ import annotations

from kubekit.settings import Section


class AppGroupConfig(Section, frozen=True):
    """Order and status of AppGroups. The condition CostsMet uses the costs chosen in ``scheduler.networkOverhead``.

    Attributes:
        namespaces: namespaces whose AppGroups are managed; empty for all.
    """

    namespaces: tuple[str, ...] = ()
