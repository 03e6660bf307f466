"""Installs the overlay and objects to attack, and connects with the token of each program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from kubekit.client import Client
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from tests.integration.manifests.attacks import Json, dry_run
from tests.integration.manifests.kubectl import NAMESPACE, install_overlay

OVERLAY = "descheduler"
"""The shipped overlay with the most rights."""
PROGRAMS = ("agent", "controller", "scheduler", "gate-opener")
POD_NAMESPACES = ("unrelated", "with-appgroup")
UNRELATED_POD, GROUP_POD, SYSTEM_POD = (f"/api/v1/namespaces/{n}/pods/victim" for n in (*POD_NAMESPACES, "kube-system"))
GATE = "netaware.io/topological-order"
LABEL = "appgroup.diktyo.x-k8s.io"
EXTENDED = {"resource.kubernetes.io/extended-resource-claim": "true"}
CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
VOLUME_SPEC = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/good"}}
TOPOLOGY_SPEC = {"configmapName": "netperf-metrics", "weights": [{"name": "UserDefined", "topologyList": []}]}


def make_object(kind: str, name: str, api: str = "v1", **more: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **more}


def make_resource_claim(name: str, **annotations: str) -> Json:
    claim = make_object("ResourceClaim", name, "resource.k8s.io/v1", spec=CLAIM_SPEC)
    return {**claim, "metadata": {"name": name, "annotations": annotations}}


def make_pod(**labels: str) -> Json:
    """A gated pod with these labels; without labels a privileged pod on a node."""
    spec: Json = {"containers": [{"name": "c", "image": "good"}], "terminationGracePeriodSeconds": 0}
    if labels:
        our_gates = [{"name": GATE}] if LABEL in labels else []
        spec["schedulingGates"] = [*our_gates, {"name": "foreign.example/gate"}]
    else:
        spec |= {"nodeName": "node-b", "priority": 2_000_001_000, "priorityClassName": "system-node-critical"}
        spec["containers"][0]["securityContext"] = {"privileged": True}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim", "labels": labels}, "spec": spec}


def make_node(name: str) -> Json:
    # Removing a field of the kubelet is an attack too.
    status = {"capacity": {"cpu": "8"}, "declaredFeatures": ["A"], "nodeInfo": {"kernelVersion": "good"}}
    return make_object("Node", name, status=status)


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/unrelated/resourceclaims"
CONFIG_MAPS, SECRETS = (f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("configmaps", "secrets"))
SYSTEM_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
TOPOLOGIES = "/apis/networktopology.diktyo.x-k8s.io/v1alpha1/namespaces/with-appgroup/networktopologies"
VICTIMS: tuple[tuple[str, Json], ...] = (
    ("/api/v1/nodes", make_node("node-a")),
    ("/api/v1/nodes", make_node("node-b")),
    ("/api/v1/namespaces/kube-system/pods", make_pod()),
    ("/api/v1/namespaces/unrelated/pods", make_pod(app="theirs")),
    ("/api/v1/namespaces/with-appgroup/pods", make_pod(**{LABEL: "shop"})),
    (CONFIG_MAPS, make_object("ConfigMap", "netperf-metrics", data={"a": "b"})),
    (CONFIG_MAPS, make_object("ConfigMap", "netaware-scheduler-config-x", data={"a": "b"})),
    (SECRETS, make_object("Secret", "netaware-probe")),
    (TOPOLOGIES, make_object("NetworkTopology", "nt", "networktopology.diktyo.x-k8s.io/v1alpha1", spec=TOPOLOGY_SPEC)),
    (CLAIMS, make_resource_claim("victim")),
    (CLAIMS, make_resource_claim("extended", **EXTENDED)),
    (SYSTEM_LEASES, make_object("Lease", "kube-scheduler", "coordination.k8s.io/v1")),
    ("/api/v1/persistentvolumes", make_object("PersistentVolume", "victim", spec=VOLUME_SPEC)),
)
FOREIGN_ANNOTATION = {"metadata": {"annotations": {"a": "b"}}}
REFUSED_BY_PROGRAM = {
    "agent": ("/api/v1/nodes/node-b/status", FOREIGN_ANNOTATION),
    "controller": (GROUP_POD, FOREIGN_ANNOTATION),
    "scheduler": (f"{SYSTEM_POD}/status", FOREIGN_ANNOTATION),
    "gate-opener": (GROUP_POD, FOREIGN_ANNOTATION),
}
"""Program -> path and patch of a request that RBAC allows and a policy refuses."""


@asynccontextmanager
async def install_with_victims(plane: ControlPlane) -> AsyncIterator[None]:
    """Install the overlay, and create the namespaces and `VICTIMS`, during the block."""
    async with install_overlay(plane, OVERLAY) as (kubectl, admin):

        async def is_created(path: str, body: Json) -> bool:
            refusal, _ = await dry_run(admin, "POST", path, body)
            if not refusal:
                await admin.request("POST", path, body=body)
            return not refusal

        for name in POD_NAMESPACES:
            await admin.request("POST", "/api/v1/namespaces", body=make_object("Namespace", name))
        for path, body in VICTIMS:
            await poll_until(partial(is_created, path, body))
        yield
        for path, body in reversed(VICTIMS):
            await admin.request("DELETE", f"{path}/{body['metadata']['name']}", params={"gracePeriodSeconds": "0"})
        await kubectl("delete", "--wait=false", "namespace", *POD_NAMESPACES)


@asynccontextmanager
async def connect_with_stolen_tokens(token_for: Any) -> AsyncIterator[dict[str, Client]]:
    """Clients with the token of each program's pod on node-a, after policies are in force."""
    async with AsyncExitStack() as stack:
        clients = {
            program: await stack.enter_async_context(Client(await token_for(f"netaware-{program}", "node-a")))
            for program in PROGRAMS
        }
        for program, (path, body) in REFUSED_BY_PROGRAM.items():

            async def is_in_force(client: Client = clients[program], path: str = path, body: Json = body) -> bool:
                return "ValidatingAdmissionPolicy" in (await dry_run(client, "PATCH", path, body))[0]

            await poll_until(is_in_force)
        yield clients
