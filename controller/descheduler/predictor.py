"""Predicts where the replacement of an evicted pod would land.

A pod that our gates delivered is placed by our planner (`confirm`). Any other is placed by kube-scheduler, which looks at requests
and knows nothing of heat: its scores say on which hosts it may land, and with what chance. Of schedulers with other names nothing
is known; whether moves of their pods help is learned by the breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import target_of
from controller.descheduler.fit import Fit
from controller.descheduler.snapshot import LoadSnapshot
from controller.scheduler.placement.problem import Bools, Ints
from controller.scheduler.stock import NAMES, DefaultSchedulerModel, placement_probabilities
from kubekit.wire import Taint
from netperf.contract import HOT_TAINT

SURGING = frozenset({"Deployment", "ReplicaSet", "ReplicationController"})
"""Kinds that make the replacement while its predecessor is still ending, and so still counts where it is. A StatefulSet waits."""
HOT_EFFECT = "PreferNoSchedule"
"""Of `HOT_TAINT`."""
NEAR = 1
"""Scores that differ by no more are taken for equal: rounding, and what the model does not know."""


def is_planned(pod: PodInfo) -> bool:
    """Whether our own plan chose its host, so that another plan will choose its replacement's."""
    return pod.wire is not None and target_of(pod.wire) is not None


class Prediction(NamedTuple):
    """Where a replacement may land.

    Attributes:
        chances: host -> chance, the likeliest first; empty where nothing is known.
        objections: of those hosts, the ones that would be no gain, and why.
    """

    chances: Mapping[str, float]
    objections: Mapping[str, str]

    @property
    def gain(self) -> float:
        """Chance that it lands where it is a gain."""
        return sum(self.chances[host] for host in self.expected)

    @property
    def expected(self) -> tuple[str, ...]:
        """Hosts that are a gain, the likeliest first."""
        return tuple(host for host in self.chances if host not in self.objections)

    def describe(self) -> str:
        """Why it is not a gain."""
        worst = max(self.objections, key=lambda host: self.chances[host], default="")
        if not worst:
            return "kube-scheduler would find no node for it"
        chance = f"{100 * self.chances[worst]:.0f} in 100"
        return f"kube-scheduler may put it on {worst} ({chance}): {self.objections[worst]}"


class ReplacementPredictor:
    """Asks the default scheduler's scores; one per round.

    Moves of one round are placed one after the other, and then it is unknown whether earlier ones have left their nodes, nor on
    which of several equal hosts their replacements are. So every host is scored twice: with nothing of it gone and all of it arrived
    wherever it may, and the other way round. Pods that are already ending are in doubt in the same way.

    Args:
        snapshot: the cluster.
        fit: where the scheduler would let a pod go.
    """

    def __init__(self, snapshot: LoadSnapshot, fit: Fit) -> None:
        self._snapshot, self._fit = snapshot, fit
        self._hosts = [snapshot.nodes[name] for name in sorted(snapshot.nodes)]
        self._models: tuple[DefaultSchedulerModel, DefaultSchedulerModel] | None = None
        self._left: set[str] = set()
        self._eligible: dict[Constraints, Bools] = {}

    def taint(self, names: frozenset[str]) -> None:
        """These nodes carry, or will by the time of an eviction, the taint that asks pods to go elsewhere."""
        taint = Taint(HOT_TAINT, HOT_EFFECT)
        self._hosts = [
            msgspec.structs.replace(
                host,
                prefer_no_schedule_taints=(*(t for t in host.prefer_no_schedule_taints if t.key != HOT_TAINT), taint),
            )
            if host.name in names
            else host
            for host in self._hosts
        ]

    @staticmethod
    def can_predict(pod: PodInfo) -> bool:
        """Whether the default scheduler will place its replacement."""
        return pod.scheduler in NAMES and not is_planned(pod)

    def predict(self, pod: PodInfo, objection: Callable[[str], str]) -> Prediction:
        """Predict where the pod's replacement would land now.

        Args:
            pod: bound.
            objection: why a host would be no gain; empty where it would be.
        """
        pods, spec = self._snapshot.pods, pod.constraints.spec
        siblings = [p for p in pods.of_workload(pod.workload).values() if p is not pod] if pod.workload else []
        depends = spec.topology_spread_constraints or spec.affinity
        around = [p for p in pods.in_namespace(pod.namespace).values() if p is not pod] if depends else []
        eligible = self._eligible_for(pod)
        waits = not pod.workload or pod.workload.split("/")[1] not in SURGING
        full, empty = self._both_models
        scores = []
        for model in (full, empty) if self._left else (full,):
            if waits:
                model.count_pod(pod, pod.node, -1)
            scores.append(model.scores(pod, siblings, around, eligible))
            if waits:
                model.count_pod(pod, pod.node)
        least, most = np.minimum(scores[0], scores[-1]), np.maximum(scores[0], scores[-1])

        def surely(host: Host) -> bool:
            return not self._fit.refusal(host, pod)

        def perhaps(host: Host) -> bool:
            if host.name in self._left or (waits and host.name == pod.node):
                return not self._fit.static_refusal(host, pod)
            return surely(host)

        # All that may score as much as the best sure score.
        doubt = max(_best(self._hosts, most, perhaps) - _best(self._hosts, least, surely), 0) if self._left else 0
        chances = placement_probabilities(self._hosts, most, perhaps, near=NEAR + doubt)
        return Prediction(chances, {name: why for name in chances if (why := objection(name))})

    def _eligible_for(self, pod: PodInfo) -> Bools:
        """[host] hosts that may run the pod, regardless of other pods; the scheduler scales scores by them."""
        constraints = self._fit.constraints_of(pod)
        if constraints in self._eligible and not pod.claims:
            return self._eligible[constraints]
        found: Bools = np.array([not self._fit.static_refusal(host, pod) for host in self._hosts], np.bool_)
        if not pod.claims:
            self._eligible[constraints] = found
        return found

    def reserve(self, pod: PodInfo, hosts: Iterable[str]) -> None:
        """A pod is planned to go, to one of these hosts."""
        full, empty = self._both_models
        empty.count_pod(pod, pod.node, -1)
        self._left.add(pod.node)
        for host in hosts:
            full.count_pod(pod, host)

    @property
    def _both_models(self) -> tuple[DefaultSchedulerModel, DefaultSchedulerModel]:
        """With everything there and arrived, and with all gone that may be."""
        if self._models is None:
            bound = [pod for pod in self._snapshot.pods.by_key.values() if pod.node and not pod.is_finished]
            self._models = (
                DefaultSchedulerModel(self._hosts, bound),
                DefaultSchedulerModel(self._hosts, (pod for pod in bound if pod.is_active)),
            )
            self._left = {pod.node for pod in bound if not pod.is_active}
        return self._models


def _best(hosts: Sequence[Host], scores: Ints, fits: Callable[[Host], bool]) -> int:
    """Score of the best host that fits; 0 where none does."""
    order = np.argsort(-scores, kind="stable").tolist()
    return next((int(scores[number]) for number in order if fits(hosts[number])), 0)
