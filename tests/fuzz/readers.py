"""Readers of foreign input, each with a valid input and the exceptions that it may raise."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import msgspec

from agent.bandwidth.annotations import read_annotation
from agent.bandwidth.cni import parse_cached_result
from agent.bandwidth.counters import parse_device_counters
from agent.bandwidth.processes import parse_cgroup
from agent.bandwidth.tc_reader import parse_device, parse_filter
from agent.capacity.link_reader import parse_default_route
from agent.config import parse_rate, parse_reserve
from agent.netlink import KernelError
from agent.rtnetlink import parse_qdisc
from agent.traffic.conntrack import Connection, parse_connections
from controller import prometheus
from controller.cluster.crds import NETPERF_COSTS, AppGroup, NetworkTopology
from controller.config import parse_config
from controller.descheduler.policy import read_policy
from controller.prometheus import PrometheusError
from controller.scheduler.extender import handler as extender
from controller.scheduler.extender.handler import decode_preemption
from controller.topology.weights import zone_costs_of
from controller.traffic.weights import read_weights
from controller.webhook import gate
from kubekit import quantity, responses, selectors
from kubekit.errors import ConfigError, QuantityError, SelectorError
from kubekit.http import parse_listen
from kubekit.settings import parse_yaml
from kubekit.wire import DECODE_ERRORS, ObjectMeta
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION, decode_announcement
from netperf.latencies import decode_latencies
from netperf.plans import PLAN_KEY, decode_plan
from netperf.policy import parse_policy
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import output_selectors, parse_output
from netperf.refusals import PlanRefusedError
from netperf.results import ResultKey, decode_results, sample_key
from netperf.sample import NodeLocation
from tests.support.conntrack_messages import CT_NEW, encode_attribute, encode_connection

Reader = Callable[[str], object]
NETLINK_HEADER_BYTES = 16
UNIT_TESTS = Path(__file__).parents[1] / "unit"
# YAML is read a thousand times slower than JSON.
SLOW_READERS = {"configuration", "descheduler policy"}
# The kernel sends whole messages; readers of messages that the fuzzer has cut may raise these.
NETLINK_FAILURES = (struct.error, IndexError, ValueError)
# Deeper than Python's limit of recursion.
DEEPLY_NESTED_JSON = '{"x":' + "[" * 1_500
NODE_A, NODE_B = NodeLocation("a1", "za", "r"), NodeLocation("b1", "zb", "r")
LOCATIONS = {"a1": NODE_A, "b1": NODE_B}
SAMPLE = json.dumps(
    {
        "origin": {"node": "a1", "zone": "za", "region": "r"},
        "destination": {"node": "b1", "zone": "zb", "region": "r"},
        "measurement": {"prober": "netperf", "test": "TCP_RR", "p50_us": 100.0, "p90_us": 110.0, "p99_us": 120.0},
        "sequence": 3,
    }
)
CNI_RESULT = json.dumps(
    {
        "kind": "cniCacheV1",
        "cniArgs": [["K8S_POD_UID", "u1"]],
        "ifName": "eth0",
        "containerId": "c1",
        "networkName": "net",
        "config": base64.b64encode(b'{"plugins": [{"type": "bandwidth"}]}').decode(),
        "capabilityArgs": {"bandwidth": {"ingressRate": 1000}},
        "result": {"interfaces": [{"name": "eth0"}]},
    }
)
NETPERF_OUTPUT = "".join(f"{key}=42\n" for key in output_selectors("TCP_RR"))
PLAN = json.dumps(
    {
        "zone": "za",
        "epoch": 1,
        "interval_s": 60,
        "slot_count": 1,
        "results_name": "netperf-metrics",
        "settings": {},
        "nodes": [["a1", "10.0.0.1", "za", "r"], ["b1", "10.0.0.2", "zb", "r"]],
        "probes": [[0, 1, 0, 0, 0]],
    }
)
CONFIG = """
apiVersion: netaware.io/v1alpha1
kind: ControllerConfiguration
topology: {probing: {intervalS: 60, test: TCP_RR}, costPolicy: {expireAfterS: 1000}}
"""
PROMETHEUS = (
    '{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1700000000.1,"42"]}]}}'
)
EXTENDER_ARGS = (
    '{"Pod":{"metadata":{"name":"p","namespace":"n","labels":{"app":"a"}}},"Nodes":null,"NodeNames":["n1","n2"]}'
)
PREEMPTION = (
    '{"Pod":{"metadata":{"name":"p"}},"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u"}],"NumPDBViolations":1}}}'
)
ADMISSION_REVIEW = (
    '{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","object":'
    '{"metadata":{"labels":{"appgroup.diktyo.x-k8s.io":"g"}},"spec":{"schedulingGates":[{"name":"other"}]}}}}'
)
TOPOLOGY = (
    '{"metadata":{"name":"nt-default"},"spec":{"weights":[{"name":"NetperfCosts","topologyList":[{"topologyKey":'
    '"topology.kubernetes.io/zone","originList":[{"origin":"a","costList":[{"destination":"b","networkCost":10}]}]}]}]}}'
)
RECORDED_MESSAGES = json.loads((UNIT_TESTS / "agent" / "recordings" / "rtnetlink.messages").read_text())
CONNECTION = encode_connection(Connection(b"\x0a\0\0\1", b"\x0a\0\0\2", 80, 1, 2), CT_NEW)


def encode_filter() -> str:
    """A message of a u32 filter that redirects to another device (numbers of linux/rtnetlink.h, pkt_cls.h and tc_act/tc_mirred.h)."""
    mirred = encode_attribute(2, encode_attribute(2, struct.pack("=IIiiiiI", 0, 0, 4, 0, 0, 1, 9)))
    action = encode_attribute(1, encode_attribute(1, b"mirred\0") + mirred)
    options = encode_attribute(5, bytes(32)) + encode_attribute(7, action)
    header = struct.pack("=BxxxiIII", 0, 7, 0x10000, 0xFFFFFFFF, 1 << 16)
    return (header + encode_attribute(1, b"u32\0") + encode_attribute(2, options)).decode("latin-1")


def read_recorded_body(kind: str, parse: Callable[[bytes, int, int], object]) -> str:
    """The body of the recorded netlink message of which the reader makes most, as latin-1 text."""
    bodies = [bytes.fromhex(message)[NETLINK_HEADER_BYTES:] for message in RECORDED_MESSAGES[kind]]
    return max(bodies, key=lambda body: len(str(parse(body, 0, len(body))))).decode("latin-1")


def read_results(text: str) -> object:
    keys = (
        sample_key(NODE_A, NODE_B, "TCP_RR"),
        str(ResultKey(NODE_A.node, NODE_B.node, "TCP_RR", is_failure=True)),
        "netperf.p50.latency.milliseconds.origin.a1.destination.b1",
    )
    return decode_results(dict.fromkeys(keys, text), LOCATIONS)


def read_cost_policy(text: str) -> object:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parse_policy(fields) if isinstance(fields, dict) else None


def netlink_reader(parse: Callable[[bytes, int, int], object]) -> Reader:
    """A reader of the body of a netlink message, as latin-1 text."""

    def read(text: str) -> object:
        data = text.encode("latin-1", "replace")
        return parse(data, 0, len(data))

    return read


def encode_text(text: str) -> bytes:
    """Bytes of a text: latin-1 if its length is odd, else UTF-8, so that many are not valid UTF-8."""
    return text.encode("latin-1" if len(text) % 2 else "utf-8", "replace")


def bytes_reader(read: Callable[[bytes], object]) -> Reader:
    """A reader of bytes, as text."""
    return lambda text: read(encode_text(text))


def read_group_weights(text: str) -> object:
    group = AppGroup(metadata=ObjectMeta(annotations={MEASURED_WEIGHTS_ANNOTATION: text}))
    return read_weights(group, MEASURED_WEIGHTS_ANNOTATION, [])


def read_topology(text: str) -> object:
    return zone_costs_of(msgspec.json.decode(text, type=NetworkTopology).weight(NETPERF_COSTS))


def read_api_error(text: str) -> object:
    answer = SimpleNamespace(status=503, reason="", headers={})
    return responses.decode_error(cast("aiohttp.ClientResponse", answer), encode_text(text))


READERS: dict[str, tuple[Reader, str, tuple[type[Exception], ...]]] = {
    "results": (read_results, SAMPLE, ()),
    "plan": (lambda text: decode_plan({PLAN_KEY: text}), PLAN, (PlanRefusedError,)),
    "latencies": (decode_latencies, '{"zones":["a","b"],"us":[[1,2],[3,4]]}', ()),
    "announcement": (decode_announcement, '{"address":"10.0.0.1","port":12865,"prober":"datagrams"}', ()),
    "netperf's output": (lambda text: parse_output(text, "TCP_RR"), NETPERF_OUTPUT, (ProbeFailedError,)),
    "cost policy": (read_cost_policy, '{"expireAfterS": 600, "percentile": "p50"}', (ConfigError,)),
    "bandwidth annotation": (read_annotation, "10M", ()),
    "quantity": (quantity.parse, "1.5Gi", (QuantityError,)),
    "whole quantity": (quantity.parse_int, "1.5Gi", (QuantityError,)),
    "quantity in thousandths": (quantity.parse_milli, "100m", (QuantityError,)),
    "selector": (selectors.parse_selector, "app=web,tier in (a, b),!legacy", (SelectorError,)),
    "CNI cache": (bytes_reader(parse_cached_result), CNI_RESULT, DECODE_ERRORS),
    "device counters": (bytes_reader(parse_device_counters), "  eth0: 1 2 3 4 5 6 7 8 9 10 11\n", ()),
    "error of the API server": (read_api_error, '{"kind":"Status","code":409,"reason":"Conflict","message":"no"}', ()),
    "cgroup": (parse_cgroup, "0::/kubepods/burstable/pod12345678-1234-1234-1234-123456789012/abc\n", ()),
    "listen address": (parse_listen, "[::1]:9850", (ConfigError,)),
    "rate": (lambda text: parse_rate("f", text), "10G", (ConfigError,)),
    "reserve": (parse_reserve, "10%", (ConfigError,)),
    "configuration": (lambda text: parse_config(text, "file"), CONFIG, (ConfigError,)),
    "descheduler policy": (
        lambda text: read_policy(parse_yaml(text, "policy"), "policy"),
        "apiVersion: descheduler/v1alpha2\nkind: LowNodeLoadArgs\n",
        (ConfigError,),
    ),
    "Prometheus": (
        lambda text: prometheus._decode_samples(encode_text(text), 200, "url", finite_only=True),
        PROMETHEUS,
        (PrometheusError,),
    ),
    "extender's arguments": (bytes_reader(extender.decode_args), EXTENDER_ARGS, (extender.BadRequestError,)),
    "preemption": (bytes_reader(decode_preemption), PREEMPTION, DECODE_ERRORS),
    "admission review": (bytes_reader(gate.answer_review), ADMISSION_REVIEW, DECODE_ERRORS),
    "weights of an AppGroup": (read_group_weights, '{"a":{"b":1.5,"c":2}}', ()),
    "NetworkTopology": (read_topology, TOPOLOGY, DECODE_ERRORS),
    "device": (netlink_reader(parse_device), read_recorded_body("links", parse_device), NETLINK_FAILURES),
    "qdisc": (netlink_reader(parse_qdisc), read_recorded_body("qdiscs", parse_qdisc), NETLINK_FAILURES),
    "filter": (netlink_reader(partial(parse_filter, hook="ingress")), encode_filter(), NETLINK_FAILURES),
    "default routes": (
        netlink_reader(parse_default_route),
        read_recorded_body("routes", parse_default_route),
        NETLINK_FAILURES,
    ),
    "connections": (
        lambda text: list(parse_connections(text.encode("latin-1", "replace"))),
        CONNECTION.decode("latin-1"),
        (KernelError,),
    ),
}
"""Name -> reader, a valid input, and the exceptions that it may raise."""
