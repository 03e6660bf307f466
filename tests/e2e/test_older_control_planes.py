"""The product works on the oldest supported minor of Kubernetes, and after the upgrade to the newest minor.

The first run builds the oldest control plane, which takes some minutes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml

from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.pods import TARGET_ANNOTATION, PlacementMode
from kubekit import conditions
from kubekit.client import Client
from kubekit.wire import NODES, PODS, SERVICE_ACCOUNTS, Object, Pod
from lab import boutique
from lab.build import Binaries, find_or_build_binaries
from lab.cluster import Lab
from lab.controlplane import object_exists
from lab.demo import COMPONENTS
from lab.errors import BootError
from lab.installation import get_network_topology, install
from lab.polling import poll_until
from lab.topology import load_topology
from netperf.contract import ZONE_LABEL
from tests.integration.manifests.kubectl import write_kustomization
from tests.support.controller_program import start_webhook
from tests.support.tools.builds import OLDEST_CONTROL_PLANE

DEADLINE_S = 360.0
BOUTIQUE, POD_COUNT = "boutique", 11
wait_until = partial(poll_until, timeout_s=DEADLINE_S, every_s=0.3)

pytestmark = [pytest.mark.minors, pytest.mark.timeout(1500, func_only=True)]


def link_programs(folder: Path, binaries: Mapping[str, Path]) -> None:
    """Link to these programs, so that a restart runs those of another release."""
    for name, path in binaries.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path)


def write_overlay(binaries: Binaries, folder: Path) -> Path:
    """Write the overlay that docs/install.md names for clusters of this version."""
    minor = binaries.version.removeprefix("v").rpartition(".")[0]
    return write_kustomization("default", f"kubernetes-{minor}", "replace-pending", folder=folder)


@pytest.fixture(scope="module")
def oldest() -> Binaries:
    """Programs of the oldest supported release."""
    return find_or_build_binaries(OLDEST_CONTROL_PLANE)


class Steps:
    """Steps of an operator in a lab, each with a wait for its effect."""

    def __init__(self, lab: Lab, client: Client, placement: PlacementMode) -> None:
        self._lab, self._client, self._placement = lab, client, placement
        # With affinity the default scheduler places pods, and users only set a label.
        scheduler = "network-aware-scheduler" if placement == "extender" else "default-scheduler"
        self._application = boutique.load_application(scheduler=scheduler, cpu="10m")

    async def kubectl(self, *arguments: str | Path) -> str:
        return await self._lab.control_plane.run_kubectl(*arguments, timeout_s=DEADLINE_S)

    async def install_webhook(self, folder: Path) -> Path:
        """Start the webhook, and apply and return the file of its configuration."""
        keys = folder / "keys"
        keys.mkdir()
        _, configuration = start_webhook(self._lab.programs, keys)
        (folder / "webhook.yaml").write_text(yaml.safe_dump(configuration))
        await self.kubectl("apply", "--server-side", "-f", folder / "webhook.yaml")
        return folder / "webhook.yaml"

    async def restart_control_plane(self, version: str) -> None:
        """Restart Kubernetes' programs one after the other, and wait until the API server has this version."""

        async def is_serving() -> bool:
            try:
                return "ok" in await self.kubectl("get", "--raw", "/readyz") and version in await self.kubectl(
                    "version"
                )
            except BootError:
                return False

        for program in [program for program in self._lab.programs if program.name.startswith("kube-")]:
            await self._lab.programs.restart(program)
            await wait_until(is_serving, f"the API server of {version}")

    async def wait_until_installed(self) -> None:
        await wait_until(self._is_measured, "costs that were measured")
        await self.kubectl("create", "namespace", BOUTIQUE)
        if self._placement == "affinity":
            await self.kubectl("label", "namespace", BOUTIQUE, "netaware.io/placement=affinity")
        account = partial(object_exists, self._client, SERVICE_ACCOUNTS, "default", BOUTIQUE)
        await wait_until(account, "the namespace's service account")
        await wait_until(self.are_gated, "pods of a group to be gated")

    async def place(self) -> None:
        application = self._application
        documents = [application.group, *application.services.values(), *application.deployments.values()]
        file = self._lab.paths.state_dir / "boutique.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        await self.kubectl("apply", "-n", BOUTIQUE, "-f", file)
        await wait_until(self._are_placed, "eleven pods on nodes, as planned")

    async def roll_out(self) -> None:
        """Replace every pod by a restart of the Deployments."""
        old_uids = {pod.metadata.uid for pod in await self._list_placed_pods()}
        await self.kubectl("rollout", "restart", "deployments", "-n", BOUTIQUE)

        async def are_replaced() -> bool:
            uids = {pod.metadata.uid for pod in await self._list_placed_pods()}
            return uids.isdisjoint(old_uids) and await self._are_placed()

        await wait_until(are_replaced, "eleven new pods on nodes, as planned")

    async def drain(self) -> None:
        """Drain the node with the most pods, and wait until they are placed on other nodes."""
        nodes = [pod.spec.node_name for pod in await self._list_placed_pods()]
        fullest_node = max(nodes, key=nodes.count)
        await self.kubectl("drain", fullest_node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")

        async def are_elsewhere() -> bool:
            nodes = {pod.spec.node_name for pod in await self._list_placed_pods()}
            return fullest_node not in nodes and await self._are_placed()

        await wait_until(are_elsewhere, f"eleven pods on nodes other than {fullest_node}")
        await self.kubectl("uncordon", fullest_node)

    async def _list_placed_pods(self) -> list[Pod]:
        return [pod for pod in await self._client.list(PODS, Pod, namespace=BOUTIQUE) if pod.spec.node_name]

    async def _are_placed(self) -> bool:
        """Whether eleven pods are each on the planned node, or with affinity in the planned zone."""
        pods = await self._client.list(PODS, Pod, namespace=BOUTIQUE)
        nodes = await self._client.list(NODES, Object)
        groups = await self._client.list(APPGROUPS, AppGroup, namespace=BOUTIQUE)
        zone_by_node = {node.metadata.name: node.metadata.label(ZONE_LABEL) for node in nodes}
        targets = [json.loads(pod.metadata.annotation(TARGET_ANNOTATION) or "{}") for pod in pods]
        are_planned = all(
            zone_by_node.get(pod.spec.node_name) == target.get("zone")
            and (self._placement == "affinity" or pod.spec.node_name == target.get("node"))
            for pod, target in zip(pods, targets, strict=True)
        )
        return len(groups) == 1 and len(pods) == POD_COUNT and all(pod.spec.node_name for pod in pods) and are_planned

    async def _is_measured(self) -> bool:
        topology = await get_network_topology(self._client)
        measured = conditions.find_condition(topology.status.conditions, "Measured")
        return measured is not None and measured.status == "True"

    async def are_gated(self) -> bool:
        """Whether admission gates a pod; the pod is created by a dry run only."""
        template = next(iter(self._application.deployments.values()))["spec"]["template"]
        metadata = {**template["metadata"], "name": "dry-run"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        response = await self._client.request("POST", f"{PODS.path(BOUTIQUE)}?dryRun=All", body=body)
        return bool(json.loads(response)["spec"].get("schedulingGates"))


@pytest.mark.parametrize("placement", ["extender", "affinity"])
@pytest.mark.usefixtures("require_lab_privileges")
async def test_pods_are_placed_on_the_oldest_minor_and_after_the_upgrade_to_the_newest(
    tmp_path: Path, oldest: Binaries, placement: PlacementMode
) -> None:
    newest = find_or_build_binaries()
    programs = tmp_path / "bin"
    programs.mkdir()
    link_programs(programs, {**newest.paths, **oldest.paths})
    lab_context = Lab.start(
        load_topology("four-zones"),
        name=f"e2e-oldest-{placement}",
        components=COMPONENTS,
        folder=tmp_path / "labs",
        binaries=Binaries(oldest.version, {name: programs / name for name in newest.paths}),
    )
    async with lab_context as lab, Client(lab.client_config) as client:
        steps = Steps(lab, client, placement)
        config = {"scheduler": {"placement": placement}}
        await install(lab, controller_config=config, overlay=write_overlay(oldest, tmp_path))
        webhook = await steps.install_webhook(tmp_path)
        await steps.wait_until_installed()
        await steps.place()
        await steps.drain()

        link_programs(programs, newest.paths)
        await steps.restart_control_plane(newest.version)
        await steps.kubectl("apply", "--server-side", "-k", write_overlay(newest, tmp_path))
        await steps.kubectl("delete", "-f", webhook)
        await wait_until(steps.are_gated, "pods to be gated by the policy")
        await steps.roll_out()
        await steps.drain()
