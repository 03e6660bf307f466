"""Findings of given facts: the root cause of each broken situation, its fix, and situations without findings."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from agent.probing.results_writer import GATHER_S
from controller.cluster.pods import PodSpec, Toleration
from controller.diagnosis.cluster_views import AgentView
from controller.diagnosis.control_plane import LeaseStatus, ProgramPod, ProgramPodObject, build_program_pods
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import Facts, NodeFact, PodFact
from controller.diagnosis.findings import MAX_AFFECTED
from kubekit.wire import Condition, Taint, format_time
from netperf.contract import NAME_LABEL
from netperf.results import refresh_interval_s
from tests.unit.controller.cluster_facts import (
    CORDONED,
    GATED,
    NOW_S,
    OWNER,
    READY,
    SCHEDULER,
    SILENT,
    TAINTED,
    make_agents,
    make_condition,
    make_control_plane,
    make_facts,
    make_gated_pods,
    make_group,
    make_network,
    make_pod_fact,
    make_stuck_facts,
    make_topology_facts,
    make_unready,
    make_unschedulable,
    remove_pods,
)
from tests.unit.controller.situations import SITUATIONS, Situation

READING_VERBS = {"get", "describe", "logs", "netaware", "status"}
CHANGING_VERBS = {"apply", "restart", "undo", "scale", "delete", "label", "uncordon", "patch", "edit"}
INSTRUCTION_VERBS = {"open", "correct", "set", "ask", "add", "raise", "lower", "look", "let", "use"}
"""First words of fixes that are not commands."""
COSTS_NOT_MET, FAR_COSTS_NOT_MET = (
    make_condition("CostsMet", "False", "CostsExceeded", f"front to cart costs 40, at most 5 ({zones})")
    for zones in ("z0 to z1", "z10 to z2")
)
UNSCHEDULABLE = make_unschedulable("0/4 nodes are available: 4 Insufficient cpu.")
MANY_UNSCHEDULABLE = [make_pod_fact(f"front-{i}", scheduled=UNSCHEDULABLE) for i in range(MAX_AFFECTED)]
BY_AFFINITY = make_pod_fact("front-2", scheduler="default-scheduler", node="n2", needs_no_extender=True)
MANY_SILENT = tuple(
    AgentView(node=f"n{i}", zone=f"z{i:02}", state="down", reason="gone") for i in range(2 * MAX_AFFECTED)
)
NINE_DOWN = tuple(AgentView(node=f"m{i}", zone="z9", state="down", reason="gone") for i in range(9))
QUEUED = tuple(make_pod_fact(name, created_s=NOW_S - ago_s) for name, ago_s in (("new", 5), ("old", 60)))
RENAMED: dict[str, Any] = {"node": "n1", "owner": OWNER, "workload": "renamed", "created_s": NOW_S - 900}
NEW: dict[str, Any] = {"owner": OWNER, "created_s": NOW_S - 5}
ALL_CORDONED = "0/4 nodes are available: 4 node(s) were unschedulable."
LABELLED_CORDONED = {name: NodeFact({"name": name}, node.taints, node.zone) for name, node in CORDONED.items()}


def make_outlier_facts(ago_s: float) -> Facts:
    return make_topology_facts("OutlierNodes", "True", "NodesContradicted", "ignored: n2", ago_s=ago_s)


def make_unmeasured_facts(ago_s: float) -> Facts:
    absent = make_network(absent=(("z0", "z1"),))
    return make_topology_facts("Measured", "False", "PairsAbsent", "none", ago_s=ago_s, network=absent)


def make_case(case_id: str, codes: list[str], *pods: PodFact, **fields: Any) -> Any:
    """A healthy cluster with these pods, except for these fields of its facts, and the codes of its findings."""
    return pytest.param(make_facts(pods=pods, **fields), codes, id=case_id)


CASES = [
    make_case(
        "a running pod and a new one",
        [],
        make_pod_fact(node="n1", phase="Running"),
        make_pod_fact("new", created_s=NOW_S - 2),
    ),
    make_case(
        "objects that cannot be read are not absent",
        [],
        control_plane=make_control_plane(pods=None, lease=None, is_lease_conclusive=False),
    ),
    make_case(
        "a pod with a wrong workload label that a rollout replaces",
        [],
        make_pod_fact("old", **RENAMED),
        make_pod_fact("new", **NEW),
    ),
    make_case(
        "terminating and finished pods with a wrong workload label",
        [],
        make_pod_fact("gone", is_terminating=True, **RENAMED),
        make_pod_fact("over", phase="Succeeded", **RENAMED),
    ),
    make_case("an excluded node", [], agents=make_agents(n3={"state": "excluded", "newest_at": None})),
    make_case("a pod placed by affinity with another scheduler", [], make_pod_fact(node="n1"), BY_AFFINITY),
    make_case("an overlay without a scheduler", [], control_plane=remove_pods("scheduler", "extender")),
    make_case(
        "a pod that names the missing scheduler",
        ["scheduler-down"],
        make_pod_fact(created_s=NOW_S - 300),
        control_plane=remove_pods("scheduler"),
    ),
    make_case(
        "an unreachable pair by its results", ["zones-unreachable"], network=make_network(unreachable=(("z0", "z1"),))
    ),
    make_case(
        "more zones without agents than a finding lists",
        ["no-agents"],
        agents=MANY_SILENT,
        network=make_network(absent=(("z38", "z39"),)),
    ),
    pytest.param(make_outlier_facts(470.0), [], id="an outlier before the next probe of its pair"),
    pytest.param(
        make_outlier_facts(490.0), ["topology-NodesContradicted"], id="an outlier after the next probe of its pair"
    ),
    pytest.param(make_unmeasured_facts(170.0), [], id="an absent pair in the first rounds"),
    pytest.param(make_unmeasured_facts(190.0), ["pairs-unmeasured"], id="an absent pair after the first rounds"),
    make_case(
        "gated pods behind more unschedulable pods than a finding lists",
        ["no-node-capacity"],
        *MANY_UNSCHEDULABLE,
        *make_gated_pods(workload="cart"),
    ),
    make_case("pods gated for less than maxWaitS", [], *make_gated_pods(created_s=NOW_S - 700), max_gate_wait_s=1200.0),
    make_case(
        "untried pods if all schedulers call the extender",
        ["no-scheduler"],
        *QUEUED,
        make_pod_fact("other", node="n1", scheduler="another"),
        scheduler_names=(),
    ),
    make_case(
        "a number of any length in a message",
        ["no-node-capacity"],
        make_pod_fact(scheduled=make_unschedulable(f"0/4 nodes are available: {'9' * 5000} Insufficient cpu.")),
    ),
    make_case("an untried pod within the time of an attempt", [], make_pod_fact(created_s=NOW_S - 19)),
    make_case("an untried pod after the time of an attempt", ["no-scheduler"], make_pod_fact(created_s=NOW_S - 21)),
    make_case("a pod whose gate has opened", [], make_pod_fact(scheduled=GATED, created_s=NOW_S - 2)),
    make_case(
        "a pod that is not tried after its gate has opened",
        ["no-scheduler"],
        make_pod_fact(scheduled=GATED, created_s=NOW_S - 300),
    ),
    make_case(
        "violated costs between zones without agents",
        ["zone-without-agent"],
        groups=(make_group([COSTS_NOT_MET]),),
        agents=make_agents(n1=SILENT, n3=SILENT),
    ),
    make_case(
        "violated costs between other zones",
        ["zone-without-agent", "costs-violated"],
        groups=(make_group([FAR_COSTS_NOT_MET]),),
        agents=make_agents(n1=SILENT, n3=SILENT),
    ),
    make_case(
        "the words of Kubernetes 1.36 for a volume in another zone",
        ["no-node-volume"],
        make_pod_fact(
            scheduled=make_unschedulable(
                "0/4 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity."
            )
        ),
    ),
    make_case(
        "the pod's own selector counts last",
        ["no-node-max-cost"],
        make_pod_fact(
            scheduled=make_unschedulable(
                "0/8 nodes are available: 2 Node n0 does not meet several network requirements, "
                "6 node(s) didn't match Pod's node affinity/selector."
            )
        ),
    ),
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.code)
def test_the_first_finding_is_the_root_cause_and_has_a_fix(situation: Situation) -> None:
    first, *others = diagnose(situation.facts)
    assert first.code == situation.code
    assert any(situation.fix in line for line in first.fix), first.fix
    for finding in others:
        assert finding.severity == "info", f"{finding.code} follows from {first.code}, or is a cause of its own"
    # The last line must change something; tests/e2e/test_fix_commands_of_programs.py shows that it fixes the problem.
    words = [word for word in first.fix[-1].split() if not word.startswith("-")]
    verb = next(word for word in words if word in INSTRUCTION_VERBS | CHANGING_VERBS | READING_VERBS)
    assert verb not in READING_VERBS, first.fix[-1]


@pytest.mark.parametrize(
    "reason", ["ResultsMissing", "ResultsTooLarge", "ResultsMalformed", "InstrumentsDisagree", "PairsDisputed"]
)
def test_a_problem_of_a_topology_is_described_in_words(reason: str) -> None:
    (finding,) = diagnose(make_topology_facts("InputValid", "False", reason, "z1 to z2"))
    assert reason not in finding.summary


def test_a_rollout_undo_names_its_revision() -> None:
    crashing = ProgramPod("scheduler", "a", "n1", "Running", reason="CrashLoopBackOff", template_hash="bad")
    starting = ProgramPod("scheduler", "b", "n2", "Pending", reason="ContainerCreating", template_hash="good")
    fix = diagnose(make_facts(control_plane=make_control_plane(pods=(*READY[:2], starting, crashing))))[0].fix
    (undo,) = [line for line in fix if " rollout undo " in line]
    assert "--to-revision=$(" in undo
    assert "pod-template-hash notin (bad)" in undo
    unready = ProgramPod("scheduler", "c", "n2", "Running", template_hash="bad")
    assert undo in diagnose(make_facts(control_plane=make_control_plane(pods=(*READY[:2], unready, crashing))))[0].fix
    fix_of_starting = diagnose(make_facts(control_plane=make_control_plane(pods=(*READY[:2], starting))))[0].fix
    assert [line for line in fix_of_starting if " undo " in line or " restart " in line] == []
    assert "rollout status deployment/netaware-scheduler" in fix_of_starting[1]


def test_a_terminated_container_is_a_crash() -> None:
    """Between two starts a crashing container is terminated, and not waiting; a restart would only repeat the crash."""
    container = {"name": "kube-scheduler", "ready": False, "state": {"terminated": {"reason": "Error", "exitCode": 1}}}
    body = {
        "metadata": {"name": "s", "labels": {NAME_LABEL: "netaware-scheduler"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "containerStatuses": [container]},
    }
    program_pods = build_program_pods([msgspec.convert(body, ProgramPodObject)])
    finding = diagnose(make_facts(control_plane=make_control_plane(pods=(*READY[:1], *(program_pods or ())))))[0]
    assert (finding.code, "Error" in finding.cause[0]) == ("scheduler-down", True)
    assert any("rollout undo" in line for line in finding.fix)


@pytest.mark.parametrize(("seconds", "path_end"), [(300, "tolerations"), (30, "tolerations/-")])
def test_the_fix_tolerates_a_users_taint_but_not_a_taint_of_kubernetes(seconds: int, path_end: str) -> None:
    scheduled = make_unschedulable("0/4 nodes are available: 4 node(s) had untolerated taint(s).")
    tolerations = [
        Toleration(key="node.kubernetes.io/not-ready", operator="Exists", toleration_seconds=seconds),
        Toleration(key="node.kubernetes.io/memory-pressure", operator="Exists"),
    ]
    fields: dict[str, Any] = {"scheduled": scheduled, "spec": PodSpec(tolerations=tolerations)}
    owned_pod, bare_pod = make_pod_fact(owner=OWNER, **fields), make_pod_fact(**fields)
    line = diagnose(make_facts(nodes=TAINTED, pods=(owned_pod,)))[0].fix[-1]
    assert line.startswith("kubectl -n web patch deployment front --type=json -p '")
    (change,) = json.loads(line.partition(" -p ")[2].strip("'"))
    toleration = {"key": "gpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"}
    assert change["path"] == f"/spec/template/spec/{path_end}"
    assert change["value"] == (toleration if path_end.endswith("-") else [toleration]), "the user's own are kept"
    assert (
        diagnose(make_facts(nodes=TAINTED, pods=(bare_pod,)))[0].fix[-1]
        == "add a toleration of gpu to the pod template"
    )
    pressure = Taint("node.kubernetes.io/disk-pressure", "NoSchedule", "")
    nodes = {f"n{i}": NodeFact({}, (pressure,), "z") for i in range(4)}
    assert "toler" not in diagnose(make_facts(nodes=nodes, pods=(owned_pod,)))[0].fix[-1]


def test_pods_with_a_wrong_workload_label_are_one_finding_whose_fix_edits_only_an_owner() -> None:
    new_pod = make_pod_fact("new", workload="renamed", **NEW)
    (finding,) = diagnose(make_facts(pods=(make_pod_fact("old", **RENAMED), new_pod)))
    assert finding.code == "unknown-workload"
    assert len(finding.affects) == 2

    bare_pod, right_pod = make_pod_fact("bare", node="n1", workload="wrong"), make_pod_fact("right", node="n1")
    (finding,) = diagnose(make_facts(pods=(bare_pod, right_pod)))
    assert finding.affects == ("web/bare",)
    assert "edit" not in finding.fix[-1]


@pytest.mark.parametrize("interval_s", [6.0, 8.0, 60.0, 85.0, 120.0, 600.0])
def test_an_agent_that_does_not_repeat_unchanged_samples_is_working(interval_s: float) -> None:
    """In a quiet network with one pair of zones, the newest sample becomes as old as the writer allows."""
    write_delay_s = 1.5 * GATHER_S
    max_age_s = math.ceil((refresh_interval_s(interval_s) + write_delay_s) / interval_s) * interval_s + write_delay_s
    working_agents = make_agents(**{node: {"newest_at": NOW_S - max_age_s} for node in ("n0", "n1", "n2", "n3")})
    assert diagnose(make_facts(agents=working_agents, network=make_network(interval_s))) == ()


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (None, "does not exist"),
        (LeaseStatus(), "is released"),
        (LeaseStatus("", NOW_S - 3), "is released"),
        (LeaseStatus("a", NOW_S - 60), "a renewed"),
    ],
)
def test_the_cause_of_a_missing_leader_is_the_state_of_the_lease(lease: LeaseStatus | None, words: str) -> None:
    (finding,) = diagnose(make_facts(control_plane=make_control_plane(lease=lease)))
    assert (finding.code, words in finding.cause[0]) == ("no-leader", True)
    assert finding.since == (lease.renewed_at_s if lease is not None else None)


@pytest.mark.parametrize(
    ("ago_s", "scheduler", "findings"), [(50, SCHEDULER, 0), (70, SCHEDULER, 1), (50, "another", 1)]
)
def test_a_scheduler_that_works_through_a_queue_is_not_missing(ago_s: float, scheduler: str, findings: int) -> None:
    """If the gates of a thousand pods open together, the last pods wait for half a minute."""
    bound = Condition("PodScheduled", "True", last_transition_time=format_time(NOW_S - ago_s))
    bound_pod = make_pod_fact("bound", node="n1", phase="Running", scheduled=bound, scheduler=scheduler)

    def find_codes(age_s: float) -> list[str]:
        return [
            finding.code for finding in diagnose(make_facts(pods=(bound_pod, make_pod_fact(created_s=NOW_S - age_s))))
        ]

    assert find_codes(300).count("no-scheduler") == findings
    assert "no-scheduler" in find_codes(700)


@pytest.mark.parametrize(("facts", "codes"), CASES)
def test_only_these_findings_follow_from_the_facts(facts: Facts, codes: list[str]) -> None:
    assert [finding.code for finding in diagnose(facts)] == codes


@pytest.mark.parametrize(
    ("facts", "last_line"),
    [
        (
            make_facts(pods=make_gated_pods(created_s=NOW_S - 700)),
            """'{"spec":{"schedulingGates":[{"$patch":"delete","name":"netaware.io/topological-order"}]}}'""",
        ),
        (
            make_facts(control_plane=remove_pods("scheduler"), pods=(make_pod_fact(),)),
            "scale deployment/netaware-scheduler --replicas=2",
        ),
        (
            make_facts(control_plane=make_unready("scheduler", node="", reason=ALL_CORDONED), nodes=CORDONED),
            "kubectl uncordon n0 n1 n2 n3",
        ),
        (
            make_stuck_facts(ALL_CORDONED, LABELLED_CORDONED, spec=PodSpec(node_selector={"name": "n2"})),
            "kubectl uncordon n2",
        ),
        (
            make_topology_facts("InputValid", "False", "BadCostPolicy", "costPolicy is not an object"),
            """-p '{"spec":{"costPolicy":null}}'""",
        ),
        (
            make_topology_facts("InputValid", "False", "BadCostPolicy", "costPolicy.unitUs: 0 is out of range"),
            """-p '{"spec":{"costPolicy":{"unitUs":null}}}'""",
        ),
        (make_facts(agents=make_agents(n1=SILENT, n3=SILENT)), " --field-selector spec.nodeName=n3"),
        (make_facts(agents=(*make_agents(), *NINE_DOWN)), "rollout restart daemonset/netaware-agent"),
        (make_facts(network=make_network(None, absent=(("z0", "z1"),))), " -k dist/overlay"),
        (
            make_facts(control_plane=make_control_plane(failed_checks=("a: store of nodes is 90 s old (403)",))),
            " -k dist/overlay",
        ),
        (
            make_facts(control_plane=make_control_plane(failed_checks=("a: store of nodes is 403 s old (500)",))),
            "to the API server",
        ),
    ],
)
def test_the_last_line_of_a_fix_names_the_object_or_field_to_change(facts: Facts, last_line: str) -> None:
    assert diagnose(facts)[0].fix[-1].endswith(last_line)
