"""Asks the cloud's metadata service which type of instance this is, where the node's label does not say.

Nobody is asked but on machines whose firmware names that cloud, and then only until there is an answer. Requests: Amazon's
IMDSv2 (a token first), Google's and Azure's with the header that each demands so that no web page can ask.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Literal

import aiohttp

from agent.capacity.links import Machine
from agent.capacity.node_bandwidth import INSTANCE_TYPE_LABEL
from agent.capacity.rules import is_azure
from agent.node import NodeView, OwnNode
from kubekit import logs

log = logs.get("agent.metadata")

Cloud = Literal["amazon", "google", "azure"]
SERVICE = "http://169.254.169.254"
TIMEOUT_S = 2.0
RETRY_S = 600.0
_TOKEN_TTL, _TOKEN = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"
_GOOGLE = {"Metadata-Flavor": "Google"}
_AMAZON_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")
_TYPE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_BYTES = 4096


def cloud_of(machine: Machine) -> Cloud | None:
    """Whose virtual machine this is by its firmware; None for hardware and for others' machines."""
    if not machine.hypervisor:
        return None
    if machine.vendor == "Amazon EC2":
        return "amazon"
    if machine.vendor == "Google" and machine.product == "Google Compute Engine":
        return "google"
    return "azure" if is_azure(machine) else None


async def find_type(machine: Machine, node: OwnNode | None, service: str = SERVICE) -> str:
    """The type of this instance, once: empty where the node's label says it, or nobody does."""
    cloud = cloud_of(machine)
    if cloud is None or (node is not None and node.metadata.label(INSTANCE_TYPE_LABEL)):
        return ""
    # Amazon's firmware names the type, and nothing on the network can answer in its place.
    if cloud == "amazon" and _AMAZON_TYPE.fullmatch(machine.product):
        return machine.product
    return await ask(cloud, service)


class InstanceType:
    """The type as firmware or the metadata service says.

    Args:
        machine: what firmware says about this machine.
        view: the own node, whose label makes all this needless.
        service: where the service is.

    Attributes:
        value: the type; empty until somebody said it.
    """

    def __init__(self, machine: Machine, view: NodeView, service: str = SERVICE) -> None:
        self.value = ""
        self._machine, self._view, self._service = machine, view, service

    async def run(self, changed: Callable[[], None]) -> None:
        """Ask until there is an answer, for which ``changed`` is called, or a label; then do nothing until cancelled."""
        node = await self._view.known()
        cloud = cloud_of(self._machine)
        while cloud is not None and not self.value and not node.metadata.label(INSTANCE_TYPE_LABEL):
            self.value = await find_type(self._machine, node, self._service)
            if self.value:
                log.info("instance type", type=self.value, cloud=cloud)
                changed()
            else:
                await asyncio.sleep(RETRY_S)
            node = await self._view.known()
        await asyncio.Event().wait()


async def ask(cloud: Cloud, service: str = SERVICE) -> str:
    """The type of this instance; empty when there is no answer within two seconds, or one that is no type."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(service, timeout=timeout) as session:
            if cloud == "amazon":
                token = await _read(session, "PUT", "/latest/api/token", {_TOKEN_TTL: "60"})
                answer = await _read(session, "GET", "/latest/meta-data/instance-type", {_TOKEN: token})
            elif cloud == "google":
                answer = await _read(session, "GET", "/computeMetadata/v1/instance/machine-type", _GOOGLE)
            else:
                path = "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"
                answer = await _read(session, "GET", path, {"Metadata": "true"})
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        log.change("metadata", type(error).__name__, "the metadata service gives no type", error=error, level="info")
        return ""
    found = answer.rpartition("/")[2].strip()  # Google's is projects/<number>/machineTypes/<type>
    return found if _TYPE.fullmatch(found) else ""


async def _read(session: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str]) -> str:
    # A redirect would carry the token to somebody else.
    async with session.request(method, path, headers=headers, allow_redirects=False) as answer:
        if answer.status != 200:
            raise aiohttp.ClientError(f"{method} {path}: {answer.status}")
        return (await answer.content.read(_MAX_BYTES)).decode("ascii")
