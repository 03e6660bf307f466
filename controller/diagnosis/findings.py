"""The type of a finding, and the order of findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kubekit.text import cut, printable

Severity = Literal["critical", "warning", "info"]
LEADERLESS = frozenset({"controller-down", "no-leader"})
"""Findings that say that no controller leads."""
_CENTRAL = LEADERLESS | {"scheduler-down", "extender-down"}
STOPS_ALL = _CENTRAL | {"not-installed", "no-agents", "no-plan", "no-topology"}
"""Findings that concern every pod, group, zone and node."""
APPLY_AGAIN = (
    "let Helm do it instead, if Helm installed netaware: helm upgrade netaware dist/netaware -n netaware-system --reset-then-reuse-values",
    "kubectl apply --server-side --force-conflicts -k dist/overlay",
)
"""Applies what was installed; `manifests/overlays` alone would replace its images by names without registry and tag."""
MAX_AFFECTED = 20
"""At most this many affected objects are named."""
LONGEST = 1024
"""Bytes of a summary, cause or name."""
RANK: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        code: short and stable, for programs and tests.
        severity: critical (the product does not do its work), warning (the product works less well), info.
        summary: what is wrong, in one sentence.
        cause: the chain of causes, the nearest first; the last one is the root cause.
        since: unix seconds; None if unknown.
        affects: what is affected, as ``namespace/name`` or names of nodes and zones.
        fix: commands to paste, or what to change: first where to look, last what ends it. Words in capitals (``ZONE``) are a choice.
        alert: the alert of the same state, and the section of the runbook; empty without one.
    """

    code: str
    severity: Severity
    summary: str
    cause: tuple[str, ...] = ()
    since: float | None = None
    affects: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    alert: str = ""


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first; of equal severity first our own central programs, then the findings that affect most objects."""
    return tuple(
        sorted(
            map(_plain, findings),
            key=lambda f: (RANK[f.severity], f.code not in _CENTRAL, -len(f.affects), f.code, f.summary),
        )
    )


def has_leader(findings: Iterable[Finding]) -> bool:
    """Whether some controller leads, as far as the findings of `rules.diagnose` tell."""
    return not any(finding.code in LEADERLESS for finding in findings)


def _plain(finding: Finding) -> Finding:
    """The finding with masked control characters; commands are whole or omitted."""
    cause, affects = (
        tuple(cut(printable(text), LONGEST) for text in texts) for texts in (finding.cause, finding.affects)
    )
    summary, fix = cut(printable(finding.summary), LONGEST), tuple(map(printable, finding.fix))
    return msgspec.structs.replace(finding, summary=summary, cause=cause, fix=fix, affects=affects)
