"""What makes pods: Deployments and StatefulSets as far as simulations read them."""

from __future__ import annotations

from controller.cluster.pods import GroupPodSpec
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from kubekit.conditions import find
from kubekit.wire import Condition, Object, ObjectMeta, Wire


class _Template(Wire, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GroupPodSpec = GroupPodSpec()


class _RollingUpdate(Wire, frozen=True):
    """How many pods beyond those declared, and how many of them missing; numbers or percents."""

    max_surge: int | str | None = None
    max_unavailable: int | str | None = None


class _Strategy(Wire, frozen=True):
    """How a template's change reaches the pods."""

    type: str = ""
    rolling_update: _RollingUpdate | None = None


class _ControllerSpec(Wire, frozen=True):
    """Of a Deployment (``strategy``) or StatefulSet (``updateStrategy``)."""

    replicas: int | None = None
    template: _Template = _Template()
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None
    paused: bool = False


class _ControllerStatus(Wire, frozen=True):
    """How far it is."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    conditions: list[Condition] | None = None


class Controller(Object, frozen=True):
    """Whatever makes pods from a template: a Deployment, a StatefulSet.

    Attributes:
        kind: items of a list do not say it; whoever lists them does.
    """

    kind: str = ""
    spec: _ControllerSpec = _ControllerSpec()
    status: _ControllerStatus = _ControllerStatus()

    @property
    def replicas(self) -> int:
        """As declared; 1 where nobody says."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def labels(self) -> dict[str, str]:
        """Of its pods."""
        return self.spec.template.metadata.labels or {}

    @property
    def pods(self) -> list[GroupPodSpec]:
        """One spec per replica."""
        return [self.spec.template.spec] * self.replicas

    @property
    def rolls(self) -> bool:
        """Whether a change of the template gives it new pods by itself."""
        strategy = self.spec.update_strategy
        return not self.spec.paused and not (strategy is not None and strategy.type == "OnDelete")

    @property
    def room(self) -> tuple[int, int]:
        """Pods beyond those declared, and missing, while it rolls: Kubernetes' rule, a quarter of each where nobody says. A
        StatefulSet replaces one after the other.
        """
        if self.spec.update_strategy is not None:
            return 0, 1
        strategy = self.spec.strategy or _Strategy()
        if strategy.type == "Recreate":
            return 0, self.replicas
        told = strategy.rolling_update or _RollingUpdate()
        surge = _share(told.max_surge, self.replicas, up=True)
        missing = _share(told.max_unavailable, self.replicas, up=False)
        return (surge, missing) if surge or missing else (0, 1)

    @property
    def rolled_out(self) -> bool:
        """Its pods are all of the template, and ready."""
        status = self.status
        seen = status.observed_generation >= self.metadata.generation
        return seen and status.updated_replicas == status.ready_replicas == status.replicas == self.replicas

    @property
    def gave_up(self) -> str:
        """Why its rollout does not go on; empty while it may."""
        if self.status.observed_generation < self.metadata.generation:
            return ""
        found = find(self.status.conditions, "Progressing")
        return found.message or found.reason if found is not None and found.status == "False" else ""

    @property
    def workload(self) -> tuple[str, str]:
        """AppGroup and workload selector of its pods."""
        return self.labels.get(APPGROUP_LABEL, ""), self.labels.get(WORKLOAD_LABEL, "")


def _share(told: int | str | None, replicas: int, *, up: bool) -> int:
    """A number of pods, or a percentage of them; what cannot be read is Kubernetes' quarter."""
    if isinstance(told, int):
        return told
    percent = int(told[:-1]) if told is not None and told.endswith("%") and told[:-1].isdecimal() else 25
    return -(-replicas * percent // 100) if up else replicas * percent // 100
