"""`diagnose`: what is wrong, its cause, since when, what it affects, and what fixes it; `why` is an alias."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import NotFoundError, Session
from controller.cli.shared import pod_diagnosis, read_facts_of
from controller.cli.style import BAD, FAINT, GOOD, STRONG, age
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import STOPS_ALL, Finding
from controller.diagnosis.pods import PodDiagnosis
from controller.diagnosis.rules import diagnose

SHOWN_AFFECTED = 4
SHOWN_NAMES = 8


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer; ``at`` is unix seconds, ``pod`` the verdict on the pod that was asked about."""

    at: float
    findings: tuple[Finding, ...]
    pod: PodDiagnosis | None = None


class Diagnose(Command):
    """See `controller.cli.command.Command`."""

    name = "diagnose"
    examples = (
        ("diagnose", "what is wrong, worst first"),
        ("diagnose pod cart-5d9f -n shop", "why this pod is pending"),
        ("diagnose zone eu-1a", "findings about one zone"),
    )
    description = (
        "Findings with their causes, worst first, each with commands to paste. A finding covers its consequences: one "
        "for a controller that is down, not one for each pod that waits for it. With `pod NAME`: why that pod is pending, or "
        "where it is. With --prometheus, limits that are not enforced and firing alerts are added."
    )
    completes = "pods"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", nargs="?", choices=("pod", "appgroup", "zone", "node"), help="about what (all)")
        parser.add_argument("name", nargs="?", metavar="NAME", help="its name")

    async def ask(self, session: Session, options: argparse.Namespace) -> Diagnosis:
        """Read everything and diagnose it."""
        namespace = session.namespace or "default"
        pod = await session.pod(options.name) if options.kind == "pod" and options.name else None
        await session.ask_controllers()
        facts = await read_facts_of(session, pod)
        found = about(options.kind, options.name, namespace, facts) if options.name else diagnose(facts)
        return Diagnosis(facts.now, found, pod_diagnosis(pod, facts))

    def show(self, answer: Diagnosis, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The verdict, then the findings."""
        parts: list[RenderableType] = []
        if answer.pod is not None:
            parts += describe_verdict(answer.pod, answer.at)
            if answer.findings:
                parts.append(Text())
        parts += describe(answer.findings, answer.at)
        if not parts:
            parts.append(Text("✓ nothing is wrong", style=GOOD))
        return Group(*parts)

    def is_bad(self, answer: Diagnosis) -> bool:
        """Something is wrong that is more than a remark."""
        return any(finding.severity != "info" for finding in answer.findings)


def describe_verdict(verdict: PodDiagnosis, at: float) -> list[RenderableType]:
    """Why a pod waits, for a person."""
    head = Text(verdict.summary, style=STRONG)
    if verdict.since is not None and verdict.kind != "placed":
        head.append(f"  for {age(at - verdict.since)}", style=FAINT)
    if verdict.until is not None and verdict.until > at:
        head.append(f", at most {age(verdict.until - at)} more", style=FAINT)
    return [head, *_commands(verdict.fix)]


def describe(findings: tuple[Finding, ...], at: float) -> list[RenderableType]:
    """Findings for a person: summary, cause, what is affected, fix."""
    parts: list[RenderableType] = []
    for finding in findings:
        sign = "·" if finding.severity == "info" else "✗"
        head = Text.assemble((f"{sign} {finding.summary}", BAD if finding.severity == "critical" else STRONG))
        if finding.since is not None:
            head.append(f"  for {age(at - finding.since)}", style=FAINT)
        if finding.alert:
            head.append(f"  {finding.alert}{' firing' if finding.firing else ''}", style=FAINT)
        parts.append(head)
        parts += [Padding(Text(f"cause: {cause}", style=FAINT), (0, 0, 0, 2)) for cause in finding.cause]
        if finding.affects:
            more = f" and {len(finding.affects) - SHOWN_AFFECTED} more" if len(finding.affects) > SHOWN_AFFECTED else ""
            text = f"affects: {', '.join(finding.affects[:SHOWN_AFFECTED])}{more}"
            parts.append(Padding(Text(text, style=FAINT), (0, 0, 0, 2)))
        parts += _commands(finding.fix)
    return parts


def _commands(commands: tuple[str, ...]) -> list[RenderableType]:
    return [Padding(Text(f"fix: {command}"), (0, 0, 0, 2)) for command in commands]


def about(kind: str, name: str, namespace: str, facts: Facts) -> tuple[Finding, ...]:
    """Findings that stop everything, and findings about one thing. Pure.

    Raises:
        NotFoundError: there is no such AppGroup, zone or node: a typo must not read as health.
    """
    found = diagnose(facts)
    names = {f"{namespace}/{name}"} if kind == "pod" else _names_of(kind, name, namespace, facts)
    return tuple(f for f in found if f.code in STOPS_ALL or _touches(f, names))


def _names_of(kind: str, name: str, namespace: str, facts: Facts) -> set[str]:
    """Names by which findings call a thing and what belongs to it: an AppGroup's pods, a zone's nodes, a node's zone."""
    zones = {node: known.zone for node, known in facts.nodes.items()}
    if kind == "appgroup":
        key = f"{namespace}/{name}"
        there = [group.metadata.key for group in facts.groups]
        # Pods of no group count by the name on their label.
        pods = {pod.key for pod in facts.pods if key == (pod.group_key or f"{pod.namespace}/{pod.group}")}
        names, known = {key} | pods, key in there or bool(pods)
    elif kind == "zone":
        there = [zone for zone in zones.values() if zone]
        names, known = {name} | {node for node, zone in zones.items() if zone == name}, name in there
    else:
        there = list(zones)
        names, known = {name, zones.get(name, "")} - {""}, name in there
    if not known:
        msg = f"there is no {kind} {name!r}; there are: {', '.join(sorted(set(there))[:SHOWN_NAMES]) or 'none'}"
        raise NotFoundError(msg)
    return names


def _touches(finding: Finding, names: set[str]) -> bool:
    # A pair of zones is called "z1 to z3".
    return any(names.intersection((name, *name.split(" to "))) for name in finding.affects)
