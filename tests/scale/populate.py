"""Fills an empty control plane with a large cluster: nodes, pods, AppGroups, and the objects that our programs need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
import yaml

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from controller.cluster.pods import OUR_SCHEDULER
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, NAMESPACES, SERVICE_ACCOUNTS, Object
from lab import boutique
from lab.cluster import Lab
from lab.controlplane import ControlPlane, object_exists
from lab.errors import BootError
from lab.installation import OVERLAY
from lab.polling import poll_until
from lab.progress import ProgressPrinter
from netperf.contract import AGENT, NAME_LABEL, NETAWARE_NAMESPACE, PART_OF_LABELS
from tests.scale.objects import node_body, running_pod
from tests.support.etcd import Item, write_objects

ROLLED_OUT_SHARE = 0.1
"""Share of AppGroups whose Deployments are rolled out; pods of the others never change."""
_NOT_APPLIED = frozenset({"DaemonSet", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service"})
_TIMEOUT_S = 120.0


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the cluster; ``pods`` include agents and pods of AppGroups."""

    zones: int = 100
    nodes_per_zone: int = 100
    pods: int = 30_000
    groups: int = 200
    minutes: float = 30.0

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.zones * self.nodes_per_zone

    @property
    def rolled_out_groups(self) -> int:
        """Number of AppGroups whose Deployments are rolled out."""
        return min(self.groups, max(1, round(self.groups * ROLLED_OUT_SHARE)))


async def install_rules(lab: Lab) -> None:
    """Apply the shipped definitions, rights and policies, without programs.

    The policies that restrict an agent to its own node are left out, because simulated agents share one token.
    """
    text = await lab.control_plane.run_kubectl("kustomize", OVERLAY, timeout_s=_TIMEOUT_S)
    documents = [d for d in yaml.safe_load_all(text) if d and d["kind"] not in _NOT_APPLIED]
    applied = [
        d
        for d in documents
        if not (d["kind"] == "ValidatingAdmissionPolicyBinding" and d["metadata"]["name"].startswith(AGENT))
    ]
    path = lab.paths.state_dir / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(applied, sort_keys=False))
    await lab.control_plane.run_kubectl("apply", "--server-side", "-f", path, timeout_s=_TIMEOUT_S)


async def put_nodes_and_pods(plane: ControlPlane, sizes: Sizes, print_progress: ProgressPrinter) -> list[list[str]]:
    """Write nodes and pods of agents, of AppGroups that never change, and of others; returns names of nodes by index of their zone."""
    names = [[f"node-{zone:03}-{i:03}" for i in range(sizes.nodes_per_zone)] for zone in range(sizes.zones)]
    keys = [(i, zone) for i in range(sizes.nodes_per_zone) for zone in range(sizes.zones)]
    bodies = (node_body(names[zone][i], zone=zone, number=number) for number, (i, zone) in enumerate(keys))
    nodes = ((f"minions/{body['metadata']['name']}", body) for body in bodies)
    print_progress(f"{await write_objects(plane, nodes)} nodes")
    print_progress(f"{await write_objects(plane, _pods(sizes, names))} pods")
    return names


def _pods(sizes: Sizes, names: list[list[str]]) -> Iterator[Item]:
    node_names, group = [name for zone in names for name in zone], _application().group
    workloads = [w["workload"]["selector"] for w in group["spec"]["workloads"]]
    numbers = itertools.count()

    def pod(namespace: str, name: str, node: str, labels: Mapping[str, str]) -> Item:
        return f"pods/{namespace}/{name}", running_pod(namespace, name, node, labels, next(numbers))

    for node in node_names:
        yield pod(NETAWARE_NAMESPACE, f"agent-{node}", node, {NAME_LABEL: AGENT, **PART_OF_LABELS})
    for g in range(sizes.rolled_out_groups, sizes.groups):
        for w, workload in enumerate(workloads):
            # A group's pods are close to each other, as in a plan.
            zone = names[(g + (w % 3)) % len(names)]
            labels = {APPGROUP_LABEL: group["metadata"]["name"], WORKLOAD_LABEL: workload}
            yield pod(group_namespace(g), f"pod-{workload.lower()}", zone[(g * 7 + w) % len(zone)], labels)
    others = sizes.pods - len(node_names) - sizes.groups * len(workloads)
    for number in range(max(0, others)):
        yield pod(
            f"scale-{number % 10}",
            f"pod-{number}",
            node_names[number % len(node_names)],
            {"app": f"app-{number % 500}"},
        )


async def create_namespaces(client: Client, sizes: Sizes) -> None:
    """Create the namespaces of groups and other pods; wait for their default service accounts."""
    names = [*(group_namespace(g) for g in range(sizes.groups)), *(f"scale-{i}" for i in range(10))]
    for name in names:
        await client.create(NAMESPACES, {"metadata": {"name": name}}, Object)
    for name in (*names, NETAWARE_NAMESPACE):
        account = partial(object_exists, client, SERVICE_ACCOUNTS, "default", name)
        await poll_until(account, f"the default account of {name}", _TIMEOUT_S, every_s=0.2, error=BootError)


async def create_groups(client: Client, sizes: Sizes) -> list[tuple[str, str]]:
    """Create AppGroups of one name in namespaces of their own; returns namespace and name of the Deployments of some."""
    application, deployment_keys = _application(), []
    for g in range(sizes.groups):
        await client.create(APPGROUPS, application.group, Object, namespace=group_namespace(g))
        for body in application.deployments.values() if g < sizes.rolled_out_groups else ():
            # No kubelet terminates a pod or reports that it is ready.
            body["spec"]["strategy"] = {"type": "Recreate"}
            body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
            await client.create(DEPLOYMENTS, body, Object, namespace=group_namespace(g))
            deployment_keys.append((group_namespace(g), str(body["metadata"]["name"])))
    return deployment_keys


def group_namespace(index: int) -> str:
    """Namespace of the AppGroup with this index."""
    return f"scale-group-{index}"


def _application() -> boutique.Application:
    return boutique.load_application(scheduler=OUR_SCHEDULER, cpu="100m")
