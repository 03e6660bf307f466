"""Retired names are in no identifier and no part of a class name; retired settings and metrics are in no document or manifest."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.unit.manifests.metric_names import ROOT

PACKAGES = ("kubekit", "netperf", "agent", "controller", "lab", "tests", "manifests", "docs")
# Ordinary English words, such as take, level, look, plan and tell, are not checked.
IDENTIFIERS = frozenset(
    re.findall(
        r"\w+",
        """
        WaitedInVainError Breath LoopWatch Mirror UNREADABLE keep_memory outlive Elector Leadership Lanes Belief Doubt held_us PodWish
        KernelState Unlimit Enforcer BetweenRuns Answering Fleet Room unloved seat_of take_heat first_unborne is_choosy draw_map torn
        AskedPod SchedulingController Assumed StandingPlan GroupOutlook place_anew Alike HURRIED Demand Standing Bond Weighing Sharing Stock
        Fare Deliveries TrafficKeeper FrontDoor Conclusion Surroundings Obstacle Heir Tried Thought Foresight shunned_by Deliberation
        deliberate Followed Watched VainSearch UsageBook Trust Guard Teller held_ratio held_ns WITNESS_RANK judgements MirrorMetrics
        settle_memory BREATH_S Ledger PodEnd NotYamlError PodVerdict PlanVerdict ZoneVerdicts Judgement EdgeJudgement judge judge_edge
        judge_pod PairTally take_live take_ended take_namespace own_index in_force GroupPod GroupPodSpec GroupPodStatus LowNodeLoadRound
        MisplacementRound UnconfirmedRound RoundDecision RoundPlan RoundReporter RoundState SecretSource PodTopologyConstraints StuckPods
        TargetFinder GroupQueue CachedAttachment CandidateLine PeerLine DependencyCost DeviceCount KernelCount GroupFacts LeftOut
        LimitEgress LimitIngress RecordedEvents RemoveDevice ReplacementTarget RunQueueTime TableState TooLargeError ZonePairCost OneWay
        PodContainer CompiledProblem made_up
        """,
    )
)
WORDS_OF_OTHER_MEANING = {"LeaderElector", "RolloutRoom"}
TEXTS = re.compile(
    r"\b(settleS|mostPods\w*|absentWaitS|dependantsWeigh|acceptDoubts|judge[ds]?S|lostS|movedPodRestS|trustWindowS|judgedMoves|least\w+Percent|netaware_mirror\w*|netaware_plans?_\w+"
    r"|netaware_probe_doubts\w*|netaware_\w+_sample_age_seconds|netaware_node_network_\w+_bytes_per_second)\b"
)


def tracked_files(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split() if (path := ROOT / name).exists()]


def identifiers_and_words(path: Path) -> Iterator[str]:
    """Identifiers of a file, and the words in its class names."""
    for name in identifiers(path):
        yield name
        yield from re.findall("[A-Z][a-z]+", name) if name not in WORDS_OF_OTHER_MEANING else ()


def identifiers(path: Path) -> Iterator[str]:
    yield path.stem
    if path.suffix != ".py":
        yield from re.findall(r"[A-Za-z]\w*", path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("name", "id", "attr", "arg", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                yield from (part.lstrip("_") for part in name.split("."))


def test_no_identifier_has_a_retired_name() -> None:
    modules = [
        path for path in tracked_files("*.py", "*.c", "*.h", "*.js") if path.relative_to(ROOT).parts[0] in PACKAGES
    ]
    assert len(modules) > 500
    assert [
        (path.name, name) for path in modules for name in IDENTIFIERS.intersection(identifiers_and_words(path))
    ] == []


def test_no_document_or_manifest_has_a_retired_setting_or_metric() -> None:
    texts = [
        path for path in tracked_files("*.py", "*.yaml", "*.json", "*.js", "*.md", "*.tpl") if path != Path(__file__)
    ]
    assert [(path.name, name) for path in texts for name in sorted(set(TEXTS.findall(path.read_text())))] == []
