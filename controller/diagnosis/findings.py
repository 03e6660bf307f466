"""Types of findings, their order and limits, and the fix that several of them share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec

from kubekit.text import cut_bytes, make_printable

Severity = Literal["critical", "warning", "info"]
EventScope = Literal["pod", "appgroup", "node", "zones", "cluster", "condition"]
"""Objects that get an event about a finding:

- ``pod``, ``appgroup``, ``node``: the affected objects;
- ``zones``: the first NetworkTopology by name, one event for each set of affected zones;
- ``cluster``: the first NetworkTopology by name, one event;
- ``condition``: none, because the change of the condition has an event.
"""
NO_LEADER_CODES = frozenset({"controller-down", "no-leader"})
"""Codes of findings that imply that no controller leads."""
_PROGRAM_CODES = NO_LEADER_CODES | {"scheduler-down", "extender-down"}
CLUSTER_WIDE_CODES = _PROGRAM_CODES | {"not-installed", "no-agents", "no-plan", "no-topology"}
"""Codes of findings that may affect any object, not only those in ``affects``."""
_HELM_UPGRADE = "helm upgrade netaware dist/netaware -n netaware-system --reset-then-reuse-values"
# `manifests/overlays` would replace the images by names without registry and tag.
APPLY_AGAIN = (
    f"use Helm instead of the next command, if Helm installed netaware: {_HELM_UPGRADE}",
    "kubectl apply --server-side --force-conflicts -k dist/overlay",
)
"""The fix that restores netaware's objects."""
MAX_AFFECTED = 20
"""At most this many affected objects are listed in a finding of `diagnose`."""
MAX_CAUSES = 3
"""At most this many objects are listed as causes of a finding."""
MAX_TEXT_BYTES = 1024
"""Longest summary, cause, or name of an affected object, in UTF-8."""
SEVERITY_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


class Finding(msgspec.Struct, frozen=True):
    """A problem of the cluster.

    Attributes:
        code: short and stable, for programs.
        severity: ``critical`` (netaware does not work), ``warning`` (netaware works less well) or ``info`` (worth a look).
        summary: the problem in one sentence.
        cause: the causes, in sentences; if one causes another, the root cause is last.
        since: start of the problem, unix seconds; None if unknown.
        affects: affected objects, as ``namespace/name``, names of nodes and zones, or pairs of zones as ``z1 to z2``.
        fix: commands or instructions, the last of which fixes the problem. Words in capitals (``ZONE``) are placeholders.
        alert: name of the alert about the same problem, which is also a section of the runbook; empty without an alert.
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
    """Sort by severity, worst first; then outages of netaware's programs, then those that affect most objects; then by code and summary."""

    def sort_key(finding: Finding) -> tuple[int, bool, int, str, str]:
        is_about_program = finding.code in _PROGRAM_CODES
        severity = SEVERITY_ORDER[finding.severity]
        return severity, not is_about_program, -len(finding.affects), finding.code, finding.summary

    return tuple(sorted(findings, key=sort_key))


def has_leader(findings: Iterable[Finding]) -> bool:
    """Whether a controller leads, by the findings of `diagnose`."""
    return not any(finding.code in NO_LEADER_CODES for finding in findings)


def sanitize(finding: Finding) -> Finding:
    """The finding with the first `MAX_AFFECTED` objects, control characters replaced and long texts cut; commands are not cut."""

    def clean(text: str) -> str:
        return cut_bytes(make_printable(text), MAX_TEXT_BYTES)

    cause, affects = tuple(map(clean, finding.cause)), tuple(map(clean, finding.affects[:MAX_AFFECTED]))
    fix = tuple(map(make_printable, finding.fix))
    return msgspec.structs.replace(finding, summary=clean(finding.summary), cause=cause, affects=affects, fix=fix)
