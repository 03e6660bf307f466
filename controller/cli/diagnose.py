"""`diagnose`: findings with cause, age, affected objects and fix; `why` is an alias."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, GOOD, STRONG, format_age
from controller.cluster.pods import Pod
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import Facts, build_facts
from controller.diagnosis.findings import CLUSTER_WIDE_CODES, Finding, has_leader
from controller.diagnosis.pod_diagnosis import PodDiagnosis, diagnose_pod
from kubekit.errors import ConfigError
from kubekit.text import join_first

MAX_AFFECTED_SHOWN = 4


class Diagnosis(msgspec.Struct, frozen=True, rename="camel"):
    """Findings and the time at which they were read (unix seconds); for a pod, its diagnosis and the findings that concern the pod."""

    read_at: float
    findings: tuple[Finding, ...]
    pod: PodDiagnosis | None = None


class DiagnoseCommand(Command):
    examples = (
        ("diagnose", "all findings, worst first"),
        ("diagnose pod cart-5d9f -n shop", "why this pod is pending"),
    )
    description = (
        "Findings with their causes and fixes, worst first. A finding covers its consequences: pods that wait for a controller "
        "that is down are not separate findings. With `pod NAME`: why that pod is pending, or where it is. "
        "With --prometheus, limits that are not enforced are added."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", nargs="?", choices=("pod",), help="diagnose one pod (default: the cluster)")
        parser.add_argument("name", nargs="?", metavar="NAME", help="name of the pod")
        parser.add_argument("--exit-code", action="store_true", help="exit with 3 if a finding is worse than info")

    async def run(self, session: Session, options: argparse.Namespace) -> Diagnosis:
        if options.kind and not options.name:
            raise ConfigError("pod", "has no name", "give it: diagnose pod NAME")
        pod = await session.read_pod(options.name) if options.name else None
        facts = build_facts(await session.read_snapshot(everything=True, all_namespaces=True), pod)
        findings = diagnose(facts)
        if pod is None:
            return Diagnosis(facts.now_s, findings)
        findings_of_pod = tuple(f for f in findings if f.code in CLUSTER_WIDE_CODES or pod.metadata.key in f.affects)
        return Diagnosis(facts.now_s, findings_of_pod, diagnose_listed_pod(pod, facts, findings))

    def render(self, answer: Diagnosis, options: argparse.Namespace, width: int) -> RenderableType:
        """The pod, then the findings."""
        parts: list[RenderableType] = []
        if answer.pod is not None:
            parts += render_pod(answer.pod, answer.read_at)
            if answer.findings:
                parts.append(Text())
        parts += render_findings(answer.findings, answer.read_at)
        if not parts:
            parts.append(Text("✓ nothing is wrong", style=GOOD))
        return Group(*parts)


def diagnose_listed_pod(pod: Pod, facts: Facts, findings: Iterable[Finding]) -> PodDiagnosis:
    """Diagnose a pod as ``facts`` have it, because they were read later than ``pod``."""
    listed_pod = next(other for other in facts.pods if other.metadata.key == pod.metadata.key)
    return diagnose_pod(listed_pod, facts, has_leader=has_leader(findings))


def render_pod(pod: PodDiagnosis, now_s: float) -> list[RenderableType]:
    """A pod's diagnosis as lines: summary with its age and remaining time, fixes."""
    headline = Text(pod.summary, style=STRONG)
    if pod.since is not None and pod.kind != "placed":
        headline.append(f"  for {format_age(now_s - pod.since)}", style=FAINT)
    if pod.until is not None and pod.until > now_s:
        headline.append(f", at most {format_age(pod.until - now_s)} more", style=FAINT)
    return [headline, *(_indent(f"fix: {fix}") for fix in pod.fix)]


def render_findings(findings: tuple[Finding, ...], now_s: float) -> list[RenderableType]:
    """Findings as lines: summary with its age and alert, causes, affected objects, fixes."""
    parts: list[RenderableType] = []
    for finding in findings:
        sign = "·" if finding.severity == "info" else "✗"
        style = BAD if finding.severity == "critical" else STRONG
        headline = Text.assemble((f"{sign} {finding.summary}", style))
        if finding.since is not None:
            headline.append(f"  for {format_age(now_s - finding.since)}", style=FAINT)
        if finding.alert:
            headline.append(f"  {finding.alert}", style=FAINT)
        parts.append(headline)
        parts += [_indent(f"cause: {cause}", FAINT) for cause in finding.cause]
        if finding.affects:
            parts.append(_indent(f"affects: {join_first(finding.affects, MAX_AFFECTED_SHOWN)}", FAINT))
        parts += [_indent(f"fix: {fix}") for fix in finding.fix]
    return parts


def _indent(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2))
