"""Our product on a control plane of the oldest supported minor version: its component installs, and the example is planned.

It builds that control plane the first time, some minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from controller.cluster.pods import TARGET_ANNOTATION
from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from kubekit import conditions
from kubekit.client import Client
from kubekit.waiting import until
from kubekit.wire import PODS, SERVICE_ACCOUNTS, Object, Pod
from lab import boutique
from lab.build import OLDEST_CONTROL_PLANE, Binaries, find_or_build
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.installation import MANIFESTS, install
from lab.topology import load
from netperf.contract import HOME_NAMESPACE
from tests.support.webhook_program import start_webhook

DEADLINE_S = 180.0
BOUTIQUE = "boutique"

pytestmark = [pytest.mark.minors, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture
def oldest() -> Binaries:
    built = find_or_build(OLDEST_CONTROL_PLANE)
    return Binaries(built.version, {**find_or_build().paths, **built.paths})


def overlay(folder: Path, minor: str) -> Path:
    """As docs/install.md has it for clusters of that version."""
    up = Path(*[".."] * len(folder.resolve().parts[1:])) / MANIFESTS.relative_to("/")
    body = {
        "kind": "Kustomization",
        "resources": [str(up / "overlays" / "default")],
        "components": [str(up / "components" / f"kubernetes-{minor}")],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return folder


@pytest.mark.usefixtures("privileges")
async def test_component_installs_and_the_example_is_planned(tmp_path: Path, oldest: Binaries) -> None:
    minor = oldest.version.removeprefix("v").rpartition(".")[0]
    mine, keys = tmp_path / "mine", tmp_path / "keys"
    for folder in (mine, keys):
        folder.mkdir()
    async with Lab.start(
        load("four-zones"), name="e2e-oldest", components=COMPONENTS, folder=tmp_path / "labs", binaries=oldest
    ) as lab:
        await install(lab, overlay=overlay(mine, minor))
        _, configuration = start_webhook(lab.programs, keys)
        (keys / "webhook.yaml").write_text(yaml.safe_dump(configuration))
        await lab.control_plane.run_kubectl(
            "apply", "--server-side", "-f", str(keys / "webhook.yaml"), timeout_s=DEADLINE_S
        )
        async with Client(lab.client_config) as client:
            await until(lambda: is_measured(client), "costs that were measured", DEADLINE_S, every_s=0.3)
            await lab.control_plane.run_kubectl("create", "namespace", BOUTIQUE, timeout_s=DEADLINE_S)
            await until(lambda: has_account(client), "the namespace's service account", DEADLINE_S, every_s=0.3)
            await until(lambda: are_gated(lab), "pods of a group to be gated", DEADLINE_S, every_s=0.3)
            await lab.control_plane.run_kubectl(
                "apply", "-n", BOUTIQUE, "-k", str(MANIFESTS / "examples" / "online-boutique"), timeout_s=DEADLINE_S
            )
            await until(lambda: are_placed(client), "eleven pods on nodes", DEADLINE_S, every_s=0.3)
            for pod in await client.list(PODS, Pod, namespace=BOUTIQUE):
                target = json.loads(pod.metadata.annotation(TARGET_ANNOTATION) or "{}")
                assert target.get("node") == pod.spec.node_name, f"{pod.metadata.name} was to go to {target}"
            (group,) = await client.list(APPGROUPS, AppGroup, namespace=BOUTIQUE)
            planned = conditions.find(group.status.conditions, "Planned")
            assert planned is not None
            assert planned.status == "True", planned


async def is_measured(client: Client) -> bool:
    topology = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=HOME_NAMESPACE)
    measured = conditions.find(topology.status.conditions, "Measured")
    return measured is not None and measured.status == "True"


async def has_account(client: Client) -> bool:
    return bool(await client.list(SERVICE_ACCOUNTS, Object, namespace=BOUTIQUE))


async def are_gated(lab: Lab) -> bool:
    """Whether the webhook is asked, by a pod that is not made."""
    pod = next(iter(boutique.load(scheduler="network-aware-scheduler", cpu="10m").deployments.values()))["spec"][
        "template"
    ]
    body = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "tried"}}
    async with Client(lab.client_config) as client:
        made = await client.request("POST", f"{PODS.path(BOUTIQUE)}?dryRun=All", body=body)
    return bool(json.loads(made)["spec"].get("schedulingGates"))


async def are_placed(client: Client) -> bool:
    pods = await client.list(PODS, Pod, namespace=BOUTIQUE)
    return len(pods) == 11 and all(pod.spec.node_name for pod in pods)
