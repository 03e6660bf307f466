"""Settings of the AppGroup controller: the section ``appGroup`` of the controller's configuration file."""

from __future__ import annotations

from typing import Annotated

from kubekit.settings import Range, Section


class AppGroupConfig(Section, frozen=True):
    """How groups are kept. Which costs the condition CostsMet is judged by is the scheduler's choice: its section tells.

    Attributes:
        namespaces: where AppGroups are looked after; empty for everywhere.
        settle_s: pods and costs change in bursts; a group is looked at once per this time at most.
        resync_s: every group is looked at again after this time, whatever happened.
    """

    namespaces: tuple[str, ...] = ()
    settle_s: Annotated[float, Range(0, 60)] = 0.3
    resync_s: Annotated[float, Range(10, 86_400)] = 300.0
