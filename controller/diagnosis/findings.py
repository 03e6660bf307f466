"""The shape of a finding, and how findings are put in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kubekit.text import printable

Severity = Literal["critical", "warning", "info"]
_CENTRAL = frozenset({"controller-down", "no-leader", "scheduler-down", "extender-down"})
STOPS_ALL = _CENTRAL | {"not-installed", "agents-gone", "no-plan", "no-topology"}
"""Findings that concern every pod, group, zone and node, whoever is named."""
MOST_HURT = 20
"""So many are named."""
RANK: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        code: short and stable, for programs and tests.
        severity: critical (the product does not do its work), warning (somebody is worse off), info.
        what: what is wrong, in one sentence.
        because: the chain of causes, the nearest first; the last one is the first cause.
        since: unix seconds; None where nothing tells it.
        hurts: who is worse off, as ``namespace/name`` or names of nodes and zones.
        do: commands to paste, or what to change: first where to look, last what ends it. Words in capitals (``ZONE``) are a choice.
        alert: the alert that stands for the same state, and the section of the runbook; empty without one.
    """

    code: str
    severity: Severity
    what: str
    because: tuple[str, ...] = ()
    since: float | None = None
    hurts: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    alert: str = ""


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first; of equals our own central programs, since without them nothing else mends, then those that hurt most."""
    return tuple(
        sorted(
            map(_plain, findings),
            key=lambda f: (RANK[f.severity], f.code not in _CENTRAL, -len(f.hurts), f.code, f.what),
        )
    )


def _plain(finding: Finding) -> Finding:
    because, do, hurts = (tuple(map(printable, texts)) for texts in (finding.because, finding.do, finding.hurts))
    return msgspec.structs.replace(finding, what=printable(finding.what), because=because, do=do, hurts=hurts)
