"""From facts to findings. A cause swallows its consequences: one finding for a dead controller, not one for each of its pods."""

from __future__ import annotations

from controller.diagnosis.appgroups import find_groups
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, in_order
from controller.diagnosis.network import find_agents, find_network
from controller.diagnosis.pods import find_pods
from controller.diagnosis.programs import LEADERLESS, find_programs

_NEEDS_SCHEDULER = frozenset({"nobody-schedules"})
_NEEDS_LEADER = frozenset({"gated-too-long"})


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Everything that is wrong, worst first; empty when all is well."""
    if not facts.around.installed:
        do = "kubectl apply --server-side -k manifests/overlays/default"
        return (Finding("not-installed", "critical", "netaware is not installed in this cluster", do=(do,)),)
    programs = list(find_programs(facts))
    agents = list(find_agents(facts))
    found = [*programs, *agents]
    codes = {finding.code for finding in programs}
    blind = {zone for f in agents if f.code in {"zone-blind", "agents-gone"} for zone in f.hurts}
    swallowed: set[str] = set()
    if codes & LEADERLESS:
        # Without a leader nothing is priced, planned or reported anew.
        swallowed |= _NEEDS_LEADER
    else:
        found += find_network(facts, blind)
    if "scheduler-down" in codes:
        swallowed |= _NEEDS_SCHEDULER
    places = blind.union(*(f.hurts for f in found if f.code == "zones-unreachable"))
    found += find_groups(facts, places)
    found += [finding for finding in find_pods(facts) if finding.code not in swallowed]
    return in_order(found)


def leads(facts: Facts) -> bool:
    """Whether some controller leads, as far as that can be read."""
    return not any(finding.code in LEADERLESS for finding in find_programs(facts))
