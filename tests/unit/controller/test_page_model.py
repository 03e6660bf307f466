"""What the browser gets: columns in the order of the zones, and differences that, applied, give the new page."""

from __future__ import annotations

import copy
import gzip
import re
from typing import Any

import msgspec
import pytest

from controller.diagnosis.snapshot import ClusterSnapshot, Readings
from controller.page.config import PageConfig
from controller.page.document import document, security_policy
from controller.page.model import CELL, ROWS, PageData, difference, encode, plain, row_name, says_something
from controller.traffic.prices import PriceTable, per_month
from controller.views.overview import build
from kubekit.errors import ConfigError
from tests.unit.controller.made_up import make_nodes, make_snapshot


def page(snapshot: ClusterSnapshot, version: int = 1) -> PageData:
    return encode(build(snapshot), version)


def apply(held: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What the browser does (app.js, function change)."""
    assert told["since"] == held["version"]
    now = copy.deepcopy(held)
    for name in ("version", "at", "prometheus", "network", "agents", "bandwidth", "problems", "matrix"):
        if name in told:
            now[name] = told[name]
    for name, rows in told.get("rows", {}).items():
        fields = ROWS[{"agentRows": "agent_rows", "nodeRows": "node_rows", "podRows": "pod_rows"}.get(name, name)]
        held_rows = {row_name(row, fields): row for row in now[name]}
        held_rows |= {row_name(row, fields): row for row in rows.get("changed", ())}
        now[name] = [held_rows[key] for key in rows.get("order", list(held_rows))]
    for index, *fields in told.get("cells", ()):
        for name, value in zip(CELL, fields, strict=True):
            now["matrix"][name][index] = value
    return now


def as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def test_the_matrix_is_in_the_order_of_the_zones_origin_by_origin_without_the_diagonal() -> None:
    snapshot = make_snapshot(5)
    overview = build(snapshot)
    found = plain(encode(overview, 1))
    names = [zone["name"] for zone in found["network"]["zones"]]
    assert {len(column) for column in found["matrix"].values()} == {5 * 4}
    by_pair = {(p.origin, p.destination): p.cost for p in overview.network.pairs}
    expected = [by_pair[a, b] for a in names for b in names if a != b]
    assert found["matrix"]["cost"] == expected
    assert "pairs" not in found["network"]


def test_traffic_between_zones_and_its_price_are_cells_and_a_pair_without_series_has_none() -> None:
    bare = make_snapshot(3)
    zones = [zone.name for zone in build(bare).network.zones]
    assert set(plain(encode(build(bare), 1))["matrix"]["traffic"]) == {None}
    readings = Readings(source="http://p", traffic={(zones[0], zones[1]): 8e6, (zones[0], zones[0]): 99e6})
    prices = PriceTable(currency="EUR", between_zones=0.01, between_regions=0.05)
    found = plain(encode(build(msgspec.structs.replace(bare, readings=readings, prices=prices)), 1))
    assert found["matrix"]["traffic"] == [8_000_000, 0, 0, 0, 0, 0]
    region = {zone["name"]: zone["region"] for zone in found["network"]["zones"]}
    price = 0.01 if region[zones[0]] == region[zones[1]] else 0.05
    assert found["matrix"]["month"][0] == pytest.approx(per_month(1e6, price), abs=0.01)
    assert found["network"]["currency"] == "EUR"


def test_nothing_changed_is_nothing_to_say() -> None:
    snapshot = make_snapshot(4)
    assert not says_something(difference(page(snapshot, 1), page(snapshot, 2)))


def test_a_changed_latency_is_told_as_single_cells_and_gives_the_new_page() -> None:
    old, new = page(make_snapshot(6), 1), page(make_snapshot(6, seed=2), 2)
    told = as_json(difference(old, new))
    assert "cells" in told
    assert "agents" not in told
    assert "order" not in told["rows"].get("agentRows", {})
    assert "matrix" not in told
    assert apply(as_json(plain(old)), told) == as_json(plain(new))


def test_one_changed_pair_is_two_cells_there_and_back() -> None:
    snapshot = make_snapshot(8)
    (key, data) = next(iter(snapshot.results.items()))
    name = next(iter(data))
    changed = {**data, name: re.sub(r'"p50_us":[0-9.]+', '"p50_us":333.0', data[name], count=1)}
    told = difference(page(snapshot, 1), page(msgspec.structs.replace(snapshot, results={key: changed}), 2))
    assert len(told["cells"]) == 2
    assert len(msgspec.json.encode(told["cells"])) < 250


def test_a_new_zone_brings_the_whole_matrix() -> None:
    told = as_json(difference(page(make_snapshot(4), 1), page(make_snapshot(5), 2)))
    assert len(told["matrix"]["cost"]) == 20
    assert apply(as_json(plain(page(make_snapshot(4), 1))), told)["matrix"] == told["matrix"]


def test_a_hundred_zones_fit_into_a_megabyte_and_compress_to_a_fifth() -> None:
    data = msgspec.json.encode(plain(page(make_snapshot(100, 1))))
    assert len(data) < 1_000_000
    assert len(gzip.compress(data, 6)) < 200_000


def test_rows_that_come_go_and_change_places_are_told_by_name() -> None:
    nodes = make_nodes(4, 2)
    down = msgspec.structs.replace(nodes[5], metadata=msgspec.structs.replace(nodes[5].metadata, annotations={}))
    snapshot = make_snapshot(4)
    old = page(snapshot, 1)
    new = page(msgspec.structs.replace(snapshot, nodes=(*nodes[:5], down, *nodes[7:])), 2)
    told = as_json(difference(old, new))
    assert told["rows"]["agentRows"]["order"][0] == down.metadata.name
    assert apply(as_json(plain(old)), told) == as_json(plain(new))


def test_of_very_many_nodes_those_that_need_attention_come_first() -> None:
    nodes = make_nodes(4, 400)
    quiet = msgspec.structs.replace(nodes[-1], metadata=msgspec.structs.replace(nodes[-1].metadata, annotations={}))
    found = page(msgspec.structs.replace(make_snapshot(4), nodes=(*nodes[:-1], quiet)))
    assert found.agents["total"] == 1600
    assert len(found.agent_rows) == 500
    assert found.agent_rows[0]["node"] == quiet.metadata.name
    assert found.bandwidth["totalNodes"] == 1600
    assert len(found.node_rows) == 500


def test_an_empty_cluster_has_a_page_too() -> None:
    found = plain(page(ClusterSnapshot(now_s=1.0)))
    assert found["matrix"]["cost"] == []
    assert found["network"]["zones"] == ()


def test_the_document_is_whole_and_loads_nothing_from_anywhere() -> None:
    text = document().decode()
    assert "/*STYLE*/" not in text
    assert "/*SCRIPT*/" not in text
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "innerHTML" not in text.replace("without innerHTML", "")


def test_no_script_takes_a_name_that_another_has_taken() -> None:
    """They share one scope, where the last function of a name silently wins."""
    taken = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", document().decode(), re.MULTILINE)
    assert len(taken) > 100
    assert [name for name in taken if taken.count(name) > 1] == []


def test_the_policy_allows_this_script_and_style_and_no_other() -> None:
    policy = dict(part.strip().split(" ", 1) for part in security_policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", policy["script-src"])
    assert policy["frame-ancestors"] == "'none'"
    # An inline handler or style attribute would be blocked by it.
    assert not re.findall(r"<[^>]+\s(?:on\w+|style)=", document().decode().partition("<script>")[0])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prometheus_url": "prometheus:9090"}, "page.prometheusUrl"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PageConfig(**change).validate("page")
    assert caught.value.field == field
