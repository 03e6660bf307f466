"""Names that the project gave up are in no identifier, setting, metric, document or manifest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.unit.manifests.metric_names import ROOT

FOLDERS = ("kubekit", "netperf", "agent", "controller", "lab", "tests", "manifests", "docs")
# Identifiers, and words of identifiers in CamelCase; without ordinary words, such as take, level, look, plan and tell.
RETIRED_IDENTIFIERS = frozenset(
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
# They have a retired word in another meaning.
LEGITIMATE_NAMES = {"LeaderElector"}
STRING_OR_COMMENT = re.compile(r'""".*?"""|"[^"\n]*"|/\*.*?\*/|(?:#|//)[^\n]*', re.DOTALL)
RETIRED_SETTING_OR_METRIC = re.compile(
    r"\b(settleS|mostPods\w*|absentWaitS|dependantsWeigh|acceptDoubts|judge[ds]?S|lostS|movedPodRestS|trustWindowS|judgedMoves|least\w+Percent|netaware_mirror\w*|netaware_plans?_\w+"
    r"|netaware_probe_doubts\w*|netaware_\w+_sample_age_seconds|netaware_node_network_\w+_bytes_per_second)\b"
)


def list_tracked_files(*patterns: str) -> list[Path]:
    output = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in output.split() if (path := ROOT / name).exists()]


def find_names(path: Path) -> set[str]:
    """A file's name, its identifiers without leading underscore, and the words of identifiers in CamelCase."""
    code = STRING_OR_COMMENT.sub(" ", path.read_text())
    names = {path.stem, *re.findall(r"[A-Za-z]\w*", code)}
    return names | {word for name in names - LEGITIMATE_NAMES for word in re.findall("[A-Z][a-z]+", name)}


def test_no_identifier_has_a_retired_name() -> None:
    files = list_tracked_files("*.py", "*.c", "*.h", "*.js")
    sources = [path for path in files if path.relative_to(ROOT).parts[0] in FOLDERS]
    assert len(sources) > 500
    assert [(path.name, name) for path in sources for name in RETIRED_IDENTIFIERS & find_names(path)] == []


def test_no_document_or_manifest_has_a_retired_setting_or_metric() -> None:
    files = set(list_tracked_files("*.py", "*.yaml", "*.json", "*.js", "*.md", "*.tpl")) - {Path(__file__)}
    retired_names_by_file = {path.name: RETIRED_SETTING_OR_METRIC.findall(path.read_text()) for path in files}
    assert {name: retired_names for name, retired_names in retired_names_by_file.items() if retired_names} == {}
