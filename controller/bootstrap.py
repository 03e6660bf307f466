"""Creates a NetworkTopology and the Secret with the probing passphrase in a new installation.

`kubectl apply -k` cannot create a custom resource together with its CRD, and a passphrase must not be in a repository.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from typing import Annotated

import msgspec

from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.reflector import Reflector
from kubekit.settings import Section
from kubekit.wire import SECRETS, Object, Resource
from netperf.contract import PART_OF_LABELS, PASSPHRASE_KEY, PROBE_SECRET, RESULTS_NAME

log = logs.get("controller.bootstrap")

CHECK_INTERVAL_S = 60.0
"""Time between checks for missing objects."""
MAX_NAME_LENGTH = 253
"""Longest name of an object that the API server accepts."""


class BootstrapConfig(Section, frozen=True):
    """Objects that the leader creates if they are missing. The shipped manifests set both.

    Attributes:
        network_topology: name of a NetworkTopology to create while the cluster has none.
        probe_secret: create the Secret netaware-probe with a random passphrase.
    """

    network_topology: Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)] = ""
    probe_secret: bool = False


class Bootstrap:
    """Creates the configured objects in ``namespace`` if they are missing. ``topologies`` has the NetworkTopologies of all namespaces."""

    def __init__(
        self, client: Client, topologies: Reflector[NetworkTopology], config: BootstrapConfig, *, namespace: str
    ) -> None:
        self._client, self._topologies, self._config, self._namespace = client, topologies, config, namespace

    async def run(self) -> None:
        """Create missing objects, every minute, until cancelled. The Secret is not created again if it is deleted later."""
        may_lack_secret = self._config.probe_secret
        while True:
            if may_lack_secret:
                passphrase = base64.b64encode(secrets.token_hex().encode()).decode()
                content = {"type": "Opaque", "data": {PASSPHRASE_KEY: passphrase}}
                may_lack_secret = not await self._create_if_missing(SECRETS, PROBE_SECRET, content)
            # An object that cannot be decoded, perhaps of a later version, exists as well.
            has_topology = len(self._topologies) or self._topologies.decode_error_by_key
            if self._config.network_topology and self._topologies.synced.is_set() and not has_topology:
                spec = {"spec": {"configmapName": RESULTS_NAME}}
                await self._create_if_missing(NETWORK_TOPOLOGIES, self._config.network_topology, spec)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _create_if_missing(self, resource: Resource, name: str, content: Mapping[str, object]) -> bool:
        """Create an object; returns whether it exists now. A lasting failure is logged once; the next check tries again."""
        metadata = {"name": name, "namespace": self._namespace, "labels": PART_OF_LABELS}
        body = {**resource.type_meta, "metadata": metadata, **content}
        try:
            await self._client.create(resource, body, Object, namespace=self._namespace)
        except KubekitError as error:
            if isinstance(error, ApiError) and error.is_already_exists:
                return True
            message = f"cannot create the {resource.kind}"
            log.log_change(resource.kind, error.kind, message, name=name, error=error)
            return False
        log.log_change(resource.kind, "", f"the {resource.kind} can be created again", name=name)
        log.info("created a missing object", kind=resource.kind, name=f"{self._namespace}/{name}")
        return True
