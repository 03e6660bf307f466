"""Deployments and StatefulSets, as far as simulations read them."""

from __future__ import annotations

from controller.cluster.pods import GroupPodSpec
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from kubekit.wire import Object, ObjectMeta, Wire


class _Template(Wire, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GroupPodSpec = GroupPodSpec()


class _ControllerSpec(Wire, frozen=True):
    """The spec of a Deployment or StatefulSet."""

    replicas: int | None = None
    template: _Template = _Template()


class Controller(Object, frozen=True):
    """A Deployment or StatefulSet.

    Attributes:
        kind: set by the reader, because items of a list lack it.
    """

    kind: str = ""
    spec: _ControllerSpec = _ControllerSpec()

    @property
    def replicas(self) -> int:
        """Declared replicas, by default 1."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its pods."""
        return self.spec.template.metadata.labels or {}

    @property
    def workload(self) -> tuple[str, str]:
        """AppGroup and workload selector of its pods."""
        return self.labels.get(APPGROUP_LABEL, ""), self.labels.get(WORKLOAD_LABEL, "")
