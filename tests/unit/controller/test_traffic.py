"""From flows to dependencies, AppGroups, drift, weights and prices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import AppGroup, AppGroupStatus, WeightInfo
from controller.cluster.dependency_graph import build_graph
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.prometheus import PrometheusError
from controller.traffic.config import TrafficConfig
from controller.traffic.drift import Comparison, compare_groups
from controller.traffic.graph import Flow, WorkloadId, build_traffic_graph
from controller.traffic.prices import PriceTable
from controller.traffic.proposals import Proposal, propose
from controller.traffic.reconciler import AS_DESCRIBED, TrafficController, describe_drifts, must_write_weights
from controller.traffic.workloads import Workloads
from kubekit.client import Client
from kubekit.conditions import make_condition
from kubekit.errors import ConfigError
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import make_weight_body
from tests.unit.controller import scheduler_objects

A, B, FAR = Location("r1", "z1"), Location("r1", "z2"), Location("r2", "z9")
COSTS = CostTable(msgspec.convert(make_weight_body({("z1", "z2"): 7}), WeightInfo))
SHOP = [("frontend", "cart", 5000.0), ("cart", "redis", 4000.0), ("frontend", "catalog", 3000.0)]
MONTH_S = 730 * 3600
ACROSS: dict[str, Any] = {"client_zone": "z1", "server_zone": "z2"}


def workload(name: str, namespace: str = "shop", kind: str = "Deployment") -> WorkloadId:
    return WorkloadId(namespace, name, kind)


def flow(client: str, server: str, rate: float, **fields: Any) -> Flow:
    return Flow(workload(client), workload(server), rate, fields.pop("peak", rate), **fields)


def workloads_of(flows: Iterable[Flow], *locations: Location) -> Workloads:
    """The workloads of flows, with a replica at each location."""
    ends = {end for f in flows for end in (f.client, f.server)}
    location_counts = {end: Counter(locations) for end in ends}
    return Workloads(Counter(dict.fromkeys(ends, len(locations))), location_counts, {}, {"z1": "r1", "z2": "r1"})


def proposals_of(flows: Iterable[Flow], *groups: AppGroup) -> list[Proposal]:
    """AppGroups for the namespace shop; each workload of the flows has a replica in zone z1."""
    flows = list(flows)
    return propose(build_traffic_graph(flows, "netaware-system"), workloads_of(flows, A), groups, "shop", COSTS)


def compare(
    flows: Sequence[Flow],
    *groups: AppGroup,
    prices: PriceTable | None = None,
    admitted: dict[str, str] | None = None,
) -> Comparison:
    """Flows between workloads with a replica in each zone; ``admitted`` is namespace -> namespaces whose groups may have its pods."""
    workloads = workloads_of(flows, A, B)
    labels = {name: {"netaware.io/appgroups-from": others} for name, others in (admitted or {}).items()}
    namespaces = tuple(Object(ObjectMeta(name=name, labels=labels.get(name))) for name in ("shop", "other"))
    membership = ClusterSnapshot(now_s=0, groups=groups, namespaces=namespaces).build_membership()
    return compare_groups(flows, workloads, groups, prices, membership=membership, netaware_namespace="netaware-system")


def app_group(spec: dict[str, Any], name: str = "boutique", namespace: str = "shop") -> AppGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, AppGroup)


def pod_info(name: str, owner: str = "", on: str = "n1") -> PodInfo:
    kind, _, owner_name = owner.partition("/")
    owners = [{"kind": kind, "name": owner_name, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "shop", "labels": {"pod-template-hash": "5d"}, "ownerReferences": owners}
    body = {"metadata": meta, "spec": {"nodeName": on}, "status": {"phase": "Running"}}
    return PodReader().read(msgspec.convert(body, Pod))


def test_dns_probes_scrapes_self_calls_and_external_ends_are_no_dependency() -> None:
    flows = [flow(*edge) for edge in SHOP]
    flows += [
        flow("frontend", "frontend", 10),
        flow("frontend", "resolver", 10, port=53),
        Flow(workload("prometheus", "monitoring"), workload("cart"), 100),
        Flow(workload("cart"), workload("coredns", "kube-system"), 10),
        Flow(workload("cart"), WorkloadId(), 1000),
        Flow(workload("konnectivity", "kube-system"), workload("cart"), 10),
        Flow(workload("cart"), workload("netaware-controller", "placement"), 10),
        flow("cart", "catalog", 0.5),
    ]
    graph = build_traffic_graph(flows, "placement")
    assert {(d.client.name, d.server.name) for d in graph.dependencies} == {(a, b) for a, b, _ in SHOP}
    reasons = {item.reason for item in graph.omitted}
    assert reasons == {"self", "dns", "scrape", "external", "system", "negligible"}
    omitted_bytes_per_s = sum(item.bytes_per_s for item in graph.omitted)
    assert graph.bytes_per_s + omitted_bytes_per_s == pytest.approx(sum(f.bytes_per_s for f in flows))


def test_a_proposal_is_an_appgroup_that_the_controller_reads_without_faults() -> None:
    (proposal,) = proposals_of(flow(*edge, peak=edge[2] * 1.1, **ACROSS) for edge in SHOP)
    spec = app_group(proposal.manifest["spec"]).spec
    graph = build_graph(spec)
    assert graph.faults == ()
    edges = {(graph.selectors[e.caller], graph.selectors[e.callee]): e for e in graph.edges}
    assert set(edges) == {(a, b) for a, b, _ in SHOP}
    assert edges["frontend", "cart"].min_bandwidth_bps == 44_000
    assert edges["frontend", "cart"].max_network_cost == 7
    assert spec.num_members == 4
    assert {name for _, name, _ in proposal.patches} == {"frontend", "cart", "redis", "catalog"}


@pytest.mark.parametrize(
    ("peak_bps", "bandwidth"), [(8, 1000), (1001, 1100), (44_000, 44_000), (44_001, 45_000), (9_990_001, 10_000_000)]
)
def test_bandwidth_is_rounded_up_to_two_digits(peak_bps: float, bandwidth: int) -> None:
    (proposal,) = proposals_of([flow("a", "b", 1, peak=peak_bps / 8)])
    assert proposal.dependencies[0].min_bandwidth_bps == bandwidth


def reference(name: str, selector: str = "", **more: str) -> dict[str, str]:
    return {"kind": "Deployment", "name": name, "selector": selector, **more}


def test_an_existing_appgroup_keeps_its_entries_and_missing_ones_are_added() -> None:
    dependencies = [{"workload": reference("cart", "P2"), "minBandwidth": "10M", "maxNetworkCost": 3}]
    workloads = [
        {"workload": reference("frontend", "P1"), "dependencies": dependencies},
        {"workload": reference("cart", "P2")},
    ]
    group = app_group({"numMembers": 9, "topologySortingAlgorithm": "TarjanSort", "workloads": workloads})
    (proposal,) = proposals_of([flow(*edge) for edge in SHOP], group)
    spec = proposal.manifest["spec"]
    assert (proposal.name, proposal.exists, spec["numMembers"]) == ("boutique", True, 9)
    assert spec["topologySortingAlgorithm"] == "TarjanSort"
    frontend = spec["workloads"][0]
    assert frontend["workload"]["selector"] == "P1"
    assert [(d["workload"]["selector"], d["minBandwidth"]) for d in frontend["dependencies"]] == [
        ("P2", "10M"),
        ("catalog", "24000"),
    ]
    assert compare([flow(*edge) for edge in SHOP], group).weights_by_group["shop/boutique"] == {"P1": {"P2": 5000.0}}
    drift = compare([flow("cart", "frontend", 9)], group).drift_by_group["shop/boutique"]
    assert {(d.kind, d.client, d.server) for d in drift} == {
        ("new", "shop/cart", "shop/frontend"),
        ("gone", "shop/frontend", "shop/cart"),
    }
    (grown,) = compare([flow("frontend", "cart", 20e6)], group).drift_by_group["shop/boutique"]
    assert grown.kind == "grown"
    assert "16 times" in grown.detail


def test_entries_of_one_name_are_kept_and_matched_by_kind() -> None:
    entries = [
        {"workload": reference("web", "W1")},
        {"workload": {"kind": "StatefulSet", "name": "web", "selector": "W2"}},
        {"workload": reference("web", "W3", namespace="other")},
    ]
    group = app_group({"numMembers": 3, "workloads": entries})
    stateful = workload("web", kind="StatefulSet")
    db, stateful_db = workload("db"), workload("db", kind="StatefulSet")
    flows = [flow("web", "db", 9.0), Flow(stateful, db, 9.0), Flow(stateful, stateful_db, 8.0)]
    (proposal,) = proposals_of(flows, group)
    by_selector = {item["workload"]["selector"]: item for item in proposal.manifest["spec"]["workloads"]}
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
        return app_group({"workloads": [{"workload": reference(name, name)} for name in names]}, group)

    flows = [flow("web", "cart", 90.0), flow("pay", "db", 80.0), flow("cart", "pay", 1000.0), flow("new", "pay", 5.0)]
    proposals = {p.name: p for p in proposals_of(flows, listing("a", "web", "cart"), listing("b", "pay", "db"))}
    members = {name: [w["workload"]["name"] for w in p.manifest["spec"]["workloads"]] for name, p in proposals.items()}
    assert members == {"a": ["web", "cart"], "b": ["pay", "db", "new"]}
    assert {name: {workload for _, workload, _ in p.patches} for name, p in proposals.items()} == {
        "a": {"web", "cart"},
        "b": {"pay", "db", "new"},
    }
    assert {name: p.external for name, p in proposals.items()} == {"a": ("shop/pay",), "b": ("shop/cart",)}


def test_groups_split_at_negligible_traffic_and_a_hub_joins_no_groups() -> None:
    flows = [flow(f"web{i}", f"db{i}", 10_000) for i in range(8)]
    flows += [flow(f"web{i}", "logs", 600 + i) for i in range(8)]
    flows += [flow(f"db{i}", "logs", 600) for i in range(8)]
    flows.append(flow("web0", "web1", 50))
    proposals = proposals_of(flows)
    assert len(proposals) == 8
    sizes = sorted(len(p.manifest["spec"]["workloads"]) for p in proposals)
    assert sizes == [2] * 7 + [3]
    assert len({p.name for p in proposals}) == 8
    assert sum("shop/logs" in p.external for p in proposals) == 7, "all groups but the hub's exchange traffic with it"


def test_cycles_external_ends_and_daemonsets_are_no_errors() -> None:
    flows = [flow("a", "b", 100), flow("b", "a", 100), Flow(workload("a"), workload("proxy", kind="DaemonSet"), 100)]
    (proposal,) = proposals_of(flows)
    assert {(d.client, d.server) for d in proposal.dependencies} == {("shop/a", "shop/b"), ("shop/b", "shop/a")}
    assert proposal.external == ("shop/proxy",)


def test_pods_resolve_to_workloads_and_missing_ends_are_reported() -> None:
    pods = [pod_info("web-5d-x", "ReplicaSet/web-5d"), pod_info("db-0", "StatefulSet/db", "n2"), pod_info("lone")]
    workloads = Workloads.from_objects(pods, {"n1": A, "n2": B, "n3": FAR})
    assert workloads.location_of("z9") == FAR, "a zone without pods keeps its region"
    assert {w.kind for w in workloads.replica_counts} == {"Deployment", "StatefulSet", "Pod"}
    workloads.replica_counts[workload("db", kind="Job")] = 1
    calls = [Flow(WorkloadId("shop", "web"), workload("db", kind="StatefulSet"), 2), flow("gone", "web", 7)]
    flows, missing = workloads.resolve(calls)
    assert [(f.client.kind, f.server.kind) for f in flows] == [("Deployment", "StatefulSet")]
    assert missing == {"shop/gone": 7}


def test_a_bill_is_bytes_times_price_by_distance() -> None:
    prices = PriceTable(between_zones=0.02)
    group = app_group({"workloads": [{"workload": reference("a", "A")}]})
    bill = compare([flow("a", "b", 1000, **ACROSS)], group, prices=prices).bill
    assert bill.monthly_price == pytest.approx(1000 * MONTH_S / 1e9 * 0.02)
    assert bill.monthly_price_by_group == {"shop/boutique": bill.monthly_price}
    assert bill.crossing_bytes_per_s == 1000
    assert bill.dependencies[0].has_all_zones
    flows = [flow("a", "b", 300, **ACROSS), flow("a", "b", 700)]
    spread = compare(flows, prices=prices).bill
    assert spread.crossing_bytes_per_s == pytest.approx(300 + 350), "bytes without zones are spread over replicas"
    assert spread.monthly_price == pytest.approx(650 * MONTH_S / 1e9 * 0.02)
    assert not spread.dependencies[0].has_all_zones


def test_a_missing_price_is_that_of_the_next_shorter_distance() -> None:
    assert PriceTable(between_zones=0.02).price_per_gb(A, FAR) == 0.02
    assert PriceTable(same_zone=0.01).price_per_gb(A, B) == 0.01
    assert PriceTable(between_zones=0.02, between_regions=0.0).price_per_gb(A, FAR) == 0


def test_weights_are_written_after_traffic_shifts_or_doubles() -> None:
    before = {("P1", "P2"): 80.0, ("P1", "P3"): 20.0}
    assert not must_write_weights(before, {"P1": {"P2": 120.0, "P3": 25.0}})
    assert not must_write_weights(before, {})
    assert must_write_weights(before, {"P1": {"P2": 70.0, "P3": 31.0}})
    assert must_write_weights(before, {"P1": {"P2": 160.0, "P3": 40.0}})
    assert must_write_weights(before, {"P1": {"P2": 80.0}, "P2": {"P3": 20.0}})
    assert must_write_weights({}, {"P1": {"P2": 80.0}})


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
    group = app_group({"workloads": [frontend, {"workload": reference("cart", "C")}]})
    assert len(build_graph(group.spec).edges) == declared
    flows = [flow("frontend", "cart", 900.0)]
    assert [d.kind for d in compare(flows, group).drift_by_group["shop/boutique"]] == ([] if declared else ["new"])
    (proposal,) = proposals_of([*flows, flow("frontend", "redis", 800.0)], group)
    assert {(d.server, d.is_user_defined) for d in proposal.dependencies} == {
        ("shop/cart", declared),
        ("shop/redis", False),
    }


def test_workloads_of_other_namespaces_are_neither_compared_nor_weighed() -> None:
    there = {"namespace": "data"}
    dependencies = [{"workload": reference("cart", "CART")}, {"workload": reference("db", "DB", **there)}]
    store = [{"workload": reference("store", "STORE", **there)}]
    workloads = [
        {"workload": reference("frontend", "FRONTEND"), "dependencies": dependencies},
        {"workload": reference("cart", "CART")},
        {"workload": reference("db", "DB", **there), "dependencies": store},
        {"workload": reference("store", "STORE", **there)},
    ]
    flows = [flow("frontend", "cart", 100), Flow(workload("db", "data"), workload("store", "data"), 1000)]
    flows += [Flow(workload("frontend"), workload("db", "data"), 100), flow("frontend", "no-member", 100)]
    empty = app_group({}, "empty", "else")
    comparison = compare(flows, app_group({"workloads": workloads}), empty)
    assert comparison.drift_by_group == {"shop/boutique": [], "else/empty": []}
    assert comparison.weights_by_group == {"shop/boutique": {"FRONTEND": {"CART": 100}}, "else/empty": {}}
    assert comparison.bill.bytes_per_s == 1300


def test_prices_belong_to_groups_that_may_have_the_workloads_pods() -> None:
    """The author of an AppGroup must not see the price of workloads that are not in it."""
    foreign = app_group({"workloads": [{"workload": reference("cart", "C", namespace="other")}]})
    own = app_group({"workloads": [{"workload": reference("cart", "C")}]}, "own", "other")
    flows = [Flow(workload("cart", "other"), workload("db", "other"), 9)]

    def billed_group(*groups: AppGroup, admitted: dict[str, str] | None = None) -> str:
        return str(compare(flows, *groups, admitted=admitted).bill.dependencies[0].group)

    assert billed_group(foreign, own) == billed_group(own, foreign) == "other/own"
    assert billed_group(foreign) == ""
    assert billed_group(foreign, admitted={"other": "shop"}) == "shop/boutique"


def test_drift_messages_have_no_rates_and_a_limited_length() -> None:
    names = [f"a{i}" for i in range(5)]
    group = app_group({"workloads": [{"workload": reference(name, name)} for name in (*names, "b")]})
    drift = compare([flow(name, "b", 1000.0) for name in names], group).drift_by_group["shop/boutique"]
    reason, message, holds = describe_drifts(drift)
    assert reason == "Drift"
    assert message.startswith("a0 -> b is not declared; a1 -> b")
    assert message.endswith("and 2 more: see kubectl netaware propose")
    assert not holds
    assert describe_drifts([]).reason == "AsDescribed"


@pytest.mark.looptime
async def test_in_each_leadership_a_condition_becomes_unknown_if_traffic_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise PrometheusError("no answer")

    monkeypatch.setattr("controller.traffic.reconciler.read_flows", fail)
    before = make_condition(AS_DESCRIBED, holds=True, reason=AS_DESCRIBED, message="", generation=1)
    groups = {
        "shop/g": scheduler_objects.make_app_group({}, "shop", name="g", status=AppGroupStatus(conditions=[before]))
    }
    config = TrafficConfig(prometheus_url="http://prometheus:9090", interval_s=10)
    controller = TrafficController(
        cast("Client", None),
        cast("ClusterCache", SimpleNamespace(app_groups=groups)),
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
        assert [condition.status for condition in controller.conditions("shop/g")] == ["Unknown"]
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
