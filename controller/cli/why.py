"""`why`: what is wrong, because of what, since when, whom it hurts, and what to do."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from controller.cli.command import Command, Table
from controller.cli.looking import look_around, verdict_on
from controller.cli.session import NotFoundError, Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, age
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import STOPS_ALL, Finding
from controller.diagnosis.pods import PodVerdict
from controller.diagnosis.rules import diagnose

SHOWN_HURT = 4
SHOWN_NAMES = 8


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer; ``at`` is unix seconds, ``pod`` the verdict on the pod that was asked about."""

    at: float
    findings: tuple[Finding, ...]
    pod: PodVerdict | None = None


class Why(Command):
    """See `controller.cli.command.Command`."""

    name = "why"
    examples = (
        ("why", "what is wrong, worst first"),
        ("why pod cart-5d9f -n shop", "why this pod is pending"),
        ("why zone eu-1a", "what of it is about one zone"),
        ("why -w", "go on and show what changes"),
    )
    description = (
        "Findings with their causes, worst first, each with commands to paste. A cause swallows its consequences: one finding "
        "for a controller that is down, not one for each pod that waits for it. With `pod NAME`: why that pod is pending, or "
        "where it is."
    )
    completes = "pods"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", nargs="?", choices=("pod", "appgroup", "zone", "node"), help="about what (all)")
        parser.add_argument("name", nargs="?", metavar="NAME", help="its name")

    async def ask(self, session: Session, options: argparse.Namespace) -> Diagnosis:
        """Read everything and judge it."""
        namespace = session.namespace or "default"
        pod = await session.pod(options.name) if options.kind == "pod" and options.name else None
        await session.ask_controllers()
        at, facts = await look_around(session, pod)
        found = about(options.kind, options.name, namespace, facts) if options.name else diagnose(facts)
        return Diagnosis(at, found, verdict_on(pod, facts))

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

    def rows(self, answer: Diagnosis, options: argparse.Namespace) -> Table:  # noqa: ARG002
        """The findings."""
        header = ("code", "severity", "what", "because", "since", "hurts", "do", "alert")
        return header, [
            (f.code, f.severity, f.what, "; ".join(f.because), f.since, " ".join(f.hurts), "; ".join(f.do), f.alert)
            for f in answer.findings
        ]

    def is_bad(self, answer: Diagnosis) -> bool:
        """Something is wrong that is more than a remark."""
        return any(finding.severity != "info" for finding in answer.findings)


def describe_verdict(verdict: PodVerdict, at: float) -> list[RenderableType]:
    """Why a pod waits, for a person."""
    head = Text(verdict.what, style=STRONG)
    if verdict.since is not None and verdict.kind != "placed":
        head.append(f"  for {age(at - verdict.since)}", style=FAINT)
    if verdict.until is not None and verdict.until > at:
        head.append(f", at most {age(verdict.until - at)} more", style=FAINT)
    return [head, *_commands(verdict.do)]


def describe(findings: tuple[Finding, ...], at: float) -> list[RenderableType]:
    """Findings for a person: what, because, whom it hurts, do."""
    parts: list[RenderableType] = []
    for finding in findings:
        sign = "·" if finding.severity == "info" else "✗"
        head = Text.assemble((f"{sign} {finding.what}", BAD if finding.severity == "critical" else STRONG))
        if finding.since is not None:
            head.append(f"  for {age(at - finding.since)}", style=FAINT)
        if finding.alert:
            head.append(f"  {finding.alert}", style=FAINT)
        parts.append(head)
        parts += [Padding(Text(f"because {cause}", style=FAINT), (0, 0, 0, 2)) for cause in finding.because]
        if finding.hurts:
            more = f" and {len(finding.hurts) - SHOWN_HURT} more" if len(finding.hurts) > SHOWN_HURT else ""
            text = f"hurts {', '.join(finding.hurts[:SHOWN_HURT])}{more}"
            parts.append(Padding(Text(text, style=FAINT), (0, 0, 0, 2)))
        parts += _commands(finding.do)
    return parts


def _commands(commands: tuple[str, ...]) -> list[RenderableType]:
    return [Padding(Text(f"do: {command}"), (0, 0, 0, 2)) for command in commands]


def about(kind: str, name: str, namespace: str, facts: Facts) -> tuple[Finding, ...]:
    """What stops everything, and what touches one thing. Pure.

    Raises:
        NotFoundError: there is no such AppGroup, zone or node: a typo must not read as health.
    """
    found = diagnose(facts)
    names = {f"{namespace}/{name}"} if kind == "pod" else _names_of(kind, name, namespace, facts)
    return tuple(f for f in found if f.code in STOPS_ALL or _touches(f, names))


def _names_of(kind: str, name: str, namespace: str, facts: Facts) -> set[str]:
    """By which names findings call a thing or what belongs to it: an AppGroup's pods, a zone's nodes, a node's zone."""
    zones = {node: known.zone for node, known in facts.nodes.items()}
    if kind == "appgroup":
        key = f"{namespace}/{name}"
        there = [group.metadata.key for group in facts.groups]
        # Pods of no group are told of by the name that their label gives it.
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
    return any(names.intersection((hurt, *hurt.split(" to "))) for hurt in finding.hurts)
