"""Which findings are news, and on which objects somebody would look for them. Pure but for its memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding
from kubekit.events import NOTE_LIMIT, cut
from kubekit.wire import split_key
from netperf.contract import AGENT, CONTROLLER, SCHEDULER

MOST_AT_ONCE = 20
"""So many objects are told of in one look, the worst first; the turn of others comes with the next."""
_SAID_BY_CONDITIONS = ("topology-", "spec-", "cycle", "no-consent", "costs-violated")
"""What an object's own condition says has an event when the condition changes (controller.cluster.status_writing)."""
_OF_PODS = ("pod-lost", "not-ours", "foreign-gate", "nobody-schedules", "gated-too-long", "no-node-")
_OF_PATHS = ("zones-unreachable", "pairs-unmeasured")
_OF_AGENTS = ("agents-gone", "zone-blind")
_MANY_OF_ONE = (*_OF_PATHS, "zone-blind")
"""Several such findings are about one object; each is told, and none hides the others."""
_LEAST_SAID = 200
_OF_SCHEDULERS = ("scheduler-down", "extender-down")

Kind = Literal["Pod", "AppGroup", "Node", "NetworkTopology", "Deployment", "DaemonSet"]


class About(NamedTuple):
    """An object; ``namespace`` is empty for a node."""

    kind: Kind
    namespace: str
    name: str


_Key = tuple[str, About, tuple[str, ...]]


class News(NamedTuple):
    """An event: ``reason`` in one word, ``note`` in a sentence with what ends it."""

    about: About
    reason: str
    note: str


class FindingNews:
    """Remembers what was found in the last look, and what of it was told.

    What is found once may be over with the next look, as everything that is just being started; found twice, it is told. What is
    over is forgotten, and told again when it comes back.
    """

    def __init__(self) -> None:
        self._told: dict[_Key, bool] = {}

    def of(self, findings: Iterable[Finding], facts: Facts) -> list[News]:
        """What to tell now.

        Args:
            findings: of one moment, the worst first.
            facts: of the same moment.
        """
        news: list[News] = []
        told: dict[_Key, bool] = {}
        for finding in findings:
            if not has_event(finding):
                continue
            for about in abouts(finding, facts):
                key = (finding.code, about, finding.hurts if finding.code in _MANY_OF_ONE else ())
                known = self._told.get(key)
                due = known is False and not told.get(key) and len(news) < MOST_AT_ONCE
                if due:
                    news.append(News(about, reason_of(finding.code), _note(finding)))
                told[key] = due or known is True or told.get(key, False)
        self._told = told
        return news


def has_event(finding: Finding) -> bool:
    """Whether it is told by an event of its own."""
    return finding.severity != "info" and not finding.code.startswith(_SAID_BY_CONDITIONS)


def abouts(finding: Finding, facts: Facts) -> list[About]:
    """The objects that a finding is about; of our own programs, what makes their pods."""
    code, home = finding.code, facts.home
    if code.startswith(_OF_PODS):
        return [About("Pod", *split_key(key)) for key in finding.hurts]
    if code == "members-missing":
        return [About("AppGroup", *split_key(key)) for key in finding.hurts]
    if code == "agents-down":
        return [About("Node", "", name) for name in finding.hurts]
    if code in _OF_AGENTS:
        return [About("DaemonSet", home, AGENT)]
    if code in _OF_PATHS and facts.topologies:
        return [About("NetworkTopology", *split_key(min(facts.topologies)))]
    return [About("Deployment", home, SCHEDULER if code in _OF_SCHEDULERS else CONTROLLER)]


def reason_of(code: str) -> str:
    """A finding's code as the reason of an event: ``no-node-room`` is ``NoNodeRoom``."""
    return "".join(part[:1].upper() + part[1:] for part in code.split("-"))


def _note(finding: Finding) -> str:
    """What fits into an event; a command is there as a whole or not at all, since its half might do something else."""
    because = f", because {'; '.join(finding.because)}" if finding.because else ""
    said, do = f"{finding.what}{because}", f". Do: {finding.do[-1]}" if finding.do else ""
    room = NOTE_LIMIT - len(do.encode())
    return cut(said, room) + do if room >= _LEAST_SAID else cut(said, NOTE_LIMIT)
