"""Deployments and StatefulSets with their pod templates, for plans of pods that do not exist yet."""

from __future__ import annotations

from controller.cluster.declared_replicas import ScalableSpec
from controller.cluster.pods import PodSpec
from kubekit.wire import Object, ObjectMeta, Wire


class _Template(Wire, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class _ControllerSpec(ScalableSpec, frozen=True):
    """The spec of a Deployment or StatefulSet."""

    template: _Template = _Template()


class WorkloadController(Object, frozen=True):
    """A Deployment or StatefulSet; the reader sets ``kind``, because items of a list lack it."""

    kind: str = ""
    spec: _ControllerSpec = _ControllerSpec()

    @property
    def pod_labels(self) -> dict[str, str]:
        """Labels of its pod template."""
        return self.spec.template.metadata.labels or {}
