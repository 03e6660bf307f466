"""Reads Cilium's ConfigMap, the configuration of its agents (pkg/option, pkg/datapath/linux/bandwidth)."""

from __future__ import annotations

import msgspec

from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import CONFIGMAPS, ConfigMap

NAMESPACE, NAME = "kube-system", "cilium-config"


class Cilium(msgspec.Struct, frozen=True, kw_only=True):
    """Its configuration.

    Attributes:
        installed: the ConfigMap exists.
        limits: the bandwidth manager is enabled.
        unknown: why it could not be read; empty otherwise.
    """

    installed: bool = False
    limits: bool = False
    unknown: str = ""


def parse_cilium(data: dict[str, str]) -> Cilium:
    """Parse the ConfigMap's data; Cilium disables its bandwidth manager beside IPsec (``manager.probe``)."""
    on = data.get("enable-bandwidth-manager", "false") == "true" and data.get("enable-ipsec", "false") != "true"
    return Cilium(installed=True, limits=on)


async def read_cilium(client: Client) -> Cilium:
    """Read it from the API server; without the right to, it is unknown."""
    try:
        config_map = await client.get(CONFIGMAPS, NAME, ConfigMap, namespace=NAMESPACE)
    except ApiError as error:
        if error.not_found:
            return Cilium()
        if error.status in {401, 403}:
            return Cilium(unknown=f"ConfigMap {NAMESPACE}/{NAME} is not readable: {error.message}")
        return Cilium(unknown=f"ConfigMap {NAMESPACE}/{NAME}: {error}")
    except KubekitError as error:
        return Cilium(unknown=f"ConfigMap {NAMESPACE}/{NAME}: {error}")
    return parse_cilium(config_map.data or {})
