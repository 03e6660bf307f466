"""Creates a NetworkTopology and the Secret with the probing passphrase in a new installation.

`kubectl apply -k` cannot create a custom resource together with its definition, and a passphrase must not be in a repository. So
the leader creates both if they are configured and missing.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Mapping

from controller.cluster.resources import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError
from kubekit.reflector import Reflector
from kubekit.settings import Section, join_path
from kubekit.wire import SECRETS, Object, Resource
from netperf.contract import PART_OF, PASSPHRASE_KEY, PROBE_SECRET, RESULTS_NAME

log = logs.get("controller.bootstrap")

CHECK_S = 60.0


class BootstrapConfig(Section, frozen=True):
    """Objects that the leader creates if they are missing. The shipped manifests set both.

    Attributes:
        network_topology: name of a NetworkTopology to create while the cluster has none.
        probe_secret: create the Secret netaware-probe with a random passphrase.
    """

    network_topology: str = ""
    probe_secret: bool = False

    def check(self, field: str) -> None:
        """Raise ConfigError when networkTopology is too long for an object's name."""
        if len(self.network_topology) > 253:
            raise ConfigError(
                join_path(field, "networkTopology"), "is too long for an object's name", "write nt-default"
            )


class Bootstrap:
    """Creates the objects that the configuration asks for.

    Args:
        client: fenced; only the leader writes.
        topologies: store of all NetworkTopologies.
        config: what to create.
        namespace: netaware's own.
        make_passphrase: returns a random passphrase.
    """

    def __init__(
        self,
        client: Client,
        topologies: Reflector[NetworkTopology],
        config: BootstrapConfig,
        *,
        namespace: str,
        make_passphrase: Callable[[], str] = secrets.token_hex,
    ) -> None:
        self._client, self._topologies, self._config = client, topologies, config
        self._namespace, self._make_passphrase = namespace, make_passphrase

    async def run(self) -> None:
        """Create what is missing, every minute, until cancelled."""
        secret_done = not self._config.probe_secret
        while True:
            if not secret_done:
                secret_done = await self._create(SECRETS, PROBE_SECRET, self._secret())
            has_none = self._topologies.synced.is_set() and not len(self._topologies)
            if self._config.network_topology and has_none:
                spec = {"spec": {"configmapName": RESULTS_NAME}}
                await self._create(NETWORK_TOPOLOGIES, self._config.network_topology, spec)
            await asyncio.sleep(CHECK_S)

    def _secret(self) -> dict[str, object]:
        passphrase = base64.b64encode(self._make_passphrase().encode()).decode()
        return {"type": "Opaque", "data": {PASSPHRASE_KEY: passphrase}}

    async def _create(self, resource: Resource, name: str, content: Mapping[str, object]) -> bool:
        """Create one object; returns whether it exists now. A failure is logged once and retried in the next round."""
        metadata = {"name": name, "namespace": self._namespace, "labels": PART_OF}
        body = {**resource.type_meta, "metadata": metadata, **content}
        try:
            await self._client.create(resource, body, Object, namespace=self._namespace)
        except KubekitError as error:
            if isinstance(error, ApiError) and error.already_exists:
                return True
            log.change(
                resource.kind, type(error).__name__, f"cannot create the {resource.kind}", name=name, error=error
            )
            return False
        log.info("created a missing object", kind=resource.kind, name=f"{self._namespace}/{name}")
        return True
