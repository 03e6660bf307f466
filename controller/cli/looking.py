"""One look at the cluster, and the verdict on a pod that was asked about, for every command that says why."""

from __future__ import annotations

from controller.cli.session import Session
from controller.cluster.pods import GroupPod
from controller.diagnosis.facts import Facts
from controller.diagnosis.pods import Verdict, judge_pod
from controller.diagnosis.reading import read_pod
from controller.diagnosis.rules import leads
from controller.views.agents import build_agents
from controller.views.diagnosing import read_facts
from controller.views.network import build_network
from controller.views.snapshot import Snapshot


async def look_around(session: Session, pod: GroupPod | None = None) -> tuple[float, Facts]:
    """Now, in unix seconds, and the facts of all namespaces; with ``pod`` also where it is of no group.

    Raises:
        KubekitError: the nodes cannot be read.
    """
    session.namespace = None
    snapshot = await session.snapshot(groups=True, agents=True, around=True)
    return snapshot.now_s, facts_of(snapshot, pod)


def facts_of(snapshot: Snapshot, pod: GroupPod | None = None) -> Facts:
    """The facts of a snapshot. Pure."""
    more = () if pod is None or pod.group else (pod,)
    return read_facts(snapshot, build_network(snapshot, "", ""), build_agents(snapshot), more)


def verdict_on(pod: GroupPod | None, facts: Facts) -> Verdict | None:
    """Why a pod is where it is, or is not; None for none. Pure."""
    return None if pod is None else judge_pod(read_pod(pod), facts, leads=leads(facts))
