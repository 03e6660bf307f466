"""Everything runs under the shipped rights: the real programs, with tokens of their service accounts, and an audit log.

Two agents (their nodes' kubelets are kwok's), the controller and the extender are started as the manifests start them. The audit
log then tells whether anything was refused, and which rights were never used.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.waiting import poll_until
from kubekit.wire import CONFIGMAPS, NAMESPACES, NODES, PODS, SECRETS, ConfigMap, Node, Object, Pod
from lab.controlplane import PLAYED_BY_KWOK, ControlPlane, credentials_of, free_ports
from lab.programs import Program
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Documents, Kubectl
from tests.support.audit_log import audit_events

# The default, and the descheduler's rights on top.
OVERLAY = MANIFESTS / "overlays" / "descheduler"
CENTRAL = ("netaware-controller", "netaware-scheduler", "netaware-gate-opener")
ACCOUNTS = ("netaware-agent", *CENTRAL)
CENTRAL_PROGRAMS = {"manager", "extender", "gate-opener", "netaware-scheduler"}
# Zone, and a loopback address that no other test uses, by node.
PLACES = {"rights-a": ("za", "127.88.1.1"), "rights-b": ("zb", "127.88.1.2")}
DEADLINE_S = 45.0
# One client for all tests of this file, hence one loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")
# Rights that only rare events use, none of which happens in this test, and what they are for.
RARE = {
    ("netaware-agent", "", "nodes", "get"): "agent --cleanup, and the tables for people",
    ("netaware-agent", "events.k8s.io", "events", "create"): "a verdict on a pod's limit changed",
    ("netaware-agent", "events.k8s.io", "events", "patch"): "the same event again",
    ("netaware-controller", "", "pods", "patch"): "a gate is opened",
    ("netaware-controller", "", "configmaps", "delete"): "a zone is gone, and so is its plan",
    ("netaware-controller", "events.k8s.io", "events", "patch"): "the same event again",
    ("netaware-controller", "", "pods/eviction", "create"): "a pod is moved",
    ("netaware-gate-opener", "", "pods", "patch"): "a gate is overdue, and no controller opens it",
    ("netaware-scheduler", "", "configmaps", "list"): "a kube-scheduler that does not stream lists yet",
    ("netaware-controller", "authentication.k8s.io", "tokenreviews", "create"): "somebody opens the page",
    ("netaware-controller", "authorization.k8s.io", "subjectaccessreviews", "create"): "somebody opens the page",
    ("netaware-page", "", "services/proxy", "get"): "what the page asks of somebody who opens it",
}


@dataclass(frozen=True, order=True)
class Use:
    """One kind of request: who, what, how."""

    account: str
    group: str
    resource: str
    verb: str


@dataclass
class Witness:
    """What the audit log says of our accounts, since there were so many events."""

    log: Path
    before: int
    used: set[Use] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read the log anew."""
        self.used.clear()
        self.refused.clear()
        for entry in audit_events(self.log)[self.before :]:
            if "objectRef" not in entry:
                continue  # discovery, which everybody may read
            about = entry["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource", "")) if part)
            account = entry["user"]["username"].rpartition(":")[2]
            use = Use(account, about.get("apiGroup", ""), resource, entry["verb"])
            self.used.add(use)
            if entry.get("responseStatus", {}).get("code") in {401, 403}:
                self.refused.append(f"{use}: {entry['requestURI']}: {entry['responseStatus'].get('message', '')}")


@dataclass
class Running:
    """The installation, as it runs."""

    plane: ControlPlane
    kubectl: Kubectl
    admin: Client
    witness: Witness


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    plane: ControlPlane, kwok: Program, audit_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    before = len(audit_events(audit_log))
    others = {program.name for program in plane.programs}
    kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
    async with Client(plane.client_config) as admin:
        await plane.start_scheduler()
        await kubectl("apply", "--server-side", "-k", str(OVERLAY))
        for name, (zone, address) in PLACES.items():
            await admin.create(NODES, _node(name, zone, address), Node)
        found = Running(plane, kubectl, admin, Witness(audit_log, before))
        await _start(found, tmp_path_factory.mktemp("rights"))
        yield found
        for program in [program for program in plane.programs if program.name not in others]:
            await plane.programs.stop(program)
        await kubectl("delete", "--ignore-not-found", "-k", str(OVERLAY))
        await kubectl(
            "delete", "--ignore-not-found", "--wait=false", "namespace/boutique", *(f"node/{n}" for n in PLACES)
        )


def _node(name: str, zone: str, address: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": "r",
    }
    notes = dict([PLAYED_BY_KWOK]) | {"netaware.io/bandwidth-capacity": "10G"}
    addresses = [{"type": "InternalIP", "address": address}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": notes},
        "status": {"capacity": amounts, "allocatable": amounts, "addresses": addresses},
    }


async def _start(running: Running, folder: Path) -> None:
    config = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    config["descheduler"]["intervalS"] = 1
    # A machine that is busy with tests makes runs doubtful; what they are worth is not the question here.
    trusting = {"acceptQualityFlags": ["throttled", "too-few-samples", "run-queue", "loss", "stalled"]}
    probing = {"intervalS": 3, "slotS": 1.5, "durationS": 0.5}
    config["topology"] = {"probing": probing, "costPolicy": trusting}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    extender_port, scheduler_port = free_ports(2)
    kubeconfigs = {
        account: await _kubeconfig(running, account, await _pod_of(running.admin, account)) for account in CENTRAL
    }
    verbs = (("manager", 0), ("extender", extender_port), ("gate-opener", 0))
    for account, (verb, port) in zip(CENTRAL, verbs, strict=True):
        argv = [sys.executable, "-m", "controller", verb, f"--credentials={credentials_of(kubeconfigs[account])}"]
        argv += [f"--listen=127.0.0.1:{port}", f"--config={folder / 'config.yaml'}", f"--namespace={NAMESPACE}"]
        running.plane.programs.start(verb, argv)
    _start_scheduler(running, folder, kubeconfigs["netaware-scheduler"], extender_port, scheduler_port)
    passphrase = folder / "passphrase"
    passphrase.write_text("0123456789abcdef0123456789abcdef")
    for node, (_, address) in PLACES.items():
        kubeconfig = await _kubeconfig(running, "netaware-agent", await _pod_of(running.admin, "netaware-agent", node))
        argv = [
            sys.executable,
            "-m",
            "agent",
            "run",
            f"--node-name={node}",
            f"--credentials={credentials_of(kubeconfig)}",
        ]
        argv += [f"--listen={address}:0", f"--namespace={NAMESPACE}", f"--passphrase-file={passphrase}"]
        running.plane.programs.start(f"agent-{node}", argv)


def _start_scheduler(running: Running, folder: Path, kubeconfig: Path, extender_port: int, port: int) -> None:
    """The shipped configuration; only the extender's port differs, and where the credentials are."""
    config = yaml.safe_load((MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text())
    config["clientConnection"] = {**config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
    for extender in config["extenders"]:
        extender["urlPrefix"] = extender["urlPrefix"].replace("9876", str(extender_port))
    (folder / "kube-scheduler.yaml").write_text(yaml.safe_dump(config))
    argv = [str(running.plane.binaries["kube-scheduler"]), f"--config={folder / 'kube-scheduler.yaml'}"]
    argv += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
    argv += ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}"]
    running.plane.programs.start("netaware-scheduler", argv)


async def _pod_of(admin: Client, account: str, node: str = "") -> Pod:
    found: list[Pod] = []

    async def there() -> bool:
        label = f"app.kubernetes.io/name={account}"
        pods = await admin.list(PODS, Pod, namespace=NAMESPACE, label_selector=label)
        found[:] = [p for p in pods if p.spec.node_name and node in {"", p.spec.node_name}]
        return bool(found)

    await poll_until(there, f"a pod of {account}", DEADLINE_S)
    return found[0]


async def _kubeconfig(running: Running, account: str, pod: Pod) -> Path:
    bound = (pod.metadata.name, pod.metadata.uid)
    return await running.plane.write_token_kubeconfig(NAMESPACE, account, file_name=pod.metadata.name, bound_pod=bound)


def rules(documents: Documents) -> Iterator[tuple[Use, frozenset[str]]]:
    """Every right that a Role or ClusterRole of ours gives to an account, and the names it is tied to."""
    roles = {(d["kind"], d["metadata"]["name"]): d for d in documents if d["kind"] in {"Role", "ClusterRole"}}
    for binding in documents:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        for rule in role["rules"] if role else ():
            names = frozenset(rule.get("resourceNames", ()))
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield Use(binding["subjects"][0]["name"], group, resource, verb), names


async def test_installation_does_its_work_under_the_shipped_rights(running: Running) -> None:
    admin = running.admin

    async def priced() -> bool:
        try:
            topology = await admin.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=NAMESPACE)
        except ApiError:
            return False
        running.plane.programs.check()
        return any(c.type == "Measured" and c.status == "True" for c in topology.status.conditions or ())

    await poll_until(priced, "measured costs in nt-default, which the controller had to create", DEADLINE_S)
    secret = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=NAMESPACE)
    assert len((secret.data or {})["passphrase"]) > 40
    results = await admin.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=NAMESPACE)
    assert results.data
    for name in PLACES:
        node = await admin.get(NODES, name, Node)
        assert (node.status.capacity or {})["network.aware.com/bandwidth"] == "10G"
        assert node.metadata.annotation("netaware.io/agent")


async def test_appgroups_are_ordered_under_the_shipped_rights(running: Running) -> None:
    group = yaml.safe_load((MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text())
    await running.admin.create(APPGROUPS, {**group, "metadata": {"name": "shop"}}, Object, namespace="default")

    async def ordered() -> bool:
        found = await running.admin.get(APPGROUPS, "shop", AppGroup, namespace="default")
        return len(found.status.topology_order or ()) == 11

    await poll_until(ordered, "the order of the Online Boutique", DEADLINE_S)


async def test_demo_workload_is_placed_whole(running: Running) -> None:
    await running.kubectl("create", "namespace", "boutique")
    await running.kubectl("apply", "-n", "boutique", "-k", str(MANIFESTS / "examples" / "online-boutique"))

    async def placed() -> bool:
        pods = await running.admin.list(PODS, Pod, namespace="boutique")
        return len([pod for pod in pods if pod.spec.node_name]) == 11

    await poll_until(placed, "eleven pods to be bound", DEADLINE_S)


async def test_nothing_was_refused(running: Running) -> None:
    running.witness.read()
    assert running.witness.used
    assert running.witness.refused == []


async def test_no_right_is_given_that_nobody_uses(running: Running) -> None:
    documents = await running.kubectl.build(OVERLAY)
    given = {use for use, _ in rules(documents)}
    assert len(given) > 20
    # Each program comes to its work in its own time: the agent that measures last is the one that patches the results.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while _idle(running, given):
                await asyncio.sleep(0.5)
    assert _idle(running, given) == []
    assert sorted(key for key in RARE if Use(*key) not in given) == [], "listed as rare, but not given at all"


def _idle(running: Running, given: set[Use]) -> list[Use]:
    """Rights that are given, not rare, and not used so far."""
    running.witness.read()
    used = {use for use in running.witness.used if use.verb != "get" or use in given}
    # A list and a watch of one object are authorised as such; server-side apply of a new object needs create and patch.
    idle = {use for use in given - used if (use.account, use.group, use.resource, use.verb) not in RARE}
    # What is mirrored is listed by a watch, but for API servers that do not stream lists yet.
    idle -= {use for use in idle if use.verb == "list" and Use(use.account, use.group, use.resource, "watch") in used}
    idle -= {use for use in idle if use.verb == "create" and Use(use.account, use.group, use.resource, "patch") in used}
    return sorted(idle)


async def test_uninstalling_as_documented_leaves_nothing(running: Running) -> None:
    """The last test of this file: agents take back what they wrote, then one command deletes the rest."""
    for program in list(running.plane.programs):
        if program.name.startswith("agent-") or program.name in CENTRAL_PROGRAMS:
            await running.plane.programs.stop(program)
    for node in PLACES:
        pod = await _pod_of(running.admin, "netaware-agent", node)
        kubeconfig = await _kubeconfig(running, "netaware-agent", pod)
        argv = [
            sys.executable,
            "-m",
            "agent",
            "run",
            "--cleanup=once",
            f"--node-name={node}",
            f"--credentials={credentials_of(kubeconfig)}",
        ]
        process = await asyncio.create_subprocess_exec(*argv)
        assert await asyncio.wait_for(process.wait(), 30) == 0
        left = await running.admin.get(NODES, node, Node)
        assert [key for key in left.metadata.annotations or {} if key.startswith("netaware.io/")] == [
            "netaware.io/bandwidth-capacity"
        ], "only what the administrator wrote"
        assert "network.aware.com/bandwidth" not in {**(left.status.capacity or {}), **(left.status.allocatable or {})}
        assert "NetawareBandwidth" not in [condition.type for condition in left.status.conditions or ()]
    await running.kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "-k", str(OVERLAY))
    kinds = "clusterroles,clusterrolebindings,customresourcedefinitions,validatingadmissionpolicies,priorityclasses"
    label = "app.kubernetes.io/part-of=netaware"
    assert await running.kubectl("get", kinds, "-A", "-l", label, "-o", "name") == ""
    with pytest.raises(ApiError, match="not found"):
        await running.admin.get(NAMESPACES, NAMESPACE, Object)
    pods = await running.admin.list(PODS, Pod, namespace="boutique")
    assert len([pod for pod in pods if pod.spec.node_name]) == 11, "the workload stays"
