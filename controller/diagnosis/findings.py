"""Types of findings, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec

from kubekit.text import cut_bytes, make_printable

Severity = Literal["critical", "warning", "info"]
EventScope = Literal["pod", "appgroup", "node", "zones", "cluster", "condition"]
"""Objects with an event about a finding: the affected pods, AppGroups or nodes; the NetworkTopology, with an event for each tuple of
affected zones or one for the cluster; no object, if the finding repeats a condition, whose change has an event."""
NO_LEADER_CODES = frozenset({"controller-down", "no-leader"})
"""Codes of findings from which follows that no controller leads."""
_PROGRAM_CODES = NO_LEADER_CODES | {"scheduler-down", "extender-down"}
CLUSTER_WIDE = _PROGRAM_CODES | {"not-installed", "no-agents", "no-plan", "no-topology"}
"""Codes of findings that affect all pods, groups, zones and nodes."""
APPLY_AGAIN = (
    "let Helm do it instead, if Helm installed netaware: helm upgrade netaware dist/netaware -n netaware-system --reset-then-reuse-values",
    "kubectl apply --server-side --force-conflicts -k dist/overlay",
)
"""Not `manifests/overlays`, which would replace the images by names without registry and tag."""
MAX_AFFECTED = 20
"""At most this many affected objects are named."""
MAX_CAUSES = 3
"""At most this many objects are named in a cause."""
MAX_TEXT_BYTES = 1024
"""Longest summary, cause or name."""
SEVERITY_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


class Finding(msgspec.Struct, frozen=True):
    """A problem of the cluster.

    Attributes:
        code: short and stable, for programs.
        severity: critical (netaware does not work), warning (netaware works less well), info.
        summary: the problem in one sentence.
        cause: the chain of causes, root cause last.
        since: unix seconds; None if unknown.
        affects: affected objects, as ``namespace/name`` or names of nodes and zones.
        fix: commands or instructions, the last of which fixes it. Words in capitals (``ZONE``) are placeholders.
        alert: the alert of the same state, which is also a section of the runbook; empty without one.
    """

    event_scope: ClassVar[EventScope] = "cluster"

    code: str
    severity: Severity
    summary: str
    cause: tuple[str, ...] = ()
    since: float | None = None
    affects: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    alert: str = ""


class PodFinding(Finding, frozen=True):
    """A problem of the affected pods."""

    event_scope = "pod"


class GroupFinding(Finding, frozen=True):
    """A problem of the affected AppGroups, which no condition reports."""

    event_scope = "appgroup"


class NodeFinding(Finding, frozen=True):
    """A problem of the affected nodes."""

    event_scope = "node"


class ZoneFinding(Finding, frozen=True):
    """A problem of the affected zones, or of paths between them."""

    event_scope = "zones"


class ConditionFinding(Finding, frozen=True):
    """A problem that a condition of an AppGroup or a NetworkTopology reports too."""

    event_scope = "condition"


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by severity, worst first; then those about our programs, then those that affect most objects."""
    return tuple(
        sorted(
            map(_sanitized, findings),
            key=lambda f: (
                SEVERITY_ORDER[f.severity],
                f.code not in _PROGRAM_CODES,
                -len(f.affects),
                f.code,
                f.summary,
            ),
        )
    )


def has_leader(findings: Iterable[Finding]) -> bool:
    """Whether a controller leads, by the findings of `rules.diagnose`."""
    return not any(finding.code in NO_LEADER_CODES for finding in findings)


def _sanitized(finding: Finding) -> Finding:
    """The finding with masked control characters and cut texts; commands are not cut."""
    cause, affects = (
        tuple(cut_bytes(make_printable(text), MAX_TEXT_BYTES) for text in texts)
        for texts in (finding.cause, finding.affects)
    )
    summary, fix = cut_bytes(make_printable(finding.summary), MAX_TEXT_BYTES), tuple(map(make_printable, finding.fix))
    return msgspec.structs.replace(finding, summary=summary, cause=cause, fix=fix, affects=affects)
