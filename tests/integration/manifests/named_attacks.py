"""Requests with stolen tokens, by method: what each program is there for is allowed, the rest is refused."""

from __future__ import annotations

import time
from typing import Any

from tests.integration.manifests.attacks import Json
from tests.integration.manifests.kubectl import NAMESPACE
from tests.integration.manifests.victims import (
    CLAIMS,
    EXTENDED,
    GATE,
    IN_GROUP,
    LABEL,
    MAPS,
    NOTE,
    SECRETS,
    SYSTEM,
    SYSTEM_LEASES,
    TOPOLOGIES,
    UNRELATED,
    claim,
    object_of,
)

RESULTS, SHIPPED = f"{MAPS}/netperf-metrics", f"{MAPS}/netaware-scheduler-config-x"
NODE_A, NODE_B = "/api/v1/nodes/node-a", "/api/v1/nodes/node-b"


def annotated(key: str, value: str = "{}") -> Json:
    return {"metadata": {"annotations": {key: value}}}


def status_condition(**more: str) -> Json:
    return {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "", **more}]}}


def lease(name: str) -> Json:
    return object_of("Lease", name, "coordination.k8s.io/v1")


def event(kind: str, name: str, instance: str) -> Json:
    about = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": "" if kind == "Node" else "default"}
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    return {
        **object_of("Event", f"{name}.{time.time_ns():x}", "events.k8s.io/v1", eventTime=now, regarding=about),
        "reportingController": "netaware-agent",
        "reportingInstance": instance,
        "action": "Publish",
        "reason": "CapacityPublished",
        "note": "1 Gbit/s",
        "type": "Normal",
    }


ALLOWED, ANY = "^$", "^4"
OPEN = {"$patch": "delete", "name": GATE}
OPEN_ALL = {"spec": {"schedulingGates": [{"$patch": "replace"}]}}
IMAGE = {"spec": {"containers": [{"name": "c", "image": "evil"}]}}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
NARROWED = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
TOKEN_OF = {"name": "t", "annotations": {"kubernetes.io/service-account.name": "netaware-scheduler"}}
EVIL_SECRET = object_of("Secret", "t", type="kubernetes.io/service-account-token", metadata=TOKEN_OF)
EVICTION = object_of("Eviction", "victim", "policy/v1")
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
NT = f"{TOPOLOGIES}/nt"
WEIGHT = {"name": "NetperfCosts", "topologyList": []}
CAPACITY = [{"op": "add", "path": "/status/capacity/network.aware.com~1bandwidth", "value": "1000000000"}]
OURS = {"type": "NetawareBandwidth", "status": "True", "reason": "Hardware", "message": "eth0"}
ZONE = {"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}
PROTECTED = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
TWO_CONDITIONS = [{"op": "add", "path": "/status/conditions", "value": [OURS, OURS]}]
ONLY_OURS, NOTHING_ELSE = "403 .* no capacity but network.aware.com/bandwidth", "403 .* nothing else in a node's status"
ONE_CONDITION = "403 .* one condition NetawareBandwidth, of 8192 bytes at most"
FOREIGN_NOTE = "403 .* no node annotations but netaware.io/agent"
OTHERS_NODE = "403 .*issued for node node-a, the request is for node-b"
Attack = tuple[str, str, Any, str]
"""Program, path, body, and what the API server says to it."""
PATCHED: tuple[Attack, ...] = (
    ("agent", f"{NODE_A}/status", CAPACITY, ALLOWED),
    ("agent", f"{NODE_A}/status", {"status": {"capacity": {"network.aware.com/bandwidth": "1G"}}}, ALLOWED),
    ("agent", f"{NODE_A}/status", {"status": {"conditions": [OURS]}}, ALLOWED),
    ("agent", NODE_A, annotated("netaware.io/agent"), ALLOWED),
    ("agent", f"{NODE_B}/status", CAPACITY, OTHERS_NODE),
    ("agent", NODE_B, annotated("netaware.io/agent"), OTHERS_NODE),
    ("agent", f"{NODE_A}/status", {"status": {"capacity": {"cpu": "64"}}}, ONLY_OURS),
    ("agent", f"{NODE_A}/status", {"status": {"allocatable": {"cpu": "64"}}}, ONLY_OURS),
    ("agent", f"{NODE_A}/status", status_condition(), NOTHING_ELSE),
    ("agent", f"{NODE_A}/status", status_condition(type="NetawareBandwidth", message="x" * 9000), ONE_CONDITION),
    ("agent", f"{NODE_A}/status", TWO_CONDITIONS, ONE_CONDITION),
    ("agent", f"{NODE_A}/status", {"status": {"declaredFeatures": ["B"]}}, NOTHING_ELSE),
    ("agent", f"{NODE_A}/status", {"status": {"declaredFeatures": None}}, NOTHING_ELSE),
    ("agent", NODE_A, annotated("example.com/x"), FOREIGN_NOTE),
    ("agent", NODE_A, annotated("netaware.io/bandwidth-capacity", "1T"), FOREIGN_NOTE),
    ("agent", f"{NODE_A}/status", annotated("example.com/x"), FOREIGN_NOTE),
    ("agent", NODE_A, annotated("netaware.io/agent", "x" * 513), "403 .*of 512 bytes at most"),
    ("agent", NODE_A, ZONE, "403 .*neither labels"),
    ("agent", f"{NODE_A}/status", ZONE, "403 .*neither labels"),
    ("agent", NODE_A, {"metadata": {"finalizers": ["example.com/x"]}}, "403 .*neither labels, finalizers"),
    ("agent", NODE_A, {"spec": {"unschedulable": True}}, "403 .*nor the spec"),
    ("agent", NODE_A, {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, "403 .*nor the spec"),
    ("agent", RESULTS, {"immutable": True}, ANY),
    ("agent", RESULTS, {"metadata": {"labels": {"netaware.io/plan": "true"}}}, ANY),
    ("agent", RESULTS, NOTE, ANY),
    ("unbound", f"{NODE_A}/status", CAPACITY, r"issued for node \(none\)"),
    ("unbound", RESULTS, {"data": {"x": "y"}}, "writes only the results"),
    ("admin", NODE_B, ZONE, ALLOWED),
    ("controller", SYSTEM, IMAGE, ANY),
    ("controller", UNRELATED, IMAGE, ANY),
    ("controller", UNRELATED, OPEN_ALL, ANY),
    ("controller", UNRELATED, {"metadata": {"labels": {LABEL: "shop"}}}, ANY),
    ("controller", IN_GROUP, IMAGE, ANY),
    ("controller", IN_GROUP, {"metadata": {"labels": {LABEL: None}}}, ANY),
    ("controller", IN_GROUP, NOTE, ANY),
    ("controller", IN_GROUP, OPEN_ALL, ANY),
    ("controller", IN_GROUP, {"spec": {"affinity": {"podAffinity": {}}}}, ANY),
    (
        "controller",
        IN_GROUP,
        {**annotated("netaware.io/target"), "spec": {"schedulingGates": [OPEN], "affinity": NARROWED}},
        ALLOWED,
    ),
    ("controller", RESULTS, {"data": {"a": None}}, ALLOWED),
    ("controller", NT, [{"op": "add", "path": "/spec/weights/-", "value": WEIGHT}], ALLOWED),
    ("controller", NT, [{"op": "remove", "path": "/spec/weights/0"}], ANY),
    ("controller", NT, {"spec": {"configmapName": "evil"}}, ANY),
    ("controller", NT, {"metadata": {"finalizers": ["evil.io/x"]}}, ANY),
    ("controller", f"{NODE_A}/status", status_condition(), ANY),
    ("scheduler", f"{UNRELATED}/status", status_condition(type="PodScheduled"), ALLOWED),
    ("scheduler", f"{SYSTEM}/status", status_condition(), ANY),
    ("scheduler", f"{UNRELATED}/status", {"status": {"phase": "Failed"}}, ANY),
    ("scheduler", f"{SYSTEM_LEASES}/kube-scheduler", {"spec": {"holderIdentity": "me"}}, ANY),
    ("scheduler", f"{CLAIMS}/victim", PROTECTED, ALLOWED),
    ("scheduler", f"{CLAIMS}/victim", {"metadata": {"labels": {"a": "b"}}}, ANY),
    ("scheduler", "/api/v1/persistentvolumes/victim", {"spec": {"hostPath": {"path": "/etc"}}}, ANY),
    ("gate-opener", IN_GROUP, {"spec": {"schedulingGates": [OPEN]}}, ALLOWED),
    ("gate-opener", IN_GROUP, OPEN_ALL, ANY),
    ("gate-opener", IN_GROUP, IMAGE, ANY),
    ("gate-opener", UNRELATED, {"metadata": {"labels": {"a": "b"}}}, ANY),
)
# A shard or a plan that the controller has not made is not there, and nobody else makes one.
UNPLANNED = ("netaware-plan-zone-a-12345678", "kube-root-ca.crt", "netperf-metrics-x", "netperf-metrics-7")
PATCHED += tuple(("agent", f"{MAPS}/{name}", {"data": {"x": "y"}}, "40[34] ") for name in UNPLANNED)
CREATED: tuple[Attack, ...] = (
    *(("agent", MAPS, object_of("ConfigMap", name), ANY) for name in UNPLANNED),
    ("agent", EVENTS, event("Node", "node-a", "node-a"), ALLOWED),
    ("agent", EVENTS, event("Pod", "some-pod", "node-a"), ALLOWED),
    ("agent", EVENTS, event("Node", "node-b", "node-a"), "on pods and on its own node, node-a"),
    ("agent", EVENTS, event("Pod", "p", "node-b"), "signs its events with netaware-agent and its own node, node-a"),
    ("unbound", EVENTS, event("Node", "node-a", "node-a"), "signs its events"),
    ("admin", MAPS, object_of("ConfigMap", "unrelated"), ALLOWED),
    ("controller", f"{SYSTEM}/eviction", EVICTION, ANY),
    ("controller", f"{UNRELATED}/eviction", EVICTION, ALLOWED),
    ("controller", SECRETS, EVIL_SECRET, ANY),
    ("controller", SECRETS, object_of("Secret", "any"), ANY),
    ("controller", MAPS, object_of("ConfigMap", "netaware-controller-config-x"), ANY),
    ("controller", MAPS, object_of("ConfigMap", "netaware-plan-z", immutable=True), ANY),
    ("controller", MAPS, object_of("ConfigMap", "netaware-plan-z", data={"a": "b"}), ALLOWED),
    ("controller", MAPS, object_of("ConfigMap", "netperf-metrics-7"), ALLOWED),
    ("controller", LEASES, lease("netaware-scheduler"), ANY),
    ("scheduler", LEASES, lease("netaware-scheduler"), ALLOWED),
    ("scheduler", LEASES, lease("any"), ANY),
    ("scheduler", SYSTEM_LEASES, lease("new"), ANY),
    ("scheduler", CLAIMS, claim("new"), ANY),
    ("scheduler", CLAIMS, claim("new", **EXTENDED), ALLOWED),
)
DELETED: tuple[Attack, ...] = (
    ("controller", RESULTS, None, ANY),
    ("controller", SHIPPED, None, ANY),
    ("scheduler", SYSTEM, None, ANY),
    ("scheduler", UNRELATED, None, ALLOWED),
    ("scheduler", f"{CLAIMS}/victim", None, ANY),
    ("scheduler", f"{CLAIMS}/extended", None, ALLOWED),
)
# The kubelet mounts the passphrase; the token cannot read it.
READ: tuple[Attack, ...] = (("agent", f"{SECRETS}/netaware-probe", None, "^403"), ("agent", SECRETS, None, "^403"))
ATTACKS = {"PATCH": PATCHED, "POST": CREATED, "DELETE": DELETED, "GET": READ}
