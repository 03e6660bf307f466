"""Reads the running controller's configuration from its ConfigMap."""

from __future__ import annotations

from typing import Any

from controller.config import ControllerConfiguration, parse_config
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, ConfigMap, Object
from netperf.contract import CONTROLLER

VOLUME, FILE = "config", "config.yaml"


class _Deployment(Object, frozen=True):
    spec: dict[str, Any] = {}


async def read_running_config(client: Client, home: str) -> tuple[ControllerConfiguration, str]:
    """The running controller's configuration, and an empty text; the defaults, and why, where it cannot be read.

    Raises:
        KubekitError: no answer.
    """
    try:
        found = await client.get(DEPLOYMENTS, CONTROLLER, _Deployment, namespace=home)
        volumes = found.spec.get("template", {}).get("spec", {}).get("volumes", ())
        maps = (volume.get("configMap", {}) for volume in volumes if volume["name"] == VOLUME)
        name = next((mounted["name"] for mounted in maps if "name" in mounted), "")
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
