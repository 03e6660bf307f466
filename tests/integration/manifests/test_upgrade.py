"""An upgrade loses no object, and an uninstallation leaves none."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, ConfigMap, Object
from lab.polling import poll_until
from tests.integration.conftest import read_crd_bodies, remove_crds, wait_until_crds_are_served
from tests.integration.controller.harness import wait_until_equal
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Kubectl, uninstall
from tests.support.documents import read_shell_blocks


async def list_object_names(kubectl: Kubectl) -> set[str]:
    """All objects with our label or in our namespace, without those that expire."""
    names: set[str] = set()
    for scope in ("true", "false"):
        kinds = (await kubectl("api-resources", "--verbs=list", f"--namespaced={scope}", "-o", "name")).split()
        kept_kinds = ",".join(kind for kind in kinds if not kind.startswith(("events", "leases")))
        names |= set(
            (await kubectl("get", kept_kinds, "-A", "-l", "app.kubernetes.io/part-of=netaware", "-o", "name")).split()
        )
        if scope == "true":
            names |= set((await kubectl("get", kept_kinds, "-n", NAMESPACE, "-o", "name")).split())
    return names


def read_commands(page: str, heading: str) -> list[str]:
    """The commands in the shell blocks of a page."""
    return "".join(read_shell_blocks(page, heading)).replace("\\\n", " ").splitlines()


async def test_definitions_upgrade_in_place_and_keep_their_objects(kubectl: Kubectl, admin: Client) -> None:
    """The old definitions have no status subresource, as upstream's."""
    for definition in read_crd_bodies().values():
        for version in definition["spec"]["versions"]:
            version.pop("subresources", None)
            version.pop("additionalPrinterColumns", None)
        await kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(definition))
    await wait_until_crds_are_served(admin)
    examples = ("online-boutique/appgroup.yaml", "networktopology.yaml")
    manifest = "---\n".join((MANIFESTS / "examples" / name).read_text() for name in examples)
    await kubectl("apply", "-n", "default", "-f", "-", stdin=manifest.replace(NAMESPACE, "default"))

    async def read_specs_and_uids() -> list[Any]:
        group = await admin.get(APPGROUPS, "online-boutique", dict, namespace="default")
        topology = await admin.get(NETWORK_TOPOLOGIES, "nt-example", dict, namespace="default")
        return [(body["spec"], body["metadata"]["uid"]) for body in (group, topology)]

    async def has_status() -> bool:
        return "appgroups/status" in await kubectl("get", "--raw", f"/apis/{APPGROUPS.api_version}")

    specs_and_uids = await read_specs_and_uids()
    assert not await has_status()
    await kubectl("apply", "--server-side", "--force-conflicts", "-k", str(MANIFESTS / "crds"))
    await poll_until(has_status)
    assert await read_specs_and_uids() == specs_and_uids
    await remove_crds(admin)


@pytest.mark.parametrize(
    "overlay",
    ["descheduler", *(pytest.param(name, marks=pytest.mark.slow) for name in ("enforce", "any-scheduler"))],
)
async def test_the_documented_uninstall_leaves_nothing_of_any_overlay(kubectl: Kubectl, overlay: str) -> None:
    foreign_names = await list_object_names(kubectl)  # of other tests, in their own namespaces
    await kubectl("apply", "--server-side", "-k", str(MANIFESTS / "overlays" / overlay))
    assert "daemonset.apps/netaware-agent" in await list_object_names(kubectl)
    # Tests on real nodes cover the earlier steps, in which programs clean nodes and pods.
    for line in (line for line in read_commands("install", "Uninstall") if line.startswith("kubectl delete")):
        await kubectl(*shlex.split(line)[1:], "--timeout=60s")
    assert await list_object_names(kubectl) <= foreign_names


async def test_changing_the_overlay_as_documented_revokes_rights(kubectl: Kubectl, admin: Client) -> None:
    pruning_kubectl = Kubectl(kubectl.binary, kubectl.kubeconfig, {"KUBECTL_APPLYSET": "true"})
    namespace, line = read_commands("upgrade", "With kubectl")
    controller = f"--as=system:serviceaccount:{NAMESPACE}:netaware-controller"

    async def apply(overlay: str) -> str:
        words = shlex.split(line.replace("dist/overlay", str(MANIFESTS / "overlays" / overlay)))
        return await pruning_kubectl(*words[2:])

    async def may_evict() -> bool:
        question = ("auth", "can-i", "create", "pods", "--subresource=eviction", controller)
        return "yes" in await kubectl(*question, ok_codes=(0, 1))

    await kubectl("apply", "--server-side", "-k", str(MANIFESTS / "overlays" / "descheduler"))  # the first installation
    await kubectl(*shlex.split(namespace.replace("manifests", str(MANIFESTS)))[1:])
    await apply("descheduler")
    await poll_until(may_evict)
    # Pruning keeps objects of programs, which are no part of the overlay.
    results = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "netperf-metrics"}}
    await admin.create(CONFIGMAPS, results, Object, namespace=NAMESPACE)
    pruned = [text for text in (await apply("default")).splitlines() if text.endswith("pruned")]
    assert pruned
    assert all("netaware-descheduler" in text or "controller-config" in text for text in pruned), pruned
    await wait_until_equal(may_evict, expected=False)
    await admin.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=NAMESPACE)
    assert "pruned" not in await apply("default")
    await uninstall(kubectl, admin, "default")
