"""Flows to dependencies, AppGroups and money; series in the shapes that the projects document."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable, Location
from controller.cluster.dependency_graph import build_graph
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodReader
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.prometheus import PrometheusClient, PrometheusError, VectorSample
from controller.traffic.config import TrafficConfig
from controller.traffic.graph import Flow, WorkloadId, build_traffic_graph
from controller.traffic.prices import PriceTable
from controller.traffic.proposals import Proposal, propose
from controller.traffic.reconciler import (
    AS_DESCRIBED,
    Comparison,
    TrafficController,
    compare_groups,
    describe_drift,
    have_weights_changed,
)
from controller.traffic.sources import read_flows
from controller.traffic.workloads import Workloads
from kubekit.client import Client
from kubekit.conditions import make_condition
from kubekit.errors import ConfigError
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import weight_body
from tests.unit.controller.objects import AppGroup, AppGroupStatus, Pod, WeightInfo, appgroup

A, B = Location("r1", "z1"), Location("r1", "z2")
COSTS = CostTable(msgspec.convert(weight_body({("z1", "z2"): 7}), WeightInfo))
SHOP = [("frontend", "cart", 5000.0), ("cart", "redis", 4000.0), ("frontend", "catalog", 3000.0)]
MONTH_S = 730 * 3600


def of(name: str, namespace: str = "shop", kind: str = "Deployment") -> WorkloadId:
    return WorkloadId(namespace, name, kind)


def flow(client: str, server: str, rate: float, **fields: Any) -> Flow:
    return Flow(of(client), of(server), rate, fields.pop("peak", rate), **fields)


def world(names: Iterable[str], locations: dict[Location, int] | None = None) -> Workloads:
    found = Workloads()
    for name in names:
        found.replica_counts[of(name)] = sum((locations or {A: 1}).values())
        found.location_counts[of(name)] = Counter(locations or {A: 1})
        found.labels_by_workload[of(name)] = {"app": name}
    return found


def proposed(flows: Iterable[Flow], *groups: AppGroup) -> list[Proposal]:
    """AppGroups of namespace shop, whose workloads are those of the flows."""
    flows = list(flows)
    names = {end.name for f in flows for end in (f.client, f.server) if end.kind == "Deployment"}
    return propose(build_traffic_graph(flows, "netaware-system"), world(names), groups, "shop", COSTS)


def compared(
    flows: Iterable[Flow],
    *groups: AppGroup,
    prices: PriceTable | None = None,
    workloads: Workloads | None = None,
    admitted: dict[str, str] | None = None,
) -> Comparison:
    """Groups beside these flows, of workloads with a replica in each of two zones; ``admitted`` is namespace -> those it lets in."""
    flows = list(flows)
    ends = {end for each in flows for end in (each.client, each.server)}
    if workloads is None:
        workloads = world(end.name for end in ends)
        workloads.replica_counts.update(ends)
        workloads.location_counts.update({end: Counter({A: 1, B: 1}) for end in ends})
        workloads.region_by_zone.update({"z1": "r1", "z2": "r1"})
    labels = {name: {"netaware.io/appgroups-from": others} for name, others in (admitted or {}).items()}
    namespaces = tuple(Object(ObjectMeta(name=name, labels=labels.get(name))) for name in ("shop", "other"))
    membership = ClusterSnapshot(now_s=0, groups=groups, namespaces=namespaces).build_membership()
    return compare_groups(flows, workloads, groups, prices, membership=membership, netaware_namespace="netaware-system")


def boutique(spec: dict[str, Any], name: str = "boutique", namespace: str = "shop") -> AppGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, AppGroup)


def running(name: str, owner: str = "", on: str = "n1") -> Any:
    kind, _, owner_name = owner.partition("/")
    owners = [{"kind": kind, "name": owner_name, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "shop", "labels": {"pod-template-hash": "5d"}, "ownerReferences": owners}
    body = {"metadata": meta, "spec": {"nodeName": on}, "status": {"phase": "Running"}}
    return PodReader().read(msgspec.convert(body, Pod))


class Answers(PrometheusClient):
    """A Prometheus that knows some series: instant vectors by metric name. Stands in for the server alone."""

    def __init__(self, series: dict[str, list[tuple[dict[str, str], float]]], *, refuse: str = "\0") -> None:
        super().__init__("http://prometheus.invalid")
        self._series, self._refuse = series, refuse
        self.known_s = 1e9
        self.asked: list[str] = []

    async def query(self, expression: str, *, at_s: float | None = None, finite: bool = True) -> list[VectorSample]:
        if self._refuse in expression:
            raise PrometheusError("query processing would load too many samples into memory")
        if expression.startswith("time()"):
            return [VectorSample({}, self.known_s)]
        factor = 2.0 if expression.startswith("quantile_over_time") else 1.0
        self.asked.append(expression)
        kept = expression.partition("by (")[2].partition(")")[0].split(", ")
        return [
            VectorSample({k: v for k, v in labels.items() if k in kept}, value * factor)
            for name, found in self._series.items()
            if re.search(rf"\b{name}\b", expression)
            for labels, value in found
        ]


def istio(source: str, destination: str, namespace: str = "shop") -> dict[str, str]:
    ends = {"source_workload_namespace": "shop", "source_workload": source}
    return ends | {"destination_workload_namespace": namespace, "destination_workload": destination}


def agents(server: str, **more: str) -> dict[str, str]:
    client = {"client_namespace": "shop", "client_workload": "web", "client_kind": "Deployment", "client_zone": "z1"}
    return {**client, "server": server, **more}


async def read_from(prometheus: Answers) -> list[Flow]:
    """What the first source that answers tells of an hour."""
    return (await read_flows(prometheus, "", 3600)).flows


async def test_istios_counters_add_up_and_unknown_ends_are_external() -> None:
    ends = istio("frontend", "redis")
    series = {
        "istio_request_bytes_sum": [(ends, 10.0)],
        "istio_response_bytes_sum": [(ends, 20.0), (istio("frontend", "unknown", "unknown"), 7.0)],
        "istio_tcp_received_bytes_total": [(ends, 1.0)],
        "istio_tcp_sent_bytes_total": [(ends, 3.0)],
    }
    known, unknown = sorted(await read_from(Answers(series)), key=lambda f: not f.server.is_known)
    assert (known.client.name, known.server.name) == ("frontend", "redis")
    assert (known.bytes_per_s, known.peak_bytes_per_s) == (34, 68)
    assert build_traffic_graph([known, unknown], "netaware-system").omitted[0].reason == "external"
    found = next(f for f in await read_from(Answers(series, refuse="quantile_over_time")) if f.server.is_known)
    assert found.peak_bytes_per_s == 34, "of a peak that is too much for Prometheus the mean is left"
    assert (await read_flows(Answers(series), "", 3600)).remarks == ()
    (remark,) = (await read_flows(Answers(series, refuse="quantile_over_time"), "", 3600)).remarks
    assert "means are used" in remark
    (remark,) = (await read_flows(Answers(series, refuse="min_over_time"), "", 3600)).remarks
    assert "since when" in remark


@pytest.mark.parametrize("port", ["9" * 5000, "70000", "\u0667\u0660", "1_0", "-1", ""])
async def test_an_invalid_port_is_omitted(port: str) -> None:
    (found,) = await read_from(Answers({"netaware_traffic_bytes_total": [(agents("10.1.0.1", port=port), 100.0)]}))
    assert found.port == 0


async def test_server_addresses_become_workloads_and_a_reused_one_is_shared_by_time() -> None:
    def whose(address: str, workload: str, zone: str) -> dict[str, str]:
        end = {"server_namespace": "shop", "server_workload": workload, "server_kind": "Deployment"}
        return end | {"server": address, "server_zone": zone}

    series = {
        "netaware_traffic_bytes_total": [
            (agents("10.1.0.1", port="7070"), 100.0),
            (agents("10.1.0.2", port="7070"), 40.0),
            (agents("outside", port="7070"), 7.0),
        ],
        "netaware_traffic_server_info": [
            (whose("10.1.0.1", "cart", "z2"), 60.0),
            (whose("10.1.0.2", "cart", "z1"), 45.0),
            (whose("10.1.0.2", "ads", "z1"), 15.0),
        ],
    }
    found = await read_from(Answers(series))
    assert {(f.client, f.client_zone, f.port) for f in found} == {(of("web"), "z1", 7070)}
    assert {(f.server.name, f.server_zone): (f.bytes_per_s, f.peak_bytes_per_s) for f in found} == {
        ("cart", "z2"): (100, 200),
        ("cart", "z1"): (30, 60),
        ("ads", "z1"): (10, 20),
        ("", ""): (7, 14),
    }


async def test_without_a_source_the_error_names_the_metrics() -> None:
    with pytest.raises(ConfigError, match=r"istio_request_bytes_sum.*install one of the projects"):
        await read_flows(Answers({"up": []}), "", 3600)


def test_dns_probes_scrapes_self_calls_and_external_ends_are_no_dependency() -> None:
    flows = [flow(*edge) for edge in SHOP]
    flows += [
        flow("frontend", "frontend", 10),
        flow("frontend", "resolver", 10, port=53),
        Flow(of("prometheus", "monitoring"), of("cart"), 100),
        Flow(of("cart"), of("coredns", "kube-system"), 10),
        Flow(of("cart"), WorkloadId(), 1000),
        Flow(of("konnectivity", "kube-system"), of("cart"), 10),
        Flow(of("cart"), of("netaware-controller", "placement"), 10),
        flow("cart", "catalog", 0.5),
    ]
    graph = build_traffic_graph(flows, "placement")
    assert {(d.client.name, d.server.name) for d in graph.dependencies} == {(a, b) for a, b, _ in SHOP}
    reasons = {item.reason for item in graph.omitted}
    assert reasons == {"self", "dns", "scrape", "external", "system", "thin"}


def test_a_proposal_is_an_appgroup_that_the_controller_reads_without_faults() -> None:
    (found,) = proposed(flow(*edge, peak=edge[2] * 1.1, client_zone="z1", server_zone="z2") for edge in SHOP)
    spec = boutique(found.manifest["spec"]).spec
    read = build_graph(spec)
    assert read.faults == ()
    edges = {(read.selectors[e.caller], read.selectors[e.callee]): e for e in read.edges}
    assert set(edges) == {(a, b) for a, b, _ in SHOP}
    assert edges["frontend", "cart"].min_bandwidth_bps == 44_000
    assert edges["frontend", "cart"].max_network_cost == 7
    assert spec.num_members == 4
    assert {name for _, name, _ in found.patches} == {"frontend", "cart", "redis", "catalog"}


@pytest.mark.parametrize(
    ("peak_bps", "bandwidth"), [(8, 1000), (1001, 1100), (44_000, 44_000), (44_001, 45_000), (9_990_001, 10_000_000)]
)
def test_bandwidth_is_rounded_up_to_two_digits(peak_bps: float, bandwidth: int) -> None:
    (found,) = proposed([flow("a", "b", 1, peak=peak_bps / 8)])
    assert found.dependencies[0].min_bandwidth_bps == bandwidth


def reference(name: str, selector: str = "", **more: str) -> dict[str, str]:
    return {"kind": "Deployment", "name": name, "selector": selector, **more}


def test_an_existing_appgroup_keeps_its_entries_and_missing_ones_are_added() -> None:
    needs = [{"workload": reference("cart", "P2"), "minBandwidth": "10M", "maxNetworkCost": 3}]
    workloads = [
        {"workload": reference("frontend", "P1"), "dependencies": needs},
        {"workload": reference("cart", "P2")},
    ]
    group = boutique({"numMembers": 9, "topologySortingAlgorithm": "TarjanSort", "workloads": workloads})
    (found,) = proposed([flow(*edge) for edge in SHOP], group)
    spec = found.manifest["spec"]
    assert (found.name, found.exists, spec["numMembers"]) == ("boutique", True, 9)
    assert spec["topologySortingAlgorithm"] == "TarjanSort"
    frontend = spec["workloads"][0]
    assert frontend["workload"]["selector"] == "P1"
    assert [(d["workload"]["selector"], d["minBandwidth"]) for d in frontend["dependencies"]] == [
        ("P2", "10M"),
        ("catalog", "24000"),
    ]
    assert compared([flow(*edge) for edge in SHOP], group).weights_by_group["shop/boutique"] == {"P1": {"P2": 5000.0}}
    drift = compared([flow("cart", "frontend", 9)], group).drift_by_group["shop/boutique"]
    assert {(d.kind, d.client, d.server) for d in drift} == {
        ("new", "shop/cart", "shop/frontend"),
        ("gone", "shop/frontend", "shop/cart"),
    }
    (grown,) = compared([flow("frontend", "cart", 20e6)], group).drift_by_group["shop/boutique"]
    assert grown.kind == "grown"
    assert "16 times" in grown.detail


def test_entries_of_one_name_are_kept_and_matched_by_kind() -> None:
    entries = [
        {"workload": reference("web", "W1")},
        {"workload": {"kind": "StatefulSet", "name": "web", "selector": "W2"}},
        {"workload": reference("web", "W3", namespace="other")},
    ]
    group = boutique({"numMembers": 3, "workloads": entries})
    stateful = of("web", kind="StatefulSet")
    flows = [flow("web", "db", 9.0), Flow(stateful, of("db"), 9.0), Flow(stateful, of("db", kind="StatefulSet"), 8.0)]
    (found,) = proposed(flows, group)
    by_selector = {item["workload"]["selector"]: item for item in found.manifest["spec"]["workloads"]}
    called = {
        caller: [d["workload"]["selector"] for d in by_selector[caller].get("dependencies") or ()]
        for caller in by_selector
    }
    assert called == {"W1": ["db"], "W2": ["db", "db-statefulset"], "W3": [], "db": [], "db-statefulset": []}
    assert [(by_selector[s]["workload"]["kind"], s) for s in ("W2", "db")] == [
        ("StatefulSet", "W2"),
        ("Deployment", "db"),
    ]


def test_traffic_between_two_existing_groups_joins_neither_of_them() -> None:
    def listing(group: str, *names: str) -> AppGroup:
        return boutique({"workloads": [{"workload": reference(name, name)} for name in names]}, group)

    flows = [flow("web", "cart", 90.0), flow("pay", "db", 80.0), flow("cart", "pay", 1000.0), flow("new", "pay", 5.0)]
    found = {p.name: p for p in proposed(flows, listing("a", "web", "cart"), listing("b", "pay", "db"))}
    members = {name: [w["workload"]["name"] for w in p.manifest["spec"]["workloads"]] for name, p in found.items()}
    assert members == {"a": ["web", "cart"], "b": ["pay", "db", "new"]}
    assert {name: {workload for _, workload, _ in p.patches} for name, p in found.items()} == {
        "a": {"web", "cart"},
        "b": {"pay", "db", "new"},
    }
    assert {name: p.external for name, p in found.items()} == {"a": ("shop/pay",), "b": ("shop/cart",)}


def test_groups_split_at_thin_traffic_and_a_hub_joins_no_groups() -> None:
    flows = [flow(f"web{i}", f"db{i}", 10_000) for i in range(8)]
    flows += [flow(f"web{i}", "logs", 600 + i) for i in range(8)]
    flows += [flow(f"db{i}", "logs", 600) for i in range(8)]
    flows.append(flow("web0", "web1", 50))
    found = proposed(flows)
    assert len(found) == 8
    sizes = sorted(len(p.manifest["spec"]["workloads"]) for p in found)
    assert sizes == [2] * 7 + [3]
    assert len({p.name for p in found}) == 8


def test_cycles_external_ends_and_daemonsets_are_no_errors() -> None:
    flows = [flow("a", "b", 100), flow("b", "a", 100), Flow(of("a"), of("proxy", kind="DaemonSet"), 100)]
    (found,) = proposed(flows)
    assert {(d.client, d.server) for d in found.dependencies} == {("shop/a", "shop/b"), ("shop/b", "shop/a")}
    assert found.external == ("shop/proxy",)


def test_pods_resolve_to_workloads_and_missing_ends_are_reported() -> None:
    pods = [running("web-5d-x", "ReplicaSet/web-5d"), running("db-0", "StatefulSet/db", "n2"), running("lone")]
    found = Workloads.from_objects(pods, {"n1": A, "n2": B})
    assert {workload.kind for workload in found.replica_counts} == {"Deployment", "StatefulSet", "Pod"}
    found.replica_counts[of("db", kind="Job")] = 1
    flows, unknown = found.resolve(
        [
            Flow(WorkloadId("shop", "web"), of("db", kind="StatefulSet"), 2),
            Flow(of("gone"), of("web"), 7),
        ]
    )
    assert [(f.client.kind, f.server.kind) for f in flows] == [("Deployment", "StatefulSet")]
    assert unknown == {"shop/gone": 7}


def test_a_bill_is_bytes_times_price_by_distance() -> None:
    prices = PriceTable(between_zones=0.02)
    group = boutique({"workloads": [{"workload": reference("a", "A")}]})
    bill = compared([flow("a", "b", 1000, client_zone="z1", server_zone="z2")], group, prices=prices).bill
    assert bill.monthly_price == pytest.approx(1000 * MONTH_S / 1e9 * 0.02)
    assert bill.monthly_price_by_group == {"shop/boutique": bill.monthly_price}
    assert bill.crossing_bytes_per_s == 1000
    assert bill.dependencies[0].has_all_zones
    flows = [flow("a", "b", 300, client_zone="z1", server_zone="z2"), flow("a", "b", 700)]
    spread = compared(flows, prices=prices).bill
    assert spread.crossing_bytes_per_s == pytest.approx(300 + 350), (
        "bytes without zones are spread over pairs of replicas"
    )
    assert spread.monthly_price == pytest.approx(650 * MONTH_S / 1e9 * 0.02)
    assert not spread.dependencies[0].has_all_zones


def test_a_zone_without_pods_keeps_its_region() -> None:
    pods = [running(f"{name}-5d-x", f"ReplicaSet/{name}-5d") for name in "ab"]
    calls = flow("a", "b", 1000, client_zone="z1", server_zone="z2")
    bill = compared([calls], workloads=Workloads.from_objects(pods, {"n1": A, "n2": B})).bill
    assert [pair.distance for pair in bill.zone_pairs] == ["zones"]


def test_a_missing_price_is_that_of_the_next_shorter_distance() -> None:
    far = Location("r2", "z9")
    assert PriceTable(between_zones=0.02).price_per_gb(A, far) == 0.02
    assert PriceTable(same_zone=0.01).price_per_gb(A, B) == 0.01
    assert PriceTable(between_zones=0.02, between_regions=0.0).price_per_gb(A, far) == 0


def test_ten_thousand_edges_between_a_thousand_services_are_covered() -> None:
    flows = [flow(f"s{i % 1_000}", f"s{(i * 7 + i // 1_000 + 1) % 1_000}", 1000.0 + i % 97) for i in range(10_000)]
    graph = build_traffic_graph(flows, "netaware-system")
    assert math.isclose(
        graph.bytes_per_s + sum(o.bytes_per_s for o in graph.omitted), sum(f.bytes_per_s for f in flows)
    )
    assert sum(d.bytes_per_s for p in proposed(flows) for d in p.dependencies) >= 0.95 * graph.bytes_per_s


def test_weights_are_written_after_traffic_shifts_or_doubles() -> None:
    before = {("P1", "P2"): 80.0, ("P1", "P3"): 20.0}
    assert not have_weights_changed(before, {"P1": {"P2": 120.0, "P3": 25.0}})
    assert not have_weights_changed(before, {})
    assert have_weights_changed(before, {"P1": {"P2": 70.0, "P3": 31.0}})
    assert have_weights_changed(before, {"P1": {"P2": 160.0, "P3": 40.0}})
    assert have_weights_changed(before, {"P1": {"P2": 80.0}, "P2": {"P3": 20.0}})
    assert have_weights_changed({}, {"P1": {"P2": 80.0}})


@pytest.mark.parametrize(
    ("dependency", "declared"),
    [
        (reference("cart"), True),
        (reference("cart", "C"), True),
        (reference("old-name", "C"), True),
        (reference("cart", "OLD"), False),
        (reference("cart", namespace="other"), True),
    ],
)
def test_a_dependency_counts_as_declared_where_the_scheduler_finds_its_workload(
    dependency: dict[str, str], declared: bool
) -> None:
    frontend = {"workload": reference("frontend", "F"), "dependencies": [{"workload": dependency}]}
    group = boutique({"workloads": [frontend, {"workload": reference("cart", "C")}]})
    assert len(build_graph(group.spec).edges) == declared
    flows = [flow("frontend", "cart", 900.0)]
    assert [one.kind for one in compared(flows, group).drift_by_group["shop/boutique"]] == ([] if declared else ["new"])
    (proposal,) = proposed([*flows, flow("frontend", "redis", 800.0)], group)
    assert {(d.server, d.is_user_defined) for d in proposal.dependencies} == {
        ("shop/cart", declared),
        ("shop/redis", False),
    }


def test_workloads_of_other_namespaces_are_neither_drift_nor_reported() -> None:
    there = {"namespace": "data"}
    needs = [{"workload": reference("cart", "CART")}, {"workload": reference("db", "DB", **there)}]
    store = [{"workload": reference("store", "STORE", **there)}]
    workloads = [
        {"workload": reference("frontend", "FRONTEND"), "dependencies": needs},
        {"workload": reference("cart", "CART")},
        {"workload": reference("db", "DB", **there), "dependencies": store},
        {"workload": reference("store", "STORE", **there)},
    ]
    flows = [flow("frontend", "cart", 100), Flow(of("db", "data"), of("store", "data"), 1000)]
    flows += [Flow(of("frontend"), of("db", "data"), 100), flow("frontend", "no-member", 100)]
    empty = boutique({}, "empty", "else")
    seen = compared(flows, boutique({"workloads": workloads}), empty)
    assert seen.drift_by_group == {"shop/boutique": [], "else/empty": []}
    assert seen.weights_by_group == {"shop/boutique": {"FRONTEND": {"CART": 100}}, "else/empty": {}}
    assert seen.bill.bytes_per_s == 1300


def test_prices_belong_to_groups_that_may_have_the_workloads_pods() -> None:
    """The author of an AppGroup must not see the price of workloads that are not in it."""
    foreign = boutique({"workloads": [{"workload": reference("cart", "C", namespace="other")}]})
    mine = boutique({"workloads": [{"workload": reference("cart", "C")}]}, "mine", "other")
    flows = [Flow(of("cart", "other"), of("db", "other"), 9)]

    def payer(*groups: AppGroup, admitted: dict[str, str] | None = None) -> str:
        return str(compared(flows, *groups, admitted=admitted).bill.dependencies[0].group)

    assert payer(foreign, mine) == payer(mine, foreign) == "other/mine"
    assert payer(foreign) == ""
    assert payer(foreign, admitted={"other": "shop"}) == "shop/boutique"


async def test_the_window_is_limited_to_the_age_of_the_source() -> None:
    prometheus = Answers({"istio_request_bytes_sum": [(istio("a", "b"), 100.0)]})
    for known_s, window_s in ((1e9, 3600), (3590.0, 3600), (1800.0, 1830), (0.0, 60)):
        prometheus.known_s = known_s
        assert (await read_flows(prometheus, "istio", 3600)).window_s == window_s
    prometheus.known_s = 300.0
    assert (await read_flows(prometheus, "istio", 90 * 86400)).window_s == pytest.approx(300, abs=15)


@pytest.mark.parametrize(("round_s", "least_s"), [(0.0, 100), (0.15, 100), (0.6, 280), (1e9, 1240)])
async def test_ranges_contain_two_readings_of_the_slowest_agent(round_s: float, least_s: int) -> None:
    """A round of 0.6 s of a core comes every 120 s: no range of 100 s has two of them, and that node would move nothing."""
    prometheus = Answers(
        {
            "netaware_traffic_bytes_total": [(agents("10.1.0.1"), 100.0)],
            "netaware_traffic_round_seconds": [({}, round_s)],
        }
    )
    assert (await read_flows(prometheus, "", 60)).window_s == least_s
    prometheus.asked.clear()
    await read_flows(prometheus, "conntrack", 3600)
    peaks = [expression for expression in prometheus.asked if expression.startswith("quantile_over_time")]
    assert peaks
    assert all(f"[{max(least_s, 120)}s]" in expression for expression in peaks)


def test_drift_messages_have_no_rates_and_a_limited_length() -> None:
    names = [f"a{i}" for i in range(5)]
    group = boutique({"workloads": [{"workload": reference(name, name)} for name in (*names, "b")]})
    drift = compared([flow(name, "b", 1000.0) for name in names], group).drift_by_group["shop/boutique"]
    reason, message = describe_drift(drift)
    assert reason == "Drift"
    assert message.startswith("a0 -> b is not declared; a1 -> b")
    assert message.endswith("and 2 more: see kubectl netaware propose")
    assert describe_drift([])[0] == "AsDescribed"


@pytest.mark.looptime
async def test_in_every_leadership_a_condition_becomes_unknown_when_traffic_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise PrometheusError("no answer")

    monkeypatch.setattr("controller.traffic.reconciler.read_flows", fail)
    before = make_condition(AS_DESCRIBED, holds=True, reason=AS_DESCRIBED, message="", generation=1)
    known = {"shop/g": appgroup({}, status=AppGroupStatus(conditions=[before]))}
    config = TrafficConfig(prometheus_url="http://prometheus:9090", interval_s=10)
    controller = TrafficController(
        cast("Client", None),
        cast("ClusterCache", SimpleNamespace(app_groups=known)),
        config,
        CollectorRegistry(),
        membership=Membership(NetworkOverheadArgs()),
        notify=lambda _: None,
    )
    for _ in range(2):
        leading = asyncio.create_task(controller.run())
        await asyncio.sleep(5)
        assert controller.conditions("shop/g") == []
        await asyncio.sleep(20)
        assert [found.status for found in controller.conditions("shop/g")] == ["Unknown"]
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


def test_errors_name_the_traffic_setting_and_presets_have_a_source() -> None:
    TrafficConfig().validate()
    assert TrafficConfig().prices.resolve() is None
    for preset in ("aws", "gcp", "azure"):
        table = PriceTable(preset=preset).resolve()
        assert table is not None
        assert "2026" in table.source
    for url in ("prometheus:9090", "http:///path", "http://[", "http://user@", "user:secret@prometheus:9090"):
        with pytest.raises(ConfigError, match="prometheusUrl") as refused:
            TrafficConfig(prometheus_url=url).validate()
        assert "secret" not in str(refused.value)
    for prices in (PriceTable(between_zones=-1.0), PriceTable(between_zones=999.5)):
        with pytest.raises(ConfigError, match=r"prices\.betweenZones"):
            TrafficConfig(prices=prices).validate()
