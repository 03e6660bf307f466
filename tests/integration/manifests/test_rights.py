"""All programs run with the tokens of their service accounts; the audit log shows that no request is refused and no right is unused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, PODS, SECRETS, ConfigMap, Node, Object, Pod
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.installation import start_central_program, write_bound_kubeconfig
from lab.polling import poll_until
from lab.programs import Program, run_command
from tests.integration.conftest import node_body
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Documents, Kubectl, delete_pods, installed_overlay
from tests.support.audit_log import read_audit_events

CENTRAL_ACCOUNTS = ("netaware-controller", "netaware-scheduler", "netaware-gate-opener")
CENTRAL_PROGRAMS = {"manager", "extender", "gate-opener", "netaware-scheduler"}
# Zone, and a loopback address that no other test uses, by node.
NODE_PLACES = {"rights-a": ("za", "127.88.1.1"), "rights-b": ("zb", "127.88.1.2")}
DEADLINE_S = 45.0
# One client for all tests of this file, hence one loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")
# Rights that only rare events use, none of which happens in this test, and what they are for.
RARE = {
    ("netaware-agent", "", "nodes", "get"): "agent --cleanup, and the tables for people",
    ("netaware-agent", "events.k8s.io", "events", "create"): "a verdict on a pod's limit changed",
    ("netaware-agent", "events.k8s.io", "events", "patch"): "the same event again",
    ("netaware-controller", "", "pods", "patch"): "a gate is opened",
    ("netaware-controller", "", "nodes", "patch"): "a node is overutilized, or is so no more",
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
class RequestKind:
    """A kind of request: account, verb, resource."""

    account: str
    group: str
    resource: str
    verb: str


@dataclass
class RunningInstallation:
    """The running installation; ``before`` is the number of earlier audit events."""

    plane: ControlPlane
    kubectl: Kubectl
    admin: Client
    log: Path
    before: int

    def uses(self) -> dict[RequestKind, str]:
        """Requests of our accounts since the start, each with its last refusal if there was one."""
        found: dict[RequestKind, str] = {}
        for entry in read_audit_events(self.log)[self.before :]:
            if "objectRef" not in entry:
                continue  # discovery, which everybody may read
            about = entry["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource", "")) if part)
            account = entry["user"]["username"].rpartition(":")[2]
            use = RequestKind(account, about.get("apiGroup", ""), resource, entry["verb"])
            status = entry.get("responseStatus", {})
            refusal = f"{entry['requestURI']}: {status.get('message', '')}" if status.get("code") in {401, 403} else ""
            found[use] = refusal or found.get(use, "")
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    plane: ControlPlane, kwok: Program, audit_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningInstallation]:
    before = len(read_audit_events(audit_log))
    others = {program.name for program in plane.programs}
    await plane.start_scheduler()
    async with installed_overlay(plane, "descheduler") as (kubectl, admin):
        for name, (zone, address) in NODE_PLACES.items():
            node = node_body(name, zone=zone, region="r", address=address, labels={"kubernetes.io/os": "linux"})
            node["metadata"]["annotations"]["netaware.io/bandwidth-capacity"] = "10G"
            await admin.create(NODES, node, Node)
        found = RunningInstallation(plane, kubectl, admin, audit_log, before)
        await _start(found, tmp_path_factory.mktemp("rights"))
        yield found
        for program in [program for program in plane.programs if program.name not in others]:
            await plane.programs.stop(program)
        await kubectl("delete", "--ignore-not-found", "--wait=false", "namespace/boutique")
        await delete_pods(kubectl, "boutique")
    await kubectl("delete", "node", *NODE_PLACES)


async def _start(running: RunningInstallation, folder: Path) -> None:
    config = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    config["descheduler"]["intervalS"] = 1
    # A machine that is busy with tests makes runs doubtful; what they are worth is not the question here.
    trusting = {"acceptQualityFlags": ["throttled", "too-few-samples", "run-queue", "loss", "stalled"]}
    probing = {"intervalS": 3, "slotS": 1.5, "durationS": 0.5}
    config["topology"] = {"probing": probing, "costPolicy": trusting}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    extender_port, scheduler_port = find_free_ports(2)
    plane, admin = running.plane, running.admin
    verbs = (("manager", 0), ("extender", extender_port), ("gate-opener", 0))
    for account, (verb, port) in zip(CENTRAL_ACCOUNTS, verbs, strict=True):
        kubeconfig = await write_bound_kubeconfig(admin, plane, account, account)
        url = f"http://127.0.0.1:{port}"
        start_central_program(plane.programs, verb, verb, url, kubeconfig=kubeconfig, config=folder / "config.yaml")
    _start_scheduler(running, folder, extender_port, scheduler_port)
    passphrase = folder / "passphrase"
    passphrase.write_text("0123456789abcdef0123456789abcdef")
    for node, (_, address) in NODE_PLACES.items():
        argv = [*await _agent(running, node), f"--listen={address}:0", f"--namespace={NAMESPACE}"]
        plane.programs.start(f"agent-{node}", [*argv, f"--passphrase-file={passphrase}"])


async def _agent(running: RunningInstallation, node: str) -> list[str]:
    """The command of a node's agent."""
    kubeconfig = await write_bound_kubeconfig(
        running.admin, running.plane, "netaware-agent", f"agent-{node}", lambda pod: pod.spec.node_name == node
    )
    run = [sys.executable, "-m", "agent", "run"]
    return [*run, f"--node-name={node}", f"--credentials={credentials_dir(kubeconfig)}"]


def _start_scheduler(running: RunningInstallation, folder: Path, extender_port: int, port: int) -> None:
    """Start kube-scheduler with the shipped configuration, and another URL of the extender."""
    kubeconfig = running.plane.kubeconfig_of("netaware-scheduler")
    config = yaml.safe_load((MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text())
    config["clientConnection"] = {**config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
    for extender in config["extenders"]:
        extender["urlPrefix"] = extender["urlPrefix"].replace("9876", str(extender_port))
    (folder / "kube-scheduler.yaml").write_text(yaml.safe_dump(config))
    argv = [str(running.plane.binaries["kube-scheduler"]), f"--config={folder / 'kube-scheduler.yaml'}"]
    argv += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
    argv += ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}"]
    running.plane.programs.start("netaware-scheduler", argv)


def rights(documents: Documents) -> Iterator[RequestKind]:
    """All rights that our Roles and ClusterRoles grant to accounts."""
    roles = {(d["kind"], d["metadata"]["name"]): d for d in documents if d["kind"] in {"Role", "ClusterRole"}}
    for binding in documents:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        for rule in role["rules"] if role else ():
            for key in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
                yield RequestKind(binding["subjects"][0]["name"], *key)


async def test_installation_does_its_work_under_the_shipped_rights(running: RunningInstallation) -> None:
    admin = running.admin

    async def priced() -> bool:
        try:
            topology = await admin.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=NAMESPACE)
        except ApiError:
            return False
        running.plane.programs.check_running()
        return any(c.type == "Measured" and c.status == "True" for c in topology.status.conditions or ())

    await poll_until(priced, "measured costs in nt-default, which the controller had to create", DEADLINE_S)
    secret = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=NAMESPACE)
    assert len((secret.data or {})["passphrase"]) > 40
    results = await admin.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=NAMESPACE)
    assert results.data
    for name in NODE_PLACES:
        node = await admin.get(NODES, name, Node)
        assert (node.status.capacity or {})["network.aware.com/bandwidth"] == "10G"
        assert node.metadata.annotation("netaware.io/agent")


async def test_appgroups_are_ordered_under_the_shipped_rights(running: RunningInstallation) -> None:
    group = yaml.safe_load((MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text())
    await running.admin.create(APPGROUPS, {**group, "metadata": {"name": "shop"}}, Object, namespace="default")

    async def ordered() -> bool:
        found = await running.admin.get(APPGROUPS, "shop", AppGroup, namespace="default")
        return len(found.status.topology_order or ()) == 11

    await poll_until(ordered, "the order of the Online Boutique", DEADLINE_S)


async def test_all_pods_of_the_demo_are_placed(running: RunningInstallation) -> None:
    await running.kubectl("create", "namespace", "boutique")
    await running.kubectl("apply", "-n", "boutique", "-k", str(MANIFESTS / "examples" / "online-boutique"))

    async def placed() -> bool:
        pods = await running.admin.list(PODS, Pod, namespace="boutique")
        return len([pod for pod in pods if pod.spec.node_name]) == 11

    await poll_until(placed, "eleven pods to be bound", DEADLINE_S)


async def test_no_request_was_refused(running: RunningInstallation) -> None:
    uses = running.uses()
    assert uses
    assert {use: refusal for use, refusal in uses.items() if refusal} == {}


async def test_every_granted_right_is_used(running: RunningInstallation) -> None:
    documents = await running.kubectl.build(MANIFESTS / "overlays" / "descheduler")
    given = set(rights(documents))
    assert len(given) > 20
    bound = {d["roleRef"]["name"] for d in documents if d["kind"].endswith("RoleBinding")}
    assert bound - {d["metadata"]["name"] for d in documents} == {"system:kube-scheduler", "system:volume-scheduler"}
    # Each program comes to its work in its own time: the agent that measures last is the one that patches the results.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while _unused_rights(running, given):
                await asyncio.sleep(0.5)
    assert _unused_rights(running, given) == []
    assert sorted(key for key in RARE if RequestKind(*key) not in given) == [], "listed as rare, but not given at all"


def _unused_rights(running: RunningInstallation, given: set[RequestKind]) -> list[RequestKind]:
    """Rights that are granted, not rarely needed, and not used yet."""
    used = running.uses().keys()
    # A list and a watch of one object are authorised as such; server-side apply of a new object needs create and patch.
    idle = {use for use in given - used if (use.account, use.group, use.resource, use.verb) not in RARE}
    # What is mirrored is listed by a watch, but for API servers that do not stream lists yet.
    idle -= {
        use for use in idle if use.verb == "list" and RequestKind(use.account, use.group, use.resource, "watch") in used
    }
    idle -= {
        use
        for use in idle
        if use.verb == "create" and RequestKind(use.account, use.group, use.resource, "patch") in used
    }
    return sorted(idle)


async def test_cleanup_removes_all_that_agents_wrote(running: RunningInstallation) -> None:
    """This is the last test of the file, because it stops the agents."""
    for program in list(running.plane.programs):
        if program.name.startswith("agent-") or program.name in CENTRAL_PROGRAMS:
            await running.plane.programs.stop(program)
    for node in NODE_PLACES:
        await run_command([*await _agent(running, node), "--cleanup=once"], "the clean-up", 30)
        left = await running.admin.get(NODES, node, Node)
        assert [key for key in left.metadata.annotations or {} if key.startswith("netaware.io/")] == [
            "netaware.io/bandwidth-capacity"
        ], "only what the administrator wrote"
        assert "network.aware.com/bandwidth" not in {**(left.status.capacity or {}), **(left.status.allocatable or {})}
        assert "NetawareBandwidth" not in [condition.type for condition in left.status.conditions or ()]
    pods = await running.admin.list(PODS, Pod, namespace="boutique")
    assert len([pod for pod in pods if pod.spec.node_name]) == 11, "the workload stays"
