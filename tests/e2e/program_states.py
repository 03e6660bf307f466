"""States of programs, their rights and a pod's network that alerts and panels are for, in a lab that has our programs installed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import PODS, Object, Pod, Resource
from lab.cluster import Lab
from lab.controlplane import credentials_of
from lab.programs import Program
from netperf.contract import HOME_NAMESPACE
from tests.integration.agent import traffic
from tests.integration.agent.pods_on_node import NodePod, node_pod
from tests.support.prometheus_server import set_targets

CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
LIMIT_ANNOTATION = "kubernetes.io/ingress-bandwidth"
GENERATOR, DISCARD_PORT = Path(traffic.__file__), "9"
_POD_NUMBER = 42


def program(lab: Lab, name: str) -> Program:
    """A running program of the lab."""
    return next(p for p in lab.programs if p.name == name)


@asynccontextmanager
async def frozen(lab: Lab, name: str) -> AsyncIterator[None]:
    """A program that hangs: it holds its port and answers nothing."""
    pid = program(lab, name).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def without_targets(lab: Lab, job: str, url: str) -> AsyncIterator[None]:
    """Discovery finds no pod of a job any more, as when its Deployment has no replicas."""
    set_targets(lab, job, [])
    try:
        yield
    finally:
        set_targets(lab, job, [url.removeprefix("http://")])


@asynccontextmanager
async def second_leader(lab: Lab, listen: str) -> AsyncIterator[None]:
    """A manager that leads without asking."""
    argv = [sys.executable, "-m", "controller", "manager", f"--listen={listen}", f"--namespace={HOME_NAMESPACE}"]
    argv += [f"--credentials={credentials_of(lab.control_plane.kubeconfig)}", "--no-leader-elect"]
    running = lab.spawn(None, argv, "controller-2", essential=False)
    try:
        yield
    finally:
        await lab.programs.stop(running)


@asynccontextmanager
async def controller_away(lab: Lab, **descheduler: Any) -> AsyncIterator[None]:
    """No controller runs; afterwards one does whose configuration differs in these fields of the descheduler's section."""
    running = program(lab, "controller")
    argv = Path(f"/proc/{running.pid}/cmdline").read_text().split("\0")[:-1]
    path = Path(next(word for word in argv if word.startswith("--config=")).removeprefix("--config="))
    await lab.programs.stop(running)
    try:
        yield
    finally:
        document = yaml.safe_load(path.read_text())
        document["descheduler"] |= descheduler
        path.write_text(yaml.safe_dump(document))
        lab.spawn(None, argv, "controller", env={"POD_NAME": "controller"})


@asynccontextmanager
async def without_right(client: Client, role: str, resource: str) -> AsyncIterator[None]:
    """A ClusterRole of ours grants nothing on a resource."""
    found = await client.get(CLUSTER_ROLES, role, dict)
    rules = found["rules"]
    kept = [rule for rule in rules if resource not in rule["resources"]]
    assert len(kept) < len(rules), f"{role} has no right on {resource}"
    await client.patch(CLUSTER_ROLES, role, {"rules": kept}, Object, kind=MERGE_PATCH)
    try:
        yield
    finally:
        await client.patch(CLUSTER_ROLES, role, {"rules": rules}, Object, kind=MERGE_PATCH)


@asynccontextmanager
async def without_rights(client: Client, rights: Iterable[tuple[str, str]]) -> AsyncIterator[None]:
    """The same for several roles and resources."""
    async with AsyncExitStack() as stack:
        for role, resource in rights:
            await stack.enter_async_context(without_right(client, role, resource))
        yield


@asynccontextmanager
async def without_rights_to_results(client: Client) -> AsyncIterator[None]:
    """The agents' role binding in netaware's namespace is gone, and with it the right to write results."""
    binding = await client.get(ROLE_BINDINGS, "netaware-agent", dict, namespace=HOME_NAMESPACE)
    await client.delete(ROLE_BINDINGS, "netaware-agent", namespace=HOME_NAMESPACE)
    try:
        yield
    finally:
        kept = {k: v for k, v in binding["metadata"].items() if k in {"name", "namespace", "labels"}}
        await client.create(ROLE_BINDINGS, {**binding, "metadata": kept}, Object, namespace=HOME_NAMESPACE)


@asynccontextmanager
async def pod_with_a_network(lab: Lab, client: Client, node: str) -> AsyncIterator[NodePod]:
    """A pod that asks for 10 Mbit/s and has what kwok's pods lack: a process, a network namespace, a device on its node."""
    with node_pod(_POD_NUMBER, adopt_uid=True, node_namespace=lab.node(node).netns) as pod:
        body = {
            "metadata": {"name": pod.name, "annotations": {LIMIT_ANNOTATION: "10M"}},
            "spec": {
                "nodeName": node,
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "none"}],
            },
        }
        created = await client.create(PODS, body, Pod, namespace="default")
        pod.adopt(created.metadata.uid)
        try:
            yield pod
        finally:
            await client.delete(PODS, pod.name, namespace="default", grace_period_s=0)


@asynccontextmanager
async def busy_uplink(lab: Lab, node: str, to: str) -> AsyncIterator[None]:
    """A node sends a little to another, all the time. Probes alone are nothing to count on: not every node has some each minute."""
    argv = [sys.executable, str(GENERATOR), "trickle", lab.node(to).address, DISCARD_PORT, "3600"]
    sending = lab.spawn(node, argv, f"traffic-{node}", essential=False)
    try:
        yield
    finally:
        await lab.programs.stop(sending)


@asynccontextmanager
async def limit_not_set(pod: NodePod) -> AsyncIterator[None]:
    """Nobody has set the limit that the pod asks for; afterwards it is set, as a CNI plugin would."""
    try:
        yield
    finally:
        bucket = "rate 10mbit burst 32kb latency 25ms"
        pod.on_host(f"tc qdisc add dev {pod.host_device} root handle 1: tbf {bucket}")


async def ask_for(client: Client, pod: NodePod, limit: str) -> None:
    """Change what the pod asks for, so that its agent has something to tell."""
    body = {"metadata": {"annotations": {LIMIT_ANNOTATION: limit}}}
    await client.patch(PODS, pod.name, body, Object, kind=MERGE_PATCH, namespace="default")
