"""Findings of made-up facts: the first cause of each broken situation, its fix, and what is not a finding."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.probing.results_writer import GATHER_S
from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import PLACEMENT_LABEL, PlacementMode, Pod, PodSpec, Toleration
from controller.diagnosis.cluster_views import AgentView
from controller.diagnosis.control_plane import LeaseStatus, ProgramPod, ProgramPodObject, build_program_pods
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import Facts, NodeFact, build_facts
from controller.diagnosis.findings import MAX_AFFECTED, NO_LEADER_CODES, has_leader
from controller.diagnosis.pod_diagnosis import diagnose_pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.config import SchedulerConfig
from kubekit.wire import Condition, Object, ObjectMeta, Taint, format_time
from netperf.contract import AGENT_POD_SELECTOR, NAME_LABEL
from netperf.results import refresh_interval_s
from tests.unit.controller.situations import (
    CORDONED,
    GATE,
    NOW_S,
    OTHER_GATE,
    OWNER,
    READY,
    SCHEDULER,
    SILENT,
    SITUATIONS,
    TAINTED,
    TOLERANT,
    Situation,
    agents,
    condition,
    facts,
    gated_pods,
    group,
    network,
    no_pods,
    pod,
    status,
    topology_facts,
    unschedulable,
    with_unready,
)

ROOT = Path(__file__).parents[3]
READING_VERBS = {"get", "describe", "logs", "netaware", "status"}
CHANGING_VERBS = {"apply", "restart", "undo", "scale", "delete", "label", "uncordon", "patch", "edit"}
INSTRUCTION_VERBS = {"open", "correct", "set", "ask", "add", "raise", "lower", "look", "let", "use"}
"""First words of fixes that are not commands."""


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


def test_a_rollout_undo_names_its_revision() -> None:
    crashing = ProgramPod("scheduler", "a", "n1", "Running", reason="CrashLoopBackOff", template_hash="bad")
    fresh = ProgramPod("scheduler", "b", "n2", "Pending", reason="ContainerCreating", template_hash="good")
    both = diagnose(facts(control_plane=status(pods=(*READY[:2], fresh, crashing))))[0].fix
    (undo,) = [line for line in both if " rollout undo " in line]
    assert "--to-revision=$(" in undo
    assert "pod-template-hash notin (bad)" in undo
    unready = ProgramPod("scheduler", "c", "n2", "Running", template_hash="bad")
    unready_first = diagnose(facts(control_plane=status(pods=(*READY[:2], unready, crashing))))[0].fix
    assert undo in unready_first
    alone = diagnose(facts(control_plane=status(pods=(*READY[:2], fresh))))[0].fix
    assert [line for line in alone if " undo " in line or " restart " in line] == []
    assert "rollout status deployment/netaware-scheduler" in alone[1]


def test_a_terminated_container_is_a_crash() -> None:
    """Between two starts a crashing container is terminated, and not waiting; a restart would only repeat the crash."""
    ended = {"name": "kube-scheduler", "ready": False, "state": {"terminated": {"reason": "Error", "exitCode": 1}}}
    body = {
        "metadata": {"name": "s", "labels": {NAME_LABEL: "netaware-scheduler"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "containerStatuses": [ended]},
    }
    program_pods = build_program_pods([msgspec.convert(body, ProgramPodObject)])
    finding = diagnose(facts(control_plane=status(pods=(*READY[:1], *(program_pods or ())))))[0]
    assert (finding.code, "Error" in finding.cause[0]) == ("scheduler-down", True)
    assert any("rollout undo" in line for line in finding.fix)


def test_the_fix_tolerates_a_users_taint_but_not_a_taint_of_kubernetes() -> None:
    reason = unschedulable("0/4 nodes are available: 4 node(s) had untolerated taint(s).")
    tolerations = [
        Toleration(key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute"),
        Toleration(key="spot", operator="Exists"),
    ]
    fields: dict[str, Any] = {"scheduled": reason, "spec": PodSpec(tolerations=tolerations)}
    stuck = pod(owner=OWNER, **fields)
    line = diagnose(facts(nodes=TAINTED, pods=(stuck,)))[0].fix[-1]
    assert line.startswith("kubectl -n web patch deployment front --type=json -p '")
    (change,) = json.loads(line.partition(" -p ")[2].strip("'"))
    assert change["value"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "gpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"},
    ]
    bare = diagnose(facts(nodes=TAINTED, pods=(pod(**fields),)))[0]
    assert bare.fix[-1] == "add a toleration of gpu to the pod template"
    pressure = Taint("node.kubernetes.io/disk-pressure", "NoSchedule", "")
    nodes = {f"n{i}": NodeFact({}, (pressure,), "z") for i in range(4)}
    assert "toler" not in diagnose(facts(nodes=nodes, pods=(stuck,)))[0].fix[-1]


def test_few_failed_agents_are_restarted_one_by_one_and_many_by_the_daemonset() -> None:
    few = diagnose(facts(agents=agents(n1=SILENT, n3=SILENT)))[0].fix
    assert [line for line in few if " delete pods " in line] == [
        f"kubectl -n netaware-system delete pods -l {AGENT_POD_SELECTOR} --field-selector spec.nodeName={node}"
        for node in ("n1", "n3")
    ]
    many = tuple(AgentView(node=f"m{i}", zone="z9", state="down", reason="gone") for i in range(9))
    assert diagnose(facts(agents=(*agents(), *many)))[0].fix[-1].endswith("rollout restart daemonset/netaware-agent")


def test_terminating_pods_and_pods_that_a_rollout_replaces_are_no_finding() -> None:
    old: dict[str, Any] = {"node": "n1", "owner": OWNER, "workload": "renamed", "created_s": NOW_S - 900}
    fresh = pod("new", owner=OWNER, created_s=NOW_S - 5)
    assert diagnose(facts(pods=(pod("old", **old), fresh))) == ()
    assert diagnose(facts(pods=(pod("gone", is_terminating=True, **old), pod("over", phase="Succeeded", **old)))) == ()
    (finding,) = diagnose(
        facts(pods=(pod("old", **old), pod("new", owner=OWNER, created_s=NOW_S - 5, workload="renamed")))
    )
    assert (finding.code, len(finding.affects)) == ("unknown-workload", 2)
    bare = diagnose(facts(pods=(pod("bare", node="n1", workload="wrong"), pod("right", node="n1"))))
    assert [(f.code, f.affects, "edit" in f.fix[-1]) for f in bare] == [("unknown-workload", ("web/bare",), False)]


def test_each_alert_of_a_finding_exists_and_has_its_section_in_the_runbook() -> None:
    rules = yaml.safe_load((ROOT / "manifests" / "prometheus" / "alerts.rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    sections = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE))
    named = {f.alert for situation in SITUATIONS for f in diagnose(situation.facts)} - {""}
    assert named <= alerts & sections


@pytest.mark.parametrize("interval_s", [6.0, 8.0, 60.0, 85.0, 120.0, 600.0])
def test_an_agent_that_does_not_repeat_unchanged_samples_is_working(interval_s: float) -> None:
    """In a quiet network with one pair of zones, the newest sample becomes as old as the writer allows."""
    written_s = 1.5 * GATHER_S
    oldest_s = math.ceil((refresh_interval_s(interval_s) + written_s) / interval_s) * interval_s + written_s
    working = agents(**{node: {"newest_at": NOW_S - oldest_s} for node in ("n0", "n1", "n2", "n3")})
    assert diagnose(facts(agents=working, network=network(interval_s))) == ()


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
    (finding,) = diagnose(facts(control_plane=status(lease=lease)))
    assert (finding.code, words in finding.cause[0]) == ("no-leader", True)
    assert finding.since == (lease.renewed_at_s if lease is not None else None)


def test_codes_of_findings_without_a_leader() -> None:
    codes = {
        situation.code
        for situation in SITUATIONS
        if situation.facts.control_plane.is_installed and not has_leader(diagnose(situation.facts))
    }
    assert codes == NO_LEADER_CODES


GATED = Condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
UNSCHEDULABLE = unschedulable("0/4 nodes are available: 4 Insufficient cpu.")
REFUSED = unschedulable(
    "0/1 nodes are available: 1 Node n0 does not meet several network requirements from Workload dependencies: "
    "Satisfied: 0 Violated: 1."
)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"gates": (GATE,), "nodes": TAINTED}, "gated", "tolerates the taints of none of 4 nodes"),
        ({"gates": (GATE,), "nodes": TAINTED, "spec": TOLERANT}, "gated", "waits for the plan of AppGroup shop"),
        ({"scheduler": "default-scheduler", "scheduler_names": ()}, "waiting", "has not tried to place it yet"),
        ({"node": "n1"}, "placed", "it is on n1"),
        (
            {"node": "n1", "workload": "wrong"},
            "placed",
            "as if it belonged to no AppGroup: AppGroup shop has no workload",
        ),
        ({"node": "n1", "group": "", "workload": ""}, "placed", "it is on n1"),
        ({"phase": "Failed"}, "finished", "Failed"),
        ({"is_terminating": True, "gates": (GATE,)}, "terminating", "being deleted"),
        ({"gates": (GATE,)}, "gated", "waits for the plan of AppGroup shop"),
        ({"gates": (GATE,), "target": "n1"}, "planned", "planned onto n1"),
        ({"gates": (GATE,), "workload": "wrong"}, "gated", "no workload with selector wrong; it has cart, front"),
        ({"gates": (GATE,), "group": ""}, "gated", "no AppGroup label"),
        ({"gates": (GATE,), "group": "nope"}, "gated", "there is no AppGroup nope"),
        ({"gates": (OTHER_GATE,)}, "foreign-gate", f"{OTHER_GATE}, which another controller opens"),
        (
            {"gates": (GATE,), "target": "n0", "spec": PodSpec(node_selector={"zone": "z1"})},
            "planned",
            "nodeSelector zone=z1 allows 2 nodes of z1",
        ),
        ({"scheduled": UNSCHEDULABLE}, "unschedulable", "the nodes are full (0/4 nodes are available"),
        ({"scheduled": REFUSED}, "refused", "dependencies would be violated"),
        ({"scheduler": "default-scheduler"}, "other-scheduler", "does not call netaware's extender"),
        ({"scheduler": "default-scheduler", "is_placed_by_affinity": True}, "waiting", "has not tried to place it yet"),
        ({}, "waiting", "has not tried to place it yet"),
        ({"scheduled": GATED}, "waiting", "has not tried to place it yet"),
    ],
)
def test_the_diagnosis_of_a_pod_says_why_it_is_placed_or_waits(fields: dict[str, Any], kind: str, words: str) -> None:
    of_cluster = {name: fields[name] for name in ("nodes", "scheduler_names") if name in fields}
    of_pod = {name: fields[name] for name in fields.keys() - of_cluster}
    diagnosis = diagnose_pod(pod(**of_pod), facts(**of_cluster))
    assert (diagnosis.kind, words in diagnosis.summary) == (kind, True), diagnosis.summary


@pytest.mark.parametrize(
    ("ago_s", "scheduler", "findings"), [(50, SCHEDULER, 0), (70, SCHEDULER, 1), (50, "another", 1)]
)
def test_a_scheduler_that_works_through_a_queue_is_not_missing(ago_s: float, scheduler: str, findings: int) -> None:
    """If the gates of a thousand pods open together, the last pods wait for half a minute."""
    bound = Condition("PodScheduled", "True", last_transition_time=format_time(NOW_S - ago_s))
    others = pod("done", node="n1", phase="Running", scheduled=bound, scheduler=scheduler)
    waits = pod(created_s=NOW_S - 300)
    codes = [finding.code for finding in diagnose(facts(pods=(others, waits)))]
    assert codes.count("no-scheduler") == findings
    late = [f.code for f in diagnose(facts(pods=(others, pod(created_s=NOW_S - 700))))]
    assert "no-scheduler" in late


@pytest.mark.parametrize(
    ("labels", "namespace_labels", "placement", "is_placed_by_affinity"),
    [
        ({}, {}, "extender", False),
        ({}, {}, "affinity", True),
        ({}, {PLACEMENT_LABEL: "affinity"}, "extender", True),
        ({PLACEMENT_LABEL: "affinity"}, {}, "extender", True),
        ({PLACEMENT_LABEL: "extender"}, {PLACEMENT_LABEL: "affinity"}, "affinity", False),
    ],
)
def test_the_placement_mode_comes_from_pod_namespace_or_configuration(
    labels: dict[str, str], namespace_labels: dict[str, str], placement: PlacementMode, *, is_placed_by_affinity: bool
) -> None:
    body = {"metadata": {"name": "p", "namespace": "web", "labels": {APPGROUP_LABEL: "shop", **labels}}}
    namespace = Object(metadata=ObjectMeta(name="web", labels=namespace_labels))
    snapshot = ClusterSnapshot(
        now_s=NOW_S,
        pods=(msgspec.convert(body, Pod),),
        namespaces=(namespace,),
        scheduler=SchedulerConfig(placement=placement),
    )
    (fact,) = build_facts(snapshot).pods
    assert fact.is_placed_by_affinity is is_placed_by_affinity


COSTS_NOT_MET = condition("CostsMet", "False", "CostsExceeded", "front to cart costs 40, at most 5 (z0 to z1)")
FAR_COSTS_NOT_MET = condition("CostsMet", "False", "CostsExceeded", "front to cart costs 40, at most 5 (z10 to z2)")
MANY_UNSCHEDULABLE = [pod(f"front-{i}", scheduled=UNSCHEDULABLE) for i in range(MAX_AFFECTED)]
VOLUME_REASONS = "had volume node affinity conflict", "didn't match PersistentVolume's node affinity"
BY_AFFINITY = pod("front-2", scheduler="default-scheduler", node="n2", is_placed_by_affinity=True)


MANY_SILENT = tuple(
    AgentView(node=f"n{i}", zone=f"z{i:02}", state="down", reason="gone") for i in range(2 * MAX_AFFECTED)
)
QUEUED = tuple(pod(name, created_s=NOW_S - ago) for name, ago in (("new", 5), ("old", 60)))


def condition_facts(type_: str, status: str, reason: str, *, ago_s: float, **fields: Any) -> Facts:
    since = msgspec.convert(condition(type_, status, reason, "ignored: n2", ago_s=ago_s), Condition)
    return facts(topology_conditions={"netaware-system/nt-default": (since,)}, **fields)


def outlier_facts(ago_s: float) -> Facts:
    return condition_facts("OutlierNodes", "True", "NodesContradicted", ago_s=ago_s)


def unmeasured_facts(ago_s: float) -> Facts:
    absent = network(absent=(("z0", "z1"),))
    return condition_facts("Measured", "False", "PairsAbsent", ago_s=ago_s, network=absent)


def facts_of(message: str) -> Facts:
    return facts(pods=(pod(scheduled=unschedulable(message)),))


@pytest.mark.parametrize(
    ("now", "codes"),
    [
        (facts(pods=(pod(node="n1", phase="Running"), pod("new", created_s=NOW_S - 2))), []),
        (
            facts(control_plane=status(pods=None, lease=None, is_lease_conclusive=False)),
            [],
        ),  # Objects that cannot be read are not absent.
        (facts(agents=agents(n3={"state": "excluded", "newest_at": None})), []),
        (facts(pods=(pod(node="n1"), BY_AFFINITY)), []),
        # An overlay without a scheduler misses none until a pod names it.
        (facts(control_plane=no_pods("scheduler", "extender")), []),
        (facts(control_plane=no_pods("scheduler"), pods=(pod(created_s=NOW_S - 300),)), ["scheduler-down"]),
        # The leader publishes a path as unreachable, or the results have failed probes.
        (facts(network=network(unreachable=(("z0", "z1"),))), ["zones-unreachable"]),
        # There may be more zones than a finding lists.
        (facts(agents=MANY_SILENT, network=network(absent=(("z38", "z39"),))), ["no-agents"]),
        # An outlier is reported after the next probe of its pair.
        (outlier_facts(470.0), []),
        (outlier_facts(490.0), ["topology-NodesContradicted"]),
        # The first rounds after an installation, or with a new zone.
        (unmeasured_facts(170.0), []),
        (unmeasured_facts(190.0), ["pairs-unmeasured"]),
        # Gated pods wait for the pods without a node of the same group, of which there may be more than a finding lists.
        (facts(pods=(*MANY_UNSCHEDULABLE, *gated_pods(workload="cart"))), ["no-node-capacity"]),
        (facts(pods=gated_pods(created_s=NOW_S - 700), max_gate_wait_s=1200.0), []),
        (
            facts(pods=(*QUEUED, pod("other", node="n1", scheduler="another")), scheduler_names=()),
            ["no-scheduler"],
        ),
        # The number in a pod's status may be of any length.
        (facts_of(f"0/4 nodes are available: {'9' * 5000} Insufficient cpu."), ["no-node-capacity"]),
        (facts(pods=(pod(created_s=NOW_S - 19),)), []),
        (facts(pods=(pod(created_s=NOW_S - 21),)), ["no-scheduler"]),
        # The condition stays until the scheduler's first attempt.
        (facts(pods=(pod(scheduled=GATED, created_s=NOW_S - 2),)), []),
        (facts(pods=(pod(scheduled=GATED, created_s=NOW_S - 300),)), ["no-scheduler"]),
        (facts(groups=(group([COSTS_NOT_MET]),), agents=agents(n1=SILENT, n3=SILENT)), ["zone-without-agent"]),
        (
            facts(groups=(group([FAR_COSTS_NOT_MET]),), agents=agents(n1=SILENT, n3=SILENT)),
            ["zone-without-agent", "costs-violated"],
        ),
        *(
            (facts_of(f"0/4 nodes are available: 1 Insufficient memory, 3 node(s) {words}."), ["no-node-volume"])
            for words in VOLUME_REASONS
        ),
        (
            facts_of(
                "0/8 nodes are available: 2 Node n0 does not meet several network requirements from Workload "
                "dependencies: Satisfied: 0 Violated: 1, 6 node(s) didn't match Pod's node affinity/selector."
            ),
            ["no-node-max-cost"],
        ),
    ],
)
def test_only_these_findings_follow_from_the_facts(now: Facts, codes: list[str]) -> None:
    assert [finding.code for finding in diagnose(now)] == codes


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (facts(pods=gated_pods(created_s=NOW_S - 700)), """'[{"op":"remove","path":"/spec/schedulingGates"}]'"""),
        (facts(control_plane=no_pods("scheduler"), pods=(pod(),)), "scale deployment/netaware-scheduler --replicas=2"),
        (
            facts(
                control_plane=with_unready(
                    "scheduler", node="", reason="0/4 nodes are available: 4 node(s) were unschedulable."
                ),
                nodes=CORDONED,
            ),
            "kubectl uncordon n0 n1 n2 n3",
        ),
        (
            facts(
                nodes={name: msgspec.structs.replace(node, labels={"name": name}) for name, node in CORDONED.items()},
                pods=(
                    pod(
                        spec=PodSpec(node_selector={"name": "n2"}),
                        scheduled=unschedulable(
                            "0/4 nodes are available: 1 node(s) were unschedulable, "
                            "3 node(s) didn't match Pod's node affinity/selector."
                        ),
                    ),
                ),
            ),
            "kubectl uncordon n2",
        ),
        (
            topology_facts("InputValid", "False", "BadCostPolicy", "costPolicy is not an object"),
            """-p '{"spec":{"costPolicy":null}}'""",
        ),
        (
            topology_facts("InputValid", "False", "BadCostPolicy", "costPolicy.unitUs: 0 is out of range"),
            """-p '{"spec":{"costPolicy":{"unitUs":null}}}'""",
        ),
        (facts(network=network(None, absent=(("z0", "z1"),))), " -k dist/overlay"),
        (facts(control_plane=status(failed_checks=("a: store of nodes is 90 s old (403)",))), " -k dist/overlay"),
        (facts(control_plane=status(failed_checks=("a: store of nodes is 403 s old (500)",))), "to the API server"),
    ],
)
def test_the_last_line_of_a_fix_names_the_object_or_field_to_change(now: Facts, line: str) -> None:
    assert diagnose(now)[0].fix[-1].endswith(line)


def test_a_gated_pod_waits_until_the_configured_time_but_without_a_leader_forever() -> None:
    gated, broken = pod(gates=(GATE,)), facts(control_plane=status(lease=LeaseStatus("a", NOW_S - 60)))
    led = diagnose_pod(gated, facts(max_gate_wait_s=300.0))
    assert (led.since, led.until) == (NOW_S - 60, NOW_S + 240)
    assert diagnose_pod(gated, broken, has_leader=has_leader(diagnose(broken))).until is None
