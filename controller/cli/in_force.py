"""Which configuration is in force: the running controller's, as its Deployment mounts it."""

from __future__ import annotations

from controller.config import ControllerConfiguration, parse_config
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError
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


async def read_configuration(client: Client, home: str) -> tuple[ControllerConfiguration, str]:
    """The running controller's configuration, and an empty text; the defaults, and why, where it cannot be read.

    Raises:
        KubekitError: no answer.
    """
    try:
        found = await client.get(DEPLOYMENTS, DEPLOYMENT, _Deployment, namespace=home)
        volumes = found.spec.template.spec.volumes or ()
        name = next((v.config_map.name for v in volumes if v.name == VOLUME and v.config_map is not None), "")
        if name:
            data = (await client.get(CONFIGMAPS, name, ConfigMap, namespace=home)).data or {}
            if FILE in data:
                return parse_config(data[FILE], f"ConfigMap {home}/{name}"), ""
    except ApiError as error:
        if not (error.forbidden or error.not_found):
            raise
    except ConfigError as error:
        return ControllerConfiguration(), f"{error}; defaults are used"
    return ControllerConfiguration(), f"the controller's was not found in {home}; defaults are used"
