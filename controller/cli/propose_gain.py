"""Compares a plan of a proposed AppGroup with the present placement of its pods."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import msgspec

from controller.cli.session import Session
from controller.cli.shared import read_inputs
from controller.cli.simulate import Outcome, empty_group, outcome_of, planned_outcome
from controller.cli.traffic_reading import Traffic
from controller.cluster.resources import AppGroup
from controller.traffic.proposals import Proposal


class Gain(msgspec.Struct, frozen=True):
    """The pods of one proposal as they are placed, and as one plan would place all of them."""

    group: str
    now: Outcome
    planned: Outcome


async def gain_of(session: Session, proposal: Proposal, traffic: Traffic, existing: AppGroup | None = None) -> Gain:
    """Plan the group for the cluster as it is; ``existing`` is the group as it stands.

    Raises:
        KubekitError: no answer.
    """
    group = msgspec.convert(proposal.manifest, AppGroup)
    if existing is not None:
        # Applying leaves them as they are, and they say how its pods are spread.
        annotations = (existing.metadata.annotations or {}) | (group.metadata.annotations or {})
        metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
        group = msgspec.structs.replace(group, metadata=metadata)
    namespace = proposal.namespace
    selectors = {
        f"{namespace}/{w.workload.kind}/{w.workload.name}": w.workload.selector for w in group.spec.workloads or ()
    }
    made = {f"{namespace}/{c.kind}/{c.metadata.name}": c for c in await session.controllers(namespace)}
    templates = {selector: made[key] for key, selector in selectors.items() if key in made}
    inputs, _ = await read_inputs(session, traffic.snapshot)
    nodes_now = defaultdict(list)
    for pod in inputs.node_cache.bound:
        if pod.workload in selectors:
            nodes_now[selectors[pod.workload]].append(pod.node)
    inputs.node_cache.drop(lambda pod: pod.workload in selectors)
    start = empty_group(inputs, group, templates)
    now = [nodes_now[pod.workload].pop() if nodes_now[pod.workload] else "" for pod in start.pods]
    planned = await asyncio.to_thread(planned_outcome, inputs, start)
    return Gain(proposal.name, outcome_of(start, now), planned)
