"""Findings about the measurement: agents that are silent, paths that are dead, costs that rest on nothing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from controller.diagnosis.facts import AgentFact, Facts
from controller.diagnosis.findings import MOST_HURT, Finding, Severity
from controller.diagnosis.reading import seconds
from kubekit.text import command
from kubekit.wire import split_key
from netperf.contract import AGENT, AGENT_POD_SELECTOR, CONTROLLER
from netperf.plans import DATA_PORT, DATAGRAM_PORT, PROBE_PORT
from netperf.results import refresh_s

WRITTEN_S = 10.0
"""What is told by a run is there after this, at most."""
MISSED_ROUNDS = 2.0
"""The round in which an agent says again what did not change, and one more, which a busy node may miss."""
ODD_ROUNDS = 8.0
"""One odd run of a pair stands until that pair's next turn, which three pairs of nodes and two ends make the sixth round; a node
that is told of has been odd for longer than that."""
_PORTS = f"open TCP {PROBE_PORT} and {DATA_PORT}, and UDP {DATAGRAM_PORT}"
_NEW_AGENT = f"kubectl -n {{home}} delete pods -l {AGENT_POD_SELECTOR} --field-selector spec.nodeName={{node}}"
_FEW = 3
"""So many agents are started anew by a line each, more by one for all."""
_TOPOLOGY = "kubectl -n {namespace} describe networktopology {name}"
# Reason of a condition -> severity, words, what to do, alert. The condition's message says which.
_REASONS: dict[str, tuple[Severity, str, tuple[str, ...], str]] = {
    "BadCostPolicy": (
        "warning",
        "its costPolicy makes no sense",
        (_TOPOLOGY, "kubectl -n {namespace} patch networktopology {name} --type=merge -p {defaults}"),
        "",
    ),
    "ResultsMissing": ("warning", "a ConfigMap of results is missing", (_TOPOLOGY,), "NetawareMeasurementsStale"),
    "ResultsTooLarge": ("warning", "a ConfigMap of results is almost full", (_TOPOLOGY,), "NetawareApiWritesFailing"),
    "ResultsMalformed": ("warning", "some results cannot be read", (_TOPOLOGY,), "NetawareResultsRefused"),
    "NodesWithoutZone": (
        "warning",
        "some nodes have no zone label and take no part",
        (
            "kubectl get nodes -L topology.kubernetes.io/zone",
            "kubectl label node {nodes} topology.kubernetes.io/zone=ZONE",
        ),
        "NetawareNodesLeftOut",
    ),
    "ZonesTorn": (
        "warning",
        "nodes of one zone name different regions",
        (
            "kubectl get nodes -L topology.kubernetes.io/region,topology.kubernetes.io/zone",
            "kubectl label --overwrite node NODE topology.kubernetes.io/region=REGION",
        ),
        "",
    ),
    "NodesUnmeasurable": (
        "warning",
        "nobody can measure some nodes",
        ("kubectl netaware status", f"{_PORTS} between nodes"),
        "NetawareNodesLeftOut",
    ),
    "UnplannedResults": (
        "warning",
        "somebody writes results that no plan asks for",
        (f"kubectl -n {{home}} logs daemonset/{AGENT} --tail=50", _NEW_AGENT),
        "NetawareResultsRefused",
    ),
    "NodesContradicted": (
        "info",
        "readings of some nodes are set aside",
        ("kubectl describe node {node}", "look for load, a full uplink or a wrong route there"),
        "",
    ),
    "PairsDisputed": ("info", "readings of some pairs disagree", (_TOPOLOGY,), ""),
    "MeasurementsOld": (
        "warning",
        "some costs rest on old measurements",
        ("kubectl netaware costs", "kubectl netaware status", f"{_PORTS} between nodes, where probes time out"),
        "NetawareMeasurementsStale",
    ),
}
_WORDS = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_POLICY_FIELD = re.compile(r"costPolicy\.(\w+)")
_AGREE = {"expireAfterS": ("expireAfterS", "staleAfterS")}
"""Which of two that do not agree is the wrong one, nobody knows."""
_BAD = {("InputValid", "False"), ("OutlierNodes", "True"), ("Stale", "True")}


def find_agents(facts: Facts) -> Iterator[Finding]:
    """Agents that do not work, a zone at a time; one finding when none works anywhere."""
    by_zone: dict[str, list[tuple[str, str]]] = defaultdict(list)
    alive: dict[str, int] = defaultdict(int)
    for agent in facts.agents:
        why = _why_silent(agent, facts) if agent.wanted else ""
        if why:
            by_zone[agent.zone].append((agent.node, why))
        elif agent.wanted:
            alive[agent.zone] += 1
    if by_zone and not alive:
        yield _no_agents(facts, by_zone)
        return
    for zone, nodes in sorted(by_zone.items()):
        because = tuple(f"{node}: {why}" for node, why in nodes[:3])
        do = _new_agents(facts, [node for node, _ in nodes])
        if not alive[zone]:
            what = f"no agent of zone {zone} works ({len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}): its latencies are old or inferred"
            yield Finding("zone-blind", "critical", what, because, None, (zone,), do, "NetawareAgentDown")
        else:
            names = tuple(node for node, _ in nodes)
            what = f"{len(nodes)} of {len(nodes) + alive[zone]} agents of zone {zone} do not work"
            yield Finding("agents-down", "warning", what, because, None, names[:MOST_HURT], do, "NetawareAgentDown")
    versions = sorted({agent.version for agent in facts.agents if agent.state == "up" and agent.version})
    if len(versions) > 1:
        what = f"agents of {len(versions)} versions run: {', '.join(versions)}"
        do = (command(f"kubectl -n {{}} rollout status daemonset/{AGENT}", facts.home), _all_agents_anew(facts))
        yield Finding("versions-mixed", "info", what, do=do)


def _why_silent(agent: AgentFact, facts: Facts) -> str:
    interval_s = facts.interval_s or 0.0
    silent_s = refresh_s(interval_s) + WRITTEN_S + MISSED_ROUNDS * interval_s
    if agent.state == "down":
        return agent.reason
    if agent.state == "up" and agent.heard is not None and facts.now - agent.heard > silent_s:
        return f"no sample has named it for {facts.now - agent.heard:.0f} s"
    return ""


def _new_agents(facts: Facts, nodes: list[str]) -> tuple[str, ...]:
    of_node = f"kubectl -n {{home}} get pods -l {AGENT_POD_SELECTOR} --field-selector spec.nodeName={{node}}"
    lines = (f"{of_node} -o wide", f"kubectl -n {{home}} logs --tail=50 $({of_node} -o name)")
    look = tuple(command(line, home=facts.home, node=nodes[0]) for line in lines)
    if len(nodes) > _FEW:
        return *look, _all_agents_anew(facts)
    return *look, *(command(_NEW_AGENT, home=facts.home, node=node) for node in nodes)


def _all_agents_anew(facts: Facts) -> str:
    return command(f"kubectl -n {{}} rollout restart daemonset/{AGENT}", facts.home)


def _no_agents(facts: Facts, by_zone: dict[str, list[tuple[str, str]]]) -> Finding:
    nodes = [entry for zone in sorted(by_zone) for entry in by_zone[zone]]
    because = tuple(f"{node}: {why}" for node, why in nodes[:3])
    what = f"no agent works on any of {len(nodes)} nodes: nothing is measured"
    do = (
        command(f"kubectl -n {{}} describe daemonset {AGENT}", facts.home),
        command(f"kubectl -n {{}} get pods -l {AGENT_POD_SELECTOR} -o wide", facts.home),
        _all_agents_anew(facts),
    )
    zones = tuple(sorted(by_zone))
    return Finding("agents-gone", "critical", what, because, None, zones[:MOST_HURT], do, "NetawareAgentDown")


def find_network(facts: Facts, blind: Collection[str]) -> Iterator[Finding]:
    """Paths and costs.

    Args:
        facts: the moment.
        blind: zones without a working agent; what follows from that is not said again.
    """
    if not facts.has_topology:
        what = "there is no NetworkTopology, so no costs can be written"
        restart = command(f"kubectl -n {{}} rollout restart deployment/{CONTROLLER}", facts.home)
        because = ("the leader makes nt-default when it starts, where bootstrap.networkTopology names it",)
        yield Finding("no-topology", "critical", what, because, do=(restart,), alert="NetawareCostsMissing")
        return
    dead = sorted({tuple(sorted(pair)) for pair in facts.unreachable if not set(blind).intersection(pair)})
    for one, other in dead:
        what = f"zones {one} and {other} cannot reach each other"
        because = ("probes between them fail from more than one node",)
        do = (
            command("kubectl netaware latency {} {}", one, other),
            f"{_PORTS} between their nodes, or correct the path",
        )
        alert = "NetawareZonePairUnreachable"
        yield Finding("zones-unreachable", "critical", what, because, None, (one, other), do, alert)
    working = {a.zone for a in facts.agents if a.state == "up" and a.zone} - set(blind)
    if facts.interval_s is None and len(working) > 1:
        what = "nobody is told what to measure: there is no probe plan"
        look = (
            command(f"kubectl -n {{}} logs deployment/{CONTROLLER} --tail=50 | grep -i plan", facts.home),
            "kubectl apply --server-side --force-conflicts -k manifests/overlays/OVERLAY",
        )
        yield Finding(
            "no-plan", "critical", what, (), None, tuple(sorted(working))[:MOST_HURT], look, "NetawareCostsMissing"
        )
        return
    yield from _conditions(facts, quiet=bool(blind or dead))
    left = [
        pair
        for pair in (*facts.absent, *facts.inferred)
        if not set(blind).intersection(pair) and tuple(sorted(pair)) not in dead
    ]
    if left:
        names = tuple(sorted({f"{a} to {b}" for a, b in left}))
        what = f"{len(names)} {'pair of zones has' if len(names) == 1 else 'pairs of zones have'} no measurement of their own"
        see = ("kubectl netaware costs", "kubectl netaware status", f"{_PORTS} between their nodes")
        missing = any(pair in facts.absent for pair in left)
        alert = "NetawareCostsMissing" if missing else "NetawareZonePairUnmeasured"
        yield Finding("pairs-unmeasured", "warning", what, (), None, names[:MOST_HURT], see, alert)


def _defaults(message: str) -> dict[str, object]:
    """A merge patch that gives up the field of costPolicy that a message names, or all of them where it names none."""
    named = _POLICY_FIELD.search(message)
    fields = dict.fromkeys(_AGREE.get(named[1], (named[1],))) if named else None
    return {"spec": {"costPolicy": fields}}


def _conditions(facts: Facts, *, quiet: bool) -> Iterator[Finding]:
    """What NetworkTopologies say of themselves; not that values are old where it is known why."""
    for key, conditions in sorted(facts.topologies.items()):
        namespace, name = split_key(key)
        for found in conditions:
            known = _REASONS.get(found.reason)
            if known is None or (found.type, found.status) not in _BAD or (quiet and found.type == "Stale"):
                continue
            severity, words, do, alert = known
            since = seconds(found.last_transition_time)
            if found.type == "OutlierNodes" and severity == "info" and _passing(since, facts):
                continue
            # The message names them; where it does not, as a stranger's may, somebody has to choose.
            named = [word for word in _WORDS.findall(found.message) if word in facts.nodes] or ["NODE"]
            words_of = {"namespace": namespace, "name": name, "home": facts.home, "defaults": _defaults(found.message)}
            lines = tuple(command(line, node=named[0], nodes=named, **words_of) for line in do)
            yield Finding(
                f"topology-{found.reason}",
                severity,
                f"NetworkTopology {key}: {words}",
                (found.message,),
                since,
                (key,),
                lines,
                alert,
            )


def _passing(since: float | None, facts: Facts) -> bool:
    """Whether the next turn of each pair may end it yet."""
    return since is not None and facts.now - since < ODD_ROUNDS * (facts.interval_s or 0.0)
