"""`diagnose`: findings with cause, since when, what they affect, and what fixes them; `why` is an alias."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.shared import pod_diagnosis, read_facts_of
from controller.cli.style import BAD, FAINT, GOOD, STRONG, age
from controller.diagnosis.findings import CLUSTER_WIDE, Finding
from controller.diagnosis.pods import PodDiagnosis
from controller.diagnosis.rules import diagnose

MAX_AFFECTED = 4


class Diagnosis(msgspec.Struct, frozen=True):
    """Findings, and the diagnosis of the chosen pod; ``at`` is unix seconds."""

    at: float
    findings: tuple[Finding, ...]
    pod: PodDiagnosis | None = None


class DiagnoseCommand(Command):
    """See `controller.cli.command.Command`."""

    examples = (
        ("diagnose", "what is wrong, worst first"),
        ("diagnose pod cart-5d9f -n shop", "why this pod is pending"),
    )
    description = (
        "Findings with their causes, worst first, each with commands to paste. A finding covers its consequences: one "
        "for a controller that is down, not one for each pod that waits for it. With `pod NAME`: why that pod is pending, or "
        "where it is. With --prometheus, limits that are not enforced are added."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("kind", nargs="?", choices=("pod",), help="about one pod (default: all findings)")
        parser.add_argument("name", nargs="?", metavar="NAME", help="its name")
        parser.add_argument("--exit-code", action="store_true", help="exit 3 when there are findings")

    async def run(self, session: Session, options: argparse.Namespace) -> Diagnosis:
        """Read everything and diagnose it."""
        pod = await session.pod(options.name) if options.name else None
        facts = await read_facts_of(session, pod)
        findings = diagnose(facts)
        if pod is None:
            return Diagnosis(facts.now, findings)
        key, diagnosis = pod.metadata.key, pod_diagnosis(pod, facts, findings)
        of_pod = tuple(f for f in findings if f.code in CLUSTER_WIDE or key in f.affects)
        return Diagnosis(facts.now, of_pod, diagnosis)

    def render(self, answer: Diagnosis, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The pod, then the findings."""
        parts: list[RenderableType] = []
        if answer.pod is not None:
            parts += describe_pod(answer.pod, answer.at)
            if answer.findings:
                parts.append(Text())
        parts += describe(answer.findings, answer.at)
        if not parts:
            parts.append(Text("✓ nothing is wrong", style=GOOD))
        return Group(*parts)

    def has_findings(self, answer: Diagnosis) -> bool:
        """Whether any finding is more severe than info."""
        return any(finding.severity != "info" for finding in answer.findings)


def describe_pod(pod: PodDiagnosis, at: float) -> list[RenderableType]:
    """The diagnosis of a pod as text."""
    head = Text(pod.summary, style=STRONG)
    if pod.since is not None and pod.kind != "placed":
        head.append(f"  for {age(at - pod.since)}", style=FAINT)
    if pod.until is not None and pod.until > at:
        head.append(f", at most {age(pod.until - at)} more", style=FAINT)
    return [head, *_commands(pod.fix)]


def describe(findings: tuple[Finding, ...], at: float) -> list[RenderableType]:
    """Findings as text: summary, cause, affected objects, fix."""
    parts: list[RenderableType] = []
    for finding in findings:
        sign = "·" if finding.severity == "info" else "✗"
        head = Text.assemble((f"{sign} {finding.summary}", BAD if finding.severity == "critical" else STRONG))
        if finding.since is not None:
            head.append(f"  for {age(at - finding.since)}", style=FAINT)
        if finding.alert:
            head.append(f"  {finding.alert}", style=FAINT)
        parts.append(head)
        parts += [Padding(Text(f"cause: {cause}", style=FAINT), (0, 0, 0, 2)) for cause in finding.cause]
        if finding.affects:
            more = f" and {len(finding.affects) - MAX_AFFECTED} more" if len(finding.affects) > MAX_AFFECTED else ""
            text = f"affects: {', '.join(finding.affects[:MAX_AFFECTED])}{more}"
            parts.append(Padding(Text(text, style=FAINT), (0, 0, 0, 2)))
        parts += _commands(finding.fix)
    return parts


def _commands(commands: tuple[str, ...]) -> list[RenderableType]:
    return [Padding(Text(f"fix: {command}"), (0, 0, 0, 2)) for command in commands]
