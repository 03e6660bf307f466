"""The running controller's configuration, so that a command judges by the rules that are in force and not by the defaults."""

from __future__ import annotations

from controller.cli.session import Session
from controller.config import ControllerConfiguration, parse_config
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, ConfigMap, Object, Wire
from netperf.contract import CONTROLLER

DEPLOYMENT, VOLUME, FILE = CONTROLLER, "config", "config.yaml"


class _ConfigMapVolume(Wire, frozen=True):
    name: str = ""


class _Volume(Wire, frozen=True):
    name: str = ""
    config_map: _ConfigMapVolume | None = None


class _PodSpec(Wire, frozen=True):
    volumes: list[_Volume] | None = None


class _Template(Wire, frozen=True):
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(Wire, frozen=True):
    template: _Template = _Template()


class _Deployment(Object, frozen=True):
    spec: _DeploymentSpec = _DeploymentSpec()


async def live_configuration(session: Session) -> ControllerConfiguration:
    """The running controller's configuration; the defaults, with a note, where it cannot be read."""
    try:
        found = await session.client.get(DEPLOYMENTS, DEPLOYMENT, _Deployment, namespace=session.home)
        volumes = found.spec.template.spec.volumes or ()
        name = next((v.config_map.name for v in volumes if v.name == VOLUME and v.config_map is not None), "")
        if name:
            data = (await session.client.get(CONFIGMAPS, name, ConfigMap, namespace=session.home)).data or {}
            if FILE in data:
                return parse_config(data[FILE], f"ConfigMap {session.home}/{name}")
    except ApiError as error:
        if not (error.forbidden or error.not_found):
            raise
    session.notes["configuration"] = f"the controller's was not found in {session.home}; defaults are used"
    return ControllerConfiguration()
