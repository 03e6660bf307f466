"""Installs our product in a lab of real nodes: images from the Dockerfiles, and an overlay.

Nothing of it runs beside its pods: the kubelets start what the overlay says, from images that the lab's registry serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from lab.cluster import Lab
from lab.errors import BootError
from lab.image_build import AGENT, CONTROLLER, IMAGE_TAG, find_or_build_image
from lab.installation import OVERLAY
from netperf.contract import CAPACITY_ANNOTATION, HOME_NAMESPACE, NAME_LABEL
from netperf.contract import CONTROLLER as CONTROLLER_NAME

_ROLLOUT_TIMEOUT_S = 240.0


def build_images() -> dict[str, Path]:
    """OCI layouts of the agent's and the controller's image, by name with its tag; from the cache or built. Blocks.

    Raises:
        BuildError, UnsupportedError: as `find_or_build_image`.
    """
    return {f"{recipe.name}:{IMAGE_TAG}": find_or_build_image(recipe) for recipe in (AGENT, CONTROLLER)}


async def install_as_shipped(lab: Lab, images: Mapping[str, Path], *, overlay: Path = OVERLAY) -> None:
    """Apply an overlay and wait until every pod of it is ready.

    Args:
        lab: with real nodes, and with a default scheduler.
        images: OCI layouts by name, as `build_images` gives them.
        overlay: which kustomization.

    Raises:
        BootError: it could not be applied, or a pod is not ready after four minutes; says why.
    """
    assert lab.real_nodes.images is not None, "the lab has no real nodes"
    for name, layout in images.items():
        await asyncio.to_thread(lab.real_nodes.images.add_layout, name, layout)
    for network in lab.nodes:
        # The agent believes no TUN device's speed; on such a node, its operator gives the card's.
        capacity = f"{CAPACITY_ANNOTATION}={network.node.nic_bps}"
        await lab.control_plane.run_kubectl("annotate", "--overwrite", "node", network.node.name, capacity)
    await lab.control_plane.run_kubectl("apply", "--server-side", "--force-conflicts", "-k", str(overlay))
    # Report a node's program that ended, instead of pods that are not ready minutes later.
    rollout, failure = asyncio.create_task(await_rollout(lab)), asyncio.create_task(lab.programs.watch())
    try:
        await asyncio.wait({rollout, failure}, return_when=asyncio.FIRST_COMPLETED)
        await (rollout if rollout.done() else failure)
    finally:
        rollout.cancel()
        failure.cancel()
        await asyncio.gather(rollout, failure, return_exceptions=True)
    # A pod's address, which the host reaches; a Service's works on nodes alone.
    label, path = f"{NAME_LABEL}={CONTROLLER_NAME}", "jsonpath={.items[0].status.podIP}"
    words = ("-n", HOME_NAMESPACE, "get", "pods", "-l", label, "-o", path)
    lab.urls["controller"] = f"http://{await lab.control_plane.run_kubectl(*words)}:9851"


async def await_rollout(lab: Lab, namespace: str = HOME_NAMESPACE) -> None:
    """Wait until every DaemonSet and Deployment of a namespace is rolled out. Raises BootError with what its pods say."""
    deadline = time.monotonic() + _ROLLOUT_TIMEOUT_S
    listed = await lab.control_plane.run_kubectl("-n", namespace, "get", "daemonsets,deployments", "-o", "name")
    for name in listed.split():
        left_s = max(1.0, deadline - time.monotonic())
        try:
            await lab.control_plane.run_kubectl(
                "-n", namespace, "rollout", "status", name, f"--timeout={left_s:.0f}s", timeout_s=left_s + 10
            )
        except BootError as error:
            described = await lab.control_plane.run_kubectl("-n", namespace, "describe", "pods")
            raise BootError(f"{error}\n{described[-4000:]}") from error
