"""What makes pods: Deployments and StatefulSets as far as simulations read them."""

from __future__ import annotations

from controller.cluster.pods import GroupPodSpec
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from kubekit.wire import Object, ObjectMeta, Resource, Wire

STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")


class _Template(Wire, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GroupPodSpec = GroupPodSpec()


class _ControllerSpec(Wire, frozen=True):
    """Of a Deployment or StatefulSet."""

    replicas: int | None = None
    template: _Template = _Template()


class Controller(Object, frozen=True):
    """Whatever makes pods from a template: a Deployment, a StatefulSet."""

    spec: _ControllerSpec = _ControllerSpec()

    @property
    def workload(self) -> tuple[str, str]:
        """AppGroup and workload selector of its pods."""
        labels = self.spec.template.metadata.labels or {}
        return labels.get(APPGROUP_LABEL, ""), labels.get(WORKLOAD_LABEL, "")
