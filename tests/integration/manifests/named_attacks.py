"""Requests with stolen tokens, by method: those that a program needs are allowed, the others refused."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tests.integration.manifests.attacks import Json
from tests.integration.manifests.kubectl import NAMESPACE
from tests.integration.manifests.victims import (
    CLAIMS,
    CONFIG_MAPS,
    EXTENDED,
    FOREIGN_ANNOTATION,
    GATE,
    GROUP_POD,
    LABEL,
    SECRETS,
    SYSTEM_LEASES,
    SYSTEM_POD,
    TOPOLOGIES,
    UNRELATED_POD,
    make_object,
    make_resource_claim,
)

RESULTS, SHIPPED_CONFIG = f"{CONFIG_MAPS}/netperf-metrics", f"{CONFIG_MAPS}/netaware-scheduler-config-x"
NODE_A, NODE_B = "/api/v1/nodes/node-a", "/api/v1/nodes/node-b"
ALLOWED, ANY_REFUSAL = "^$", "^4"
"""Patterns of `Attack.refusal`; a refusal begins with its status."""
OUR_GATE_REMOVED = {"$patch": "delete", "name": GATE}
ALL_GATES_REMOVED = {"spec": {"schedulingGates": [{"$patch": "replace"}]}}
EVIL_IMAGE = {"spec": {"containers": [{"name": "c", "image": "evil"}]}}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
NODE_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
TOKEN_METADATA = {"name": "t", "annotations": {"kubernetes.io/service-account.name": "netaware-scheduler"}}
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
TOPOLOGY = f"{TOPOLOGIES}/nt"
WEIGHT = {"name": "NetperfCosts", "topologyList": []}
CAPACITY = [{"op": "add", "path": "/status/capacity/network.aware.com~1bandwidth", "value": "1000000000"}]
OUR_CONDITION = {"type": "NetawareBandwidth", "status": "True", "reason": "Hardware", "message": "eth0"}
ZONE = {"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}
FINALIZER = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
TWO_CONDITIONS = [{"op": "add", "path": "/status/conditions", "value": [OUR_CONDITION, OUR_CONDITION]}]
OTHER_CAPACITY = "403 .* no capacity but network.aware.com/bandwidth"
OTHER_STATUS = "403 .* nothing else in a node's status"
ONE_CONDITION = "403 .* one condition NetawareBandwidth, of 8192 bytes at most"
OTHER_ANNOTATION = "403 .* no node annotations but netaware.io/agent"
OTHER_NODE = "403 .*issued for node node-a, the request is for node-b"
UNPLANNED = ("netaware-plan-zone-a-12345678", "kube-root-ca.crt", "netperf-metrics-x", "netperf-metrics-7")
"""ConfigMaps that an agent must not create or write: only the controller creates plans and shards of results."""

AttackRow = tuple[str, str, Any, str]
"""Fields of an `Attack`."""


class Attack(NamedTuple):
    """A request with a program's token; ``refusal`` is a pattern of status and message, empty if it is allowed."""

    program: str
    path: str
    body: Any
    refusal: str


def make_annotation(key: str, value: str = "{}") -> Json:
    return {"metadata": {"annotations": {key: value}}}


def make_condition(**more: str) -> Json:
    return {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "", **more}]}}


def make_lease(name: str) -> Json:
    return make_object("Lease", name, "coordination.k8s.io/v1")


def make_event(kind: str, name: str, instance: str) -> Json:
    about = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": "" if kind == "Node" else "default"}
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    return {
        **make_object("Event", f"{name}.{time.time_ns():x}", "events.k8s.io/v1", eventTime=now, regarding=about),
        "reportingController": "netaware-agent",
        "reportingInstance": instance,
        "action": "Publish",
        "reason": "CapacityPublished",
        "note": "1 Gbit/s",
        "type": "Normal",
    }


EVIL_SECRET = make_object("Secret", "t", type="kubernetes.io/service-account-token", metadata=TOKEN_METADATA)
EVICTION = make_object("Eviction", "victim", "policy/v1")
PATCHED: tuple[AttackRow, ...] = (
    ("agent", f"{NODE_A}/status", CAPACITY, ALLOWED),
    ("agent", f"{NODE_A}/status", {"status": {"capacity": {"network.aware.com/bandwidth": "1G"}}}, ALLOWED),
    ("agent", f"{NODE_A}/status", {"status": {"conditions": [OUR_CONDITION]}}, ALLOWED),
    ("agent", NODE_A, make_annotation("netaware.io/agent"), ALLOWED),
    ("agent", f"{NODE_B}/status", CAPACITY, OTHER_NODE),
    ("agent", NODE_B, make_annotation("netaware.io/agent"), OTHER_NODE),
    ("agent", f"{NODE_A}/status", {"status": {"capacity": {"cpu": "64"}}}, OTHER_CAPACITY),
    ("agent", f"{NODE_A}/status", {"status": {"allocatable": {"cpu": "64"}}}, OTHER_CAPACITY),
    ("agent", f"{NODE_A}/status", make_condition(), OTHER_STATUS),
    ("agent", f"{NODE_A}/status", make_condition(type="NetawareBandwidth", message="x" * 9000), ONE_CONDITION),
    ("agent", f"{NODE_A}/status", TWO_CONDITIONS, ONE_CONDITION),
    ("agent", f"{NODE_A}/status", {"status": {"declaredFeatures": ["B"]}}, OTHER_STATUS),
    ("agent", f"{NODE_A}/status", {"status": {"declaredFeatures": None}}, OTHER_STATUS),
    ("agent", NODE_A, make_annotation("example.com/x"), OTHER_ANNOTATION),
    ("agent", NODE_A, make_annotation("netaware.io/bandwidth-capacity", "1T"), OTHER_ANNOTATION),
    ("agent", f"{NODE_A}/status", make_annotation("example.com/x"), OTHER_ANNOTATION),
    ("agent", NODE_A, make_annotation("netaware.io/agent", "x" * 513), "403 .*of 512 bytes at most"),
    ("agent", NODE_A, ZONE, "403 .*neither labels"),
    ("agent", f"{NODE_A}/status", ZONE, "403 .*neither labels"),
    ("agent", NODE_A, {"metadata": {"finalizers": ["example.com/x"]}}, "403 .*neither labels, finalizers"),
    ("agent", NODE_A, {"spec": {"unschedulable": True}}, "403 .*nor the spec"),
    ("agent", NODE_A, {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, "403 .*nor the spec"),
    ("agent", RESULTS, {"immutable": True}, ANY_REFUSAL),
    ("agent", RESULTS, {"metadata": {"labels": {"netaware.io/plan": "true"}}}, ANY_REFUSAL),
    ("agent", RESULTS, FOREIGN_ANNOTATION, ANY_REFUSAL),
    ("unbound", f"{NODE_A}/status", CAPACITY, r"issued for node \(none\)"),
    ("unbound", RESULTS, {"data": {"x": "y"}}, "writes only the results"),
    ("admin", NODE_B, ZONE, ALLOWED),
    ("controller", SYSTEM_POD, EVIL_IMAGE, ANY_REFUSAL),
    ("controller", UNRELATED_POD, EVIL_IMAGE, ANY_REFUSAL),
    ("controller", UNRELATED_POD, ALL_GATES_REMOVED, ANY_REFUSAL),
    ("controller", UNRELATED_POD, {"metadata": {"labels": {LABEL: "shop"}}}, ANY_REFUSAL),
    ("controller", GROUP_POD, EVIL_IMAGE, ANY_REFUSAL),
    ("controller", GROUP_POD, {"metadata": {"labels": {LABEL: None}}}, ANY_REFUSAL),
    ("controller", GROUP_POD, FOREIGN_ANNOTATION, ANY_REFUSAL),
    ("controller", GROUP_POD, ALL_GATES_REMOVED, ANY_REFUSAL),
    ("controller", GROUP_POD, {"spec": {"affinity": {"podAffinity": {}}}}, ANY_REFUSAL),
    (
        "controller",
        GROUP_POD,
        {
            **make_annotation("netaware.io/target"),
            "spec": {"schedulingGates": [OUR_GATE_REMOVED], "affinity": NODE_AFFINITY},
        },
        ALLOWED,
    ),
    ("controller", RESULTS, {"data": {"a": None}}, ALLOWED),
    ("controller", TOPOLOGY, [{"op": "add", "path": "/spec/weights/-", "value": WEIGHT}], ALLOWED),
    ("controller", TOPOLOGY, [{"op": "remove", "path": "/spec/weights/0"}], ANY_REFUSAL),
    ("controller", TOPOLOGY, {"spec": {"configmapName": "evil"}}, ANY_REFUSAL),
    ("controller", TOPOLOGY, {"metadata": {"finalizers": ["evil.io/x"]}}, ANY_REFUSAL),
    ("controller", f"{NODE_A}/status", make_condition(), ANY_REFUSAL),
    ("scheduler", f"{UNRELATED_POD}/status", make_condition(type="PodScheduled"), ALLOWED),
    ("scheduler", f"{SYSTEM_POD}/status", make_condition(), ANY_REFUSAL),
    ("scheduler", f"{UNRELATED_POD}/status", {"status": {"phase": "Failed"}}, ANY_REFUSAL),
    ("scheduler", f"{SYSTEM_LEASES}/kube-scheduler", {"spec": {"holderIdentity": "me"}}, ANY_REFUSAL),
    ("scheduler", f"{CLAIMS}/victim", FINALIZER, ALLOWED),
    ("scheduler", f"{CLAIMS}/victim", {"metadata": {"labels": {"a": "b"}}}, ANY_REFUSAL),
    ("scheduler", "/api/v1/persistentvolumes/victim", {"spec": {"hostPath": {"path": "/etc"}}}, ANY_REFUSAL),
    ("gate-opener", GROUP_POD, {"spec": {"schedulingGates": [OUR_GATE_REMOVED]}}, ALLOWED),
    ("gate-opener", GROUP_POD, ALL_GATES_REMOVED, ANY_REFUSAL),
    ("gate-opener", GROUP_POD, EVIL_IMAGE, ANY_REFUSAL),
    ("gate-opener", UNRELATED_POD, {"metadata": {"labels": {"a": "b"}}}, ANY_REFUSAL),
)
PATCHED += tuple(("agent", f"{CONFIG_MAPS}/{name}", {"data": {"x": "y"}}, "40[34] ") for name in UNPLANNED)
CREATED: tuple[AttackRow, ...] = (
    *(("agent", CONFIG_MAPS, make_object("ConfigMap", name), ANY_REFUSAL) for name in UNPLANNED),
    ("agent", EVENTS, make_event("Node", "node-a", "node-a"), ALLOWED),
    ("agent", EVENTS, make_event("Pod", "some-pod", "node-a"), ALLOWED),
    ("agent", EVENTS, make_event("Node", "node-b", "node-a"), "on pods and on its own node, node-a"),
    (
        "agent",
        EVENTS,
        make_event("Pod", "p", "node-b"),
        "signs its events with netaware-agent and its own node, node-a",
    ),
    ("unbound", EVENTS, make_event("Node", "node-a", "node-a"), "signs its events"),
    ("admin", CONFIG_MAPS, make_object("ConfigMap", "unrelated"), ALLOWED),
    ("controller", f"{SYSTEM_POD}/eviction", EVICTION, ANY_REFUSAL),
    ("controller", f"{UNRELATED_POD}/eviction", EVICTION, ALLOWED),
    ("controller", SECRETS, EVIL_SECRET, ANY_REFUSAL),
    ("controller", SECRETS, make_object("Secret", "any"), ANY_REFUSAL),
    ("controller", CONFIG_MAPS, make_object("ConfigMap", "netaware-controller-config-x"), ANY_REFUSAL),
    ("controller", CONFIG_MAPS, make_object("ConfigMap", "netaware-plan-z", immutable=True), ANY_REFUSAL),
    ("controller", CONFIG_MAPS, make_object("ConfigMap", "netaware-plan-z", data={"a": "b"}), ALLOWED),
    ("controller", CONFIG_MAPS, make_object("ConfigMap", "netperf-metrics-7"), ALLOWED),
    ("controller", LEASES, make_lease("netaware-scheduler"), ANY_REFUSAL),
    ("scheduler", LEASES, make_lease("netaware-scheduler"), ALLOWED),
    ("scheduler", LEASES, make_lease("any"), ANY_REFUSAL),
    ("scheduler", SYSTEM_LEASES, make_lease("new"), ANY_REFUSAL),
    ("scheduler", CLAIMS, make_resource_claim("new"), ANY_REFUSAL),
    ("scheduler", CLAIMS, make_resource_claim("new", **EXTENDED), ALLOWED),
)
DELETED: tuple[AttackRow, ...] = (
    ("controller", RESULTS, None, ANY_REFUSAL),
    ("controller", SHIPPED_CONFIG, None, ANY_REFUSAL),
    ("scheduler", SYSTEM_POD, None, ANY_REFUSAL),
    ("scheduler", UNRELATED_POD, None, ALLOWED),
    ("scheduler", f"{CLAIMS}/victim", None, ANY_REFUSAL),
    ("scheduler", f"{CLAIMS}/extended", None, ALLOWED),
)
# The kubelet mounts the passphrase, so agents need not read it.
READ: tuple[AttackRow, ...] = (("agent", f"{SECRETS}/netaware-probe", None, "^403"), ("agent", SECRETS, None, "^403"))
ATTACKS = {"PATCH": PATCHED, "POST": CREATED, "DELETE": DELETED, "GET": READ}
