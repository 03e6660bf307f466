"""Flows to dependencies, AppGroups and money; series in the shapes that the projects document."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from controller.cli.propose import _placing
from controller.cli.traffic_reading import Traffic
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.graph import build_graph
from controller.cluster.membership import CONSENT_LABEL, Membership
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.prometheus import PrometheusClient, PrometheusError, Series
from controller.scheduler.config import SchedulerConfig
from controller.traffic.config import PricesConfig, TrafficConfig
from controller.traffic.drift import Drift, drift_of, groups_of_workloads, measured_weights
from controller.traffic.flows import Flow, WorkloadId
from controller.traffic.graph import build_traffic_graph
from controller.traffic.money import bill_of
from controller.traffic.prices import PRESETS, PriceTable, per_month, price_table
from controller.traffic.proposals import Placing, Wish, propose
from controller.traffic.reconciler import compare, describe, is_worth_writing
from controller.traffic.sources import SOURCES, NoTrafficError, choose_among, known_window, read_flows
from controller.traffic.workloads import Place, Workloads
from kubekit.errors import ConfigError
from kubekit.wire import Object, ObjectMeta
from tests.unit.controller.objects import AppGroup, service

A, B = ("r1", "z1"), ("r1", "z2")
SHOP = [("frontend", "cart", 5000.0), ("cart", "redis", 4000.0), ("frontend", "catalog", 3000.0)]


def of(name: str, namespace: str = "shop", kind: str = "Deployment") -> WorkloadId:
    return WorkloadId(namespace, name, kind)


def flow(client: str, server: str, rate: float, **fields: Any) -> Flow:
    return Flow(of(client), of(server), rate / 4, rate * 3 / 4, fields.pop("peak", rate), **fields)


def world(names: Iterable[str], places: dict[Place, int] | None = None) -> Workloads:
    found = Workloads()
    for name in names:
        found.replicas[of(name)] = sum((places or {A: 1}).values())
        found.places[of(name)] = Counter(places or {A: 1})
        found.labels[of(name)] = {"app": name}
    return found


def boutique(spec: dict[str, Any], name: str = "boutique", namespace: str = "shop") -> AppGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, AppGroup)


def running(
    name: str, owner: str = "", labels: dict[str, str] | None = None, on: str = "n1", namespace: str = "shop"
) -> PodInfo:
    kind, _, owner_name = owner.partition("/")
    owners = [{"kind": kind, "name": owner_name, "controller": True}] if owner else []
    meta = {"name": name, "namespace": namespace, "labels": labels or {}, "ownerReferences": owners}
    body = {"metadata": meta, "spec": {"nodeName": on}, "status": {"phase": "Running"}}
    return PodReader().read(msgspec.convert(body, GroupPod))


def no_cost(_: Place, __: Place) -> int | None:
    return None


class Answers(PrometheusClient):
    """A Prometheus that knows some series: instant vectors by metric name. Stands in for the server alone."""

    def __init__(self, series: dict[str, list[tuple[dict[str, str], float]]], *, refuse: str = "\0") -> None:
        super().__init__("http://prometheus.invalid")
        self._series, self._refuse = series, refuse
        self.known_s = 1e9
        self.asked: list[str] = []

    async def query(self, expression: str, *, at_s: float | None = None, finite: bool = True) -> list[Series]:
        if self._refuse in expression:
            raise PrometheusError("query processing would load too many samples into memory")
        if expression.startswith("time()"):
            return [Series({}, self.known_s)]
        if expression.startswith("count by (__name__)"):
            return [Series({"__name__": name}, 1.0) for name in self._series]
        factor = 2.0 if expression.startswith("quantile_over_time") else 1.0
        self.asked.append(expression)
        name = next((name for name in sorted(self._series, key=len, reverse=True) if name in expression), "")
        kept = expression.partition("by (")[2].partition(")")[0].split(", ")
        asked = re.findall(rf"{name or '$'}{{([^}}]*)}}", expression) or [""]
        wanted = [dict(re.findall(r'(\w+)="([^"]*)"', matchers)).items() for matchers in asked]
        return [
            Series({k: v for k, v in labels.items() if k in kept}, value * factor)
            for labels, value in self._series.get(name, ())
            if any(matchers <= labels.items() for matchers in wanted)
        ]


async def read_from(prometheus: Answers) -> list[Flow]:
    """What the first source that answers tells of an hour."""
    return list(await read_flows(prometheus, (await choose_among(prometheus))[0], 3600))


def obi(source: str, destination: str, **more: str) -> dict[str, str]:
    ends = {"k8s_src_namespace": "shop", "k8s_src_owner_name": source, "k8s_src_owner_type": "Deployment"}
    return (
        ends
        | {"k8s_dst_namespace": "shop", "k8s_dst_owner_name": destination, "k8s_dst_owner_type": "Deployment"}
        | more
    )


async def test_obi_with_the_direction_selected_tells_client_and_server() -> None:
    series = {
        "obi_network_flow_bytes_total": [
            (obi("frontend", "cart", direction="request", server_port="7070", src_zone="z1", dst_zone="z2"), 100.0),
            (obi("cart", "frontend", direction="response", server_port="7070", src_zone="z2", dst_zone="z1"), 900.0),
        ]
    }
    (found,) = await read_from(Answers(series))
    assert (found.client.name, found.server.name, found.port) == ("frontend", "cart", 7070)
    assert (found.request_bytes_per_s, found.response_bytes_per_s, found.peak_bytes_per_s) == (100, 900, 2000)
    assert (found.client_zone, found.server_zone) == ("z1", "z2")
    with pytest.raises(NoTrafficError):
        await choose_among(Answers({"obi_network_flow_bytes_total": [(obi("frontend", "cart"), 100.0)]}))


@pytest.mark.parametrize("port", ["9" * 5000, "70000", "\u0667\u0660", "1_0", "-1", ""])
async def test_a_port_that_is_none_is_left_out(port: str) -> None:
    series = {"obi_network_flow_bytes_total": [(obi("frontend", "cart", direction="request", server_port=port), 100.0)]}
    (found,) = await read_from(Answers(series))
    assert found.port == 0


async def test_istio_counts_what_the_server_sent_as_response_and_unknown_ends_as_external() -> None:
    ends = {"reporter": "source", "source_workload_namespace": "shop", "source_workload": "frontend"}
    ends |= {"destination_workload_namespace": "shop", "destination_workload": "redis"}
    stranger = ends | {"destination_workload": "unknown", "destination_workload_namespace": "unknown"}
    series = {
        "istio_requests_total": [(ends, 12.5)],
        "istio_request_bytes_sum": [(ends, 10.0)],
        "istio_response_bytes_sum": [(ends, 20.0), (stranger, 7.0)],
        "istio_tcp_received_bytes_total": [(ends, 1.0)],
        "istio_tcp_sent_bytes_total": [(ends, 3.0)],
    }
    known, unknown = sorted(await read_from(Answers(series)), key=lambda f: not f.server.known)
    assert (known.request_bytes_per_s, known.response_bytes_per_s, known.requests_per_s) == (11, 23, 12.5)
    assert build_traffic_graph([known, unknown]).left_out[0].reason == "external"


async def test_addresses_of_the_agents_become_workloads_and_one_that_moved_is_shared_by_time() -> None:
    client = {"client_namespace": "shop", "client_workload": "web", "client_kind": "Deployment", "client_zone": "z1"}

    def whose(address: str, workload: str, zone: str) -> dict[str, str]:
        end = {"server_namespace": "shop", "server_workload": workload, "server_kind": "Deployment"}
        return end | {"server": address, "server_zone": zone}

    def moved(address: str, direction: str) -> dict[str, str]:
        return client | {"server": address, "port": "7070", "direction": direction}

    series = {
        "netaware_traffic_bytes_total": [
            (moved("10.1.0.1", "request"), 100.0),
            (moved("10.1.0.2", "request"), 40.0),
            (moved("outside", "request"), 7.0),
        ],
        "netaware_traffic_server_info": [
            (whose("10.1.0.1", "cart", "z2"), 60.0),
            (whose("10.1.0.2", "cart", "z1"), 45.0),
            (whose("10.1.0.2", "ads", "z1"), 15.0),
        ],
    }
    prometheus = Answers(series)
    source, *_ = await choose_among(prometheus)
    assert source.name == "conntrack"
    found = await read_flows(prometheus, source, 3600)
    assert {(f.server.name, f.server_zone): f.request_bytes_per_s for f in found} == {
        ("cart", "z2"): 100,
        ("cart", "z1"): 30,
        ("ads", "z1"): 10,
        ("", ""): 7,
    }


async def test_a_peak_that_is_too_much_for_prometheus_becomes_the_mean() -> None:
    series = {"obi_network_flow_bytes_total": [(obi("a", "b", direction="request"), 100.0)]}
    prometheus = Answers(series, refuse="quantile_over_time")
    (found,) = await read_from(prometheus)
    assert found.peak_bytes_per_s == 100


async def test_no_source_or_an_unknown_one_is_an_error_that_names_what_was_looked_for() -> None:
    with pytest.raises(NoTrafficError, match=r"obi_network_flow_bytes_total.*install one of the projects"):
        await choose_among(Answers({"up": []}))
    with pytest.raises(NoTrafficError, match="'hubbel' is unknown"):
        await choose_among(Answers({}), "hubbel")


def test_dns_probes_scrapes_self_calls_and_external_ends_are_no_dependency() -> None:
    flows = [flow(*edge) for edge in SHOP]
    flows += [
        flow("frontend", "frontend", 10),
        flow("frontend", "resolver", 10, port=53),
        Flow(of("prometheus", "monitoring"), of("cart"), 50, 50),
        Flow(of("cart"), of("coredns", "kube-system"), 5, 5),
        Flow(of("cart"), WorkloadId(), 500, 500),
        Flow(of("konnectivity", "kube-system"), of("cart"), 5, 5),
        flow("cart", "catalog", 0.5),
    ]
    graph = build_traffic_graph(flows)
    assert {(d.client.name, d.server.name) for d in graph.dependencies} == {(a, b) for a, b, _ in SHOP}
    reasons = {item.reason for item in graph.left_out}
    assert reasons == {"self", "dns", "scrape", "external", "system", "thin"}


def test_flows_over_zones_and_ports_add_up() -> None:
    flows = [
        flow("a", "b", 100, client_zone="z1", server_zone="z1", port=1),
        flow("a", "b", 300, client_zone="z1", server_zone="z2", port=2),
    ]
    (found,) = build_traffic_graph(flows).dependencies
    assert found.bytes_per_s == 400
    assert found.zones == {("z1", "z1"): 100, ("z1", "z2"): 300}


def test_a_proposal_is_an_appgroup_that_the_controller_reads_without_faults() -> None:
    graph = build_traffic_graph(flow(*edge, peak=edge[2] * 1.1) for edge in SHOP)
    (found,) = propose(graph, world(["frontend", "cart", "redis", "catalog"]), [], "shop", lambda _, __: 7)
    spec = boutique(found.manifest["spec"]).spec
    read = build_graph(spec)
    assert read.faults == ()
    edges = {(read.selectors[e.dependant], read.selectors[e.dependency]): e for e in read.edges}
    assert set(edges) == {(a, b) for a, b, _ in SHOP}
    assert edges["frontend", "cart"].min_bandwidth_bps == 44_000
    assert edges["frontend", "cart"].max_network_cost == 7
    assert spec.num_members == 4
    assert {name for _, name, _ in found.patches} == {"frontend", "cart", "redis", "catalog"}


@pytest.mark.parametrize(
    ("peak_bps", "bandwidth"), [(8, 1000), (1001, 1100), (44_000, 44_000), (44_001, 45_000), (9_990_001, 10_000_000)]
)
def test_bandwidth_is_rounded_up_to_two_digits(peak_bps: float, bandwidth: int) -> None:
    graph = build_traffic_graph([flow("a", "b", 1, peak=peak_bps / 8)])
    (found,) = propose(graph, world(["a", "b"]), [], "shop", no_cost)
    assert found.dependencies[0].min_bandwidth_bps == bandwidth


def test_what_a_person_wrote_is_kept_and_only_what_is_missing_is_added() -> None:
    written = {
        "numMembers": 9,
        "topologySortingAlgorithm": "TarjanSort",
        "workloads": [
            {
                "workload": {"kind": "Deployment", "name": "frontend", "selector": "P1"},
                "dependencies": [
                    {
                        "workload": {"kind": "Deployment", "name": "cart", "selector": "P2"},
                        "minBandwidth": "10M",
                        "maxNetworkCost": 3,
                    }
                ],
            },
            {"workload": {"kind": "Deployment", "name": "cart", "selector": "P2"}},
        ],
    }
    group = boutique(written)
    graph = build_traffic_graph(flow(*edge) for edge in SHOP)
    (found,) = propose(graph, world(["frontend", "cart", "redis", "catalog"]), [group], "shop", no_cost)
    spec = found.manifest["spec"]
    assert (found.name, found.exists, spec["numMembers"], spec["topologySortingAlgorithm"]) == (
        "boutique",
        True,
        9,
        "TarjanSort",
    )
    frontend = spec["workloads"][0]
    assert frontend["workload"]["selector"] == "P1"
    assert [(d["workload"]["selector"], d["minBandwidth"]) for d in frontend["dependencies"]] == [
        ("P2", "10M"),
        ("catalog", "24000"),
    ]
    assert measured_weights(group, graph) == {"P1": {"P2": 5000.0}}
    drift = {(d.kind, d.client, d.server) for d in drift_of(group, build_traffic_graph([flow("cart", "frontend", 9)]))}
    assert drift == {("new", "shop/cart", "shop/frontend"), ("gone", "shop/frontend", "shop/cart")}
    (grown,) = drift_of(group, build_traffic_graph([flow("frontend", "cart", 20e6)]))
    assert grown.kind == "grown"
    assert "16 times" in grown.detail


def test_a_proposal_says_who_will_not_follow_it_and_changes_schedulers_only_when_told() -> None:
    graph = build_traffic_graph([flow("frontend", "cart", 5000.0)])
    workloads = world(["frontend", "cart"])
    workloads.schedulers = {of("frontend"): "default-scheduler", of("cart"): "network-aware-scheduler"}
    (found,) = propose(graph, workloads, [], "shop", no_cost)
    assert found.notes == (
        "pods of frontend use default-scheduler, which does not follow it: --scheduler NAME changes their templates",
    )
    assert all("spec" not in patch["spec"]["template"] for _, _, patch in found.patches)
    wish = Wish(spread="zone", scheduler="network-aware-scheduler")
    (found,) = propose(graph, workloads, [], "shop", no_cost, wish=wish)
    assert found.notes == ()
    assert found.manifest["metadata"]["annotations"] == {"netaware.io/spread": "zone"}
    templates = {name: patch["spec"]["template"] for _, name, patch in found.patches}
    assert templates["frontend"]["spec"] == {"schedulerName": "network-aware-scheduler"}
    assert "spec" not in templates["cart"]
    workloads.labels[of("frontend")] = {"netaware.io/placement": "affinity"}
    assert propose(graph, workloads, [], "shop", no_cost)[0].notes == ()


@pytest.mark.parametrize(
    ("label", "placing", "follows"),
    [
        ("", Placing(), False),
        ("", Placing("affinity"), True),
        ("extender", Placing("affinity"), False),
        ("affinity", Placing(), True),
        ("unheard-of", Placing(), False),
        ("", Placing(scheduler_names=("mine", "default-scheduler")), True),
        ("", Placing(scheduler_names=()), True),
    ],
)
def test_the_default_schedulers_pods_follow_where_pod_namespace_or_configuration_hands_the_plan_to_them(
    label: str, placing: Placing, follows: bool
) -> None:
    workloads = world(["frontend", "cart"])
    workloads.schedulers = dict.fromkeys((of("frontend"), of("cart")), "default-scheduler")
    for end in (of("frontend"), of("cart")):
        workloads.labels[end] = {"netaware.io/placement": label} if label else {}
    graph = build_traffic_graph([flow("frontend", "cart", 5000.0)])
    (found,) = propose(graph, workloads, [], "shop", no_cost, placing=placing)
    assert any("does not follow" in note for note in found.notes) is not follows


def test_how_a_namespaces_pods_hear_of_their_plan_is_told_by_its_label_before_the_configuration() -> None:
    def told(*namespaces: str, **scheduler: Any) -> Placing:
        labels = {"netaware.io/placement": "affinity"}
        known = tuple(Object(metadata=ObjectMeta(name=name, labels=labels)) for name in namespaces)
        snapshot = ClusterSnapshot(now_s=0, namespaces=known, scheduler=SchedulerConfig(**scheduler))
        return _placing(cast("Traffic", SimpleNamespace(snapshot=snapshot)), "shop")

    assert told("other") == Placing()
    assert told("other", "shop").placement == "affinity"
    assert told("shop", placement="extender").placement == "affinity"
    assert told(placement="affinity", scheduler_names=("a",)) == Placing("affinity", ("a",))


def test_groups_part_where_traffic_is_thin_and_a_server_of_everybody_joins_nobody() -> None:
    flows = [flow(f"web{i}", f"db{i}", 10_000) for i in range(8)]
    flows += [flow(f"web{i}", "logs", 600 + i) for i in range(8)]
    flows += [flow(f"db{i}", "logs", 600) for i in range(8)]
    flows.append(flow("web0", "web1", 50))
    names = {end.name for f in flows for end in (f.client, f.server)}
    found = propose(build_traffic_graph(flows), world(names), [], "shop", no_cost)
    assert len(found) == 8
    sizes = sorted(len(p.manifest["spec"]["workloads"]) for p in found)
    assert sizes == [2] * 7 + [3]
    assert len({p.name for p in found}) == 8


def test_cycles_external_ends_and_daemonsets_do_no_harm() -> None:
    flows = [flow("a", "b", 100), flow("b", "a", 100), Flow(of("a"), of("proxy", kind="DaemonSet"), 50, 50)]
    workloads = world(["a", "b"])
    workloads.replicas[of("proxy", kind="DaemonSet")] = 3
    (found,) = propose(build_traffic_graph(flows), workloads, [], "shop", no_cost)
    assert {(d.client, d.server) for d in found.dependencies} == {("shop/a", "shop/b"), ("shop/b", "shop/a")}
    assert found.external == ("shop/proxy",)


def test_pods_lead_to_their_workloads_and_ends_that_are_gone_are_told() -> None:
    web = running("web-5d-x", "ReplicaSet/web-5d", {"app": "web", "pod-template-hash": "5d"})
    db, lone = running("db-0", "StatefulSet/db", {"app": "db"}, "n2"), running("lone")
    found = Workloads.from_objects([web, db, lone], {"n1": A, "n2": B}, [service("db", {"app": "db"})])
    assert {workload.kind for workload in found.replicas} == {"Deployment", "StatefulSet", "Pod"}
    assert found.services == {("shop", "db"): of("db", kind="StatefulSet")}
    flows, unknown = found.resolve(
        [
            Flow(WorkloadId("shop", "web", "ReplicaSet"), WorkloadId("shop", "db"), 1, 1),
            Flow(of("gone"), of("web"), 7, 0),
        ]
    )
    assert [(f.client.kind, f.server.kind) for f in flows] == [("Deployment", "StatefulSet")]
    assert unknown == {"shop/gone": 7}


def test_a_bill_is_bytes_times_price_by_where_they_go() -> None:
    prices = PriceTable(between_zones=0.02, between_regions=0.05, pairs={"z1>z2": 0.01})
    measured = flow("a", "b", 1000, client_zone="z1", server_zone="z2")
    workloads = world(["a", "b", "c"], {A: 1, B: 1})
    bill = bill_of(build_traffic_graph([measured]), workloads, prices, {"shop/a": "shop/boutique"})
    assert bill.month == pytest.approx(1000 * 730 * 3600 / 1e9 * 0.01)
    assert bill.groups == {"shop/boutique": bill.month}
    assert bill.crossing_bytes_per_s == 1000
    shared = bill_of(build_traffic_graph([flow("a", "c", 1000)]), workloads, prices)
    assert shared.crossing_bytes_per_s == pytest.approx(500)
    assert not shared.dependencies[0].measured
    assert shared.month == pytest.approx(per_month(250, 0.01) + per_month(250, 0.02))


def test_prices_are_checked_and_presets_say_where_they_come_from() -> None:
    assert price_table("") is None
    with pytest.raises(ConfigError, match="'oracle' is no preset"):
        price_table("oracle")
    with pytest.raises(ConfigError, match="betweenZones"):
        price_table("", PriceTable(between_zones=-1))
    with pytest.raises(ConfigError, match="0 to 999"):
        price_table("", PriceTable(same_zone=999.5))
    with pytest.raises(ConfigError, match="0 to 999"):
        PricesConfig(same_zone=999.5).validate()
    assert all("2026" in preset.source for preset in PRESETS.values())


def test_ten_thousand_edges_between_a_thousand_services_are_covered() -> None:
    flows = [flow(f"s{i % 1_000}", f"s{(i * 7 + i // 1_000 + 1) % 1_000}", 1000.0 + i % 97) for i in range(10_000)]
    graph = build_traffic_graph(flows)
    assert math.isclose(
        graph.bytes_per_s + sum(o.bytes_per_s for o in graph.left_out), sum(f.bytes_per_s for f in flows)
    )
    names = {e.name for d in graph.dependencies for e in (d.client, d.server)}
    found = propose(graph, world(names), [], "shop", no_cost)
    assert sum(d.bytes_per_s for p in found for d in p.dependencies) >= 0.95 * graph.bytes_per_s


def test_weights_are_written_when_traffic_goes_another_way_or_is_twice_as_much() -> None:
    before = {"P1": {"P2": 80.0, "P3": 20.0}}
    assert not is_worth_writing(before, {"P1": {"P2": 120.0, "P3": 25.0}})
    assert not is_worth_writing(before, {})
    assert is_worth_writing(before, {"P1": {"P2": 70.0, "P3": 31.0}})
    assert is_worth_writing(before, {"P1": {"P2": 160.0, "P3": 40.0}})
    assert is_worth_writing(before, {"P1": {"P2": 80.0}, "P2": {"P3": 20.0}})
    assert is_worth_writing({}, before)
    assert is_worth_writing({"P1": {"P2": float("inf")}}, before)


def declaring(needs: dict[str, str], **elsewhere: str) -> AppGroup:
    """An AppGroup shop/boutique: workload -> what it calls, with the namespaces of those that are not in shop."""

    def reference(name: str) -> dict[str, str]:
        more = {"namespace": elsewhere[name]} if name in elsewhere else {}
        return {"kind": "Deployment", "name": name, "selector": name.upper(), **more}

    workloads = [
        {"workload": reference(name), "dependencies": [{"workload": reference(d)} for d in below.split()]}
        for name, below in needs.items()
    ]
    return boutique({"workloads": workloads})


def members(groups: Iterable[AppGroup], admitted: dict[str, str] | None = None) -> Membership:
    """Whose pods are whose; ``admitted`` is namespace -> those that it lets in."""
    labels = {name: {CONSENT_LABEL: others} for name, others in (admitted or {}).items()}
    namespaces = [Object(ObjectMeta(name=name, labels=labels.get(name))) for name in ("shop", "other")]
    return Membership.from_objects(groups, namespaces, NetworkOverheadArgs())


def written(dependency: dict[str, str]) -> AppGroup:
    """An AppGroup shop/boutique of frontend and cart, where frontend needs one workload of kind Deployment."""
    names = [{"kind": "Deployment", "name": name, "selector": name[0].upper()} for name in ("frontend", "cart")]
    needs = [{"workload": {"kind": "Deployment", **dependency}}]
    return boutique({"workloads": [{"workload": names[0], "dependencies": needs}, {"workload": names[1]}]})


def test_a_dependency_counts_as_declared_where_the_scheduler_finds_its_workload() -> None:
    graph = build_traffic_graph([flow("frontend", "cart", 900.0)])
    for found, drift in (
        ({"name": "cart"}, []),
        ({"name": "cart", "selector": "C"}, []),
        ({"name": "old-name", "selector": "C"}, []),
        ({"name": "cart", "selector": "OLD"}, ["new"]),
        ({"name": "cart", "namespace": "other"}, []),
    ):
        group = written(found)
        assert len(build_graph(group.spec).edges) == (0 if drift else 1)
        assert [one.kind for one in drift_of(group, graph)] == drift
        (proposal,) = propose(graph, world(["frontend", "cart"]), [group], "shop", no_cost)
        assert [d.written for d in proposal.dependencies] == [not drift]


def test_a_dependency_by_name_stands_for_no_other_workload() -> None:
    graph = build_traffic_graph([flow("frontend", "cart", 900.0), flow("frontend", "redis", 800.0)])
    (proposal,) = propose(graph, world(["frontend", "cart", "redis"]), [written({"name": "cart"})], "shop", no_cost)
    assert {(d.server, d.written) for d in proposal.dependencies} == {("shop/cart", True), ("shop/redis", False)}
    frontend = proposal.manifest["spec"]["workloads"][0]
    assert [d["workload"]["name"] for d in frontend["dependencies"]] == ["cart", "redis"]


def test_workloads_of_another_namespace_are_neither_drift_nor_told_of() -> None:
    group = declaring({"frontend": "cart db", "cart": "", "db": "store", "store": ""}, db="data", store="data")
    data = Flow(of("db", "data"), of("store", "data"), 500, 500)
    graph = build_traffic_graph([flow("frontend", "cart", 100), data])
    assert drift_of(group, graph) == []
    assert measured_weights(group, graph) == {"FRONTEND": {"CART": 100}}
    foreign = declaring({"cart": ""}, cart="other")
    alone = {"workload": {"kind": "Deployment", "name": "cart", "selector": "C"}}
    mine = boutique({"workloads": [alone]}, "mine", "other")
    for groups in ([foreign, mine], [mine, foreign]):
        assert groups_of_workloads(members(groups)) == {"other/cart": "other/mine"}
    assert groups_of_workloads(members([foreign])) == {}, "whoever may write an AppGroup must not read what others pay"
    assert groups_of_workloads(members([foreign], {"other": "shop"})) == {"other/cart": "shop/boutique"}


def test_bytes_without_zones_are_shared_out_beside_those_that_have_them() -> None:
    flows = [flow("a", "b", 300, client_zone="z1", server_zone="z2"), flow("a", "b", 700)]
    bill = bill_of(build_traffic_graph(flows), world(["a", "b"], {A: 1, B: 1}), PriceTable(between_zones=0.02))
    assert bill.crossing_bytes_per_s == pytest.approx(300 + 350)
    assert bill.month == pytest.approx(per_month(650, 0.02))
    assert not bill.dependencies[0].measured


def test_a_price_that_is_left_out_is_that_of_the_nearer_reach_and_never_free() -> None:
    far = ("r2", "z9")
    assert PriceTable(between_zones=0.02).per_gb(A, far) == 0.02
    assert PriceTable(same_zone=0.01).per_gb(A, B) == 0.01
    assert PriceTable(between_zones=0.02, between_regions=0.0).per_gb(A, far) == 0
    table = PricesConfig(between_zones=0.03).table()
    assert table is not None
    assert table.per_gb(A, far) == 0.03


def test_a_zone_that_no_workload_is_in_any_more_keeps_its_region() -> None:
    left = flow("a", "b", 1000, client_zone="z1", server_zone="z2")
    workloads = Workloads.from_objects([running("a")], {"n1": A, "n2": B})
    bill = bill_of(build_traffic_graph([left]), workloads, PriceTable(between_zones=0.01, between_regions=0.05))
    assert [pair.reach for pair in bill.zone_pairs] == ["zones"]


def test_two_workloads_of_one_name_are_told_apart_by_kind() -> None:
    workloads = world(["cache", "web"])
    workloads.replicas[of("cache", kind="StatefulSet")] = 1
    flows, _ = workloads.resolve([Flow(of("web"), of("cache", kind="StatefulSet"), 1, 1)])
    assert flows[0].server.kind == "StatefulSet"


def test_all_groups_are_held_against_traffic_at_once_and_each_by_its_own() -> None:
    group = declaring({"frontend": "cart", "cart": ""})
    other = boutique({}, "empty", "else")
    groups, workloads = [group, other], world(["frontend", "cart", "redis", "catalog"])
    seen = compare([flow(*edge) for edge in SHOP], workloads, groups, PriceTable(), members(groups))
    assert seen.weights == {"shop/boutique": {"FRONTEND": {"CART": 5000.0}}, "else/empty": {}}
    assert seen.drift == {"shop/boutique": [], "else/empty": []}
    assert seen.bill.bytes_per_s == 12_000


async def test_a_window_is_as_long_as_prometheus_knows_the_source() -> None:
    prometheus = Answers({"obi_network_flow_bytes_total": [(obi("a", "b", direction="request"), 100.0)]})
    source, *_ = await choose_among(prometheus)
    assert await known_window(prometheus, source, 3600) == 3600
    prometheus.known_s = 3590.0
    assert await known_window(prometheus, source, 3600) == 3600
    prometheus.known_s = 1800.0
    assert await known_window(prometheus, source, 3600) == 1830
    prometheus.known_s = 300.0
    assert await known_window(prometheus, source, 90 * 86400) == pytest.approx(300, abs=15)
    prometheus.known_s = 0.0
    assert await known_window(prometheus, source, 3600) == 60


async def test_no_window_is_shorter_than_a_rate_of_its_source_needs() -> None:
    prometheus = Answers({"netaware_traffic_bytes_total": []})
    agents = next(source for source in SOURCES if source.name == "conntrack")
    assert await known_window(prometheus, agents, 60) == 100
    prometheus.known_s = 0.0
    assert await known_window(prometheus, agents, 3600) == 100


@pytest.mark.parametrize(("round_s", "least_s"), [(0.0, 100), (0.15, 100), (0.6, 280), (1e9, 1240)])
async def test_rates_of_agents_reach_over_two_readings_of_the_slowest(round_s: float, least_s: int) -> None:
    """A round of 0.6 s of a core comes every 120 s: no range of 100 s has two of them, and that node would move nothing."""
    moved = {"client_namespace": "shop", "client_workload": "web", "server": "10.1.0.1", "direction": "request"}
    series: dict[str, list[tuple[dict[str, str], float]]] = {
        "netaware_traffic_bytes_total": [(moved, 100.0)],
        "netaware_traffic_round_seconds": [({}, round_s)],
    }
    prometheus = Answers(series)
    agents = next(source for source in SOURCES if source.name == "conntrack")
    assert await known_window(prometheus, agents, 60) == least_s
    await read_flows(prometheus, agents, 3600)
    peaks = [expression for expression in prometheus.asked if expression.startswith("quantile_over_time")]
    assert peaks
    assert all(f"[{max(least_s, 120)}s]" in expression for expression in peaks)


def test_a_drift_is_told_without_rates_and_not_at_any_length() -> None:
    drift = [Drift("new", f"shop/a{i}", "shop/b", 1000.0 + i, "") for i in range(5)]
    reason, message = describe(drift)
    assert reason == "Drift"
    assert message.startswith("a0 -> b is not declared; a1 -> b")
    assert message.endswith("and 2 more: see kubectl netaware propose")
    assert not any(str(1000 + i) in message for i in range(5))
    assert describe([])[0] == "AsDescribed"


def test_settings_of_traffic_name_what_is_wrong() -> None:
    TrafficConfig().validate()
    assert TrafficConfig().prices.table() is None
    assert PricesConfig(preset="gcp").table() == PRESETS["gcp"]
    with pytest.raises(ConfigError, match="prometheusUrl"):
        TrafficConfig(prometheus_url="prometheus:9090").validate()
    with pytest.raises(ConfigError, match="'hubbel' is unknown"):
        TrafficConfig(source="hubbel").validate()
    with pytest.raises(ConfigError, match="betweenZones"):
        TrafficConfig(prices=PricesConfig(between_zones=-1.0)).validate()
