"""Installs our programs as pods in a lab of real nodes: applies an overlay, with images built from the Dockerfiles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from lab.cluster import Lab
from lab.errors import BootError
from lab.image_build import AGENT, CONTROLLER, IMAGE_TAG, find_or_build_image
from lab.installation import OVERLAY
from netperf.contract import CAPACITY_ANNOTATION, NAME_LABEL, NETAWARE_NAMESPACE
from netperf.contract import CONTROLLER as CONTROLLER_NAME

_ROLLOUT_TIMEOUT_S, _SHOWN_CHARS = 240.0, 4000
_CONTROLLER_PORT = 9851


def find_or_build_images() -> dict[str, Path]:
    """Return image name with tag -> OCI layout for agent and controller. Blocks; raises as `find_or_build_image`."""
    return {f"{recipe.name}:{IMAGE_TAG}": find_or_build_image(recipe) for recipe in (AGENT, CONTROLLER)}


async def install_as_pods(lab: Lab, images: Mapping[str, Path], *, overlay: Path = OVERLAY) -> None:
    """Apply an overlay and wait until every pod of it is ready, in a lab with real nodes and a default scheduler.

    Raises BootError if the overlay cannot be applied; an ExceptionGroup of a BootError if a pod is not ready after four minutes, or if a
    program of a node ended.
    """
    assert lab.real_nodes.images is not None, "the lab has no real nodes"
    for name, layout in images.items():
        await asyncio.to_thread(lab.real_nodes.images.add_oci_layout, name, layout)
    for network in lab.networks:
        # The agent does not take the speed of a TUN device for the node's capacity.
        capacity = f"{CAPACITY_ANNOTATION}={network.node.nic_bps}"
        await lab.control_plane.run_kubectl("annotate", "--overwrite", "node", network.node.name, capacity)
    await lab.control_plane.run_kubectl("apply", "--server-side", "--force-conflicts", "-k", str(overlay))
    # Fail at once if a node's program ends, not only after the timeout of the rollout.
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(lab.programs.watch())
        await await_rollout(lab)
        watching.cancel()
    # The pod's address, because the Service's address only works on nodes.
    label, path = f"{NAME_LABEL}={CONTROLLER_NAME}", "jsonpath={.items[0].status.podIP}"
    arguments = ("-n", NETAWARE_NAMESPACE, "get", "pods", "-l", label, "-o", path)
    lab.urls["controller"] = f"http://{await lab.control_plane.run_kubectl(*arguments)}:{_CONTROLLER_PORT}"


async def await_rollout(lab: Lab, namespace: str = NETAWARE_NAMESPACE) -> None:
    """Wait until all DaemonSets and Deployments of a namespace are rolled out. Raises BootError with a description of the pods."""
    deadline_s = time.monotonic() + _ROLLOUT_TIMEOUT_S
    listed = await lab.control_plane.run_kubectl("-n", namespace, "get", "daemonsets,deployments", "-o", "name")
    for name in listed.split():
        remaining_s = max(1.0, deadline_s - time.monotonic())
        try:
            await lab.control_plane.run_kubectl(
                "-n", namespace, "rollout", "status", name, f"--timeout={remaining_s:.0f}s", timeout_s=remaining_s + 10
            )
        except BootError as error:
            description = await lab.control_plane.run_kubectl("-n", namespace, "describe", "pods")
            raise BootError(f"{error}\n{description[-_SHOWN_CHARS:]}") from error
