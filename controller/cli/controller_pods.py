"""The controller's pods: which of them are ready, and at which port they serve."""

from __future__ import annotations

from controller.config import ControllerConfiguration
from kubekit.conditions import find
from kubekit.http import parse_listen
from kubekit.wire import Condition, Object, Wire

PORT_NAME = "metrics"
"""What the manifests call the port of page, metrics and health checks; the kubelet's probes go by it, too."""


class _Port(Wire, frozen=True):
    name: str = ""
    container_port: int = 0


class _Container(Wire, frozen=True):
    ports: list[_Port] | None = None


class _Spec(Wire, frozen=True):
    containers: list[_Container] | None = None


class _Status(Wire, frozen=True):
    conditions: list[Condition] | None = None


class ControllerPod(Object, frozen=True):
    """One of them."""

    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def ready(self) -> bool:
        """The Ready condition is True."""
        found = find(self.status.conditions, "Ready")
        return found is not None and found.status == "True"

    @property
    def port(self) -> int | None:
        """Where it serves; None where it does not say."""
        ports = (port for container in self.spec.containers or () for port in container.ports or ())
        return next((port.container_port for port in ports if port.name == PORT_NAME and port.container_port), None)


def configured_port(configuration: ControllerConfiguration) -> int:
    """Where its pods serve that do not say it themselves."""
    _, port = parse_listen(configuration.listen)
    return port or configured_port(ControllerConfiguration())
