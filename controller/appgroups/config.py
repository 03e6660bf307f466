"""Settings of the AppGroup controller: the section ``appGroup`` of the controller's configuration file."""

from __future__ import annotations

from kubekit.settings import Section


class AppGroupConfig(Section, frozen=True):
    """How groups are kept. Which costs the condition CostsMet is judged by is the scheduler's choice: its section tells.

    Attributes:
        namespaces: where AppGroups are looked after; empty for everywhere.
    """

    namespaces: tuple[str, ...] = ()
