"""What the browser gets: columns in the order of the zones, and rows that need attention."""

from __future__ import annotations

import gzip
import re
from typing import Any

import msgspec

from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.document import document, security_policy
from controller.page.model import encode
from controller.views.overview import build
from tests.unit.controller.made_up import make_snapshot


def page(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """What the browser gets."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(encode(build(snapshot))))
    return found


def test_the_matrix_is_in_the_order_of_the_zones_origin_by_origin_without_the_diagonal() -> None:
    snapshot = make_snapshot(5)
    overview = build(snapshot)
    found = page(snapshot)
    names = [zone["name"] for zone in found["network"]["zones"]]
    assert {len(column) for column in found["matrix"].values()} == {5 * 4}
    by_pair = {(p.origin, p.destination): p.cost for p in overview.network.pairs}
    expected = [by_pair[a, b] for a in names for b in names if a != b]
    assert found["matrix"]["cost"] == expected
    assert "pairs" not in found["network"]


def test_a_hundred_zones_fit_into_a_megabyte_and_compress_to_a_fifth() -> None:
    data = msgspec.json.encode(page(make_snapshot(100, 1)))
    assert len(data) < 1_000_000
    assert len(gzip.compress(data, 6)) < 200_000


def test_an_empty_cluster_has_a_page_too() -> None:
    found = page(ClusterSnapshot(now_s=1.0))
    assert found["matrix"]["cost"] == []
    assert found["network"]["zones"] == []


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
    assert len(taken) > 50
    assert [name for name in taken if taken.count(name) > 1] == []


def test_the_policy_allows_this_script_and_style_and_no_other() -> None:
    policy = dict(part.strip().split(" ", 1) for part in security_policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", policy["script-src"])
    assert policy["frame-ancestors"] == "'none'"
    # An inline handler or style attribute would be blocked by it.
    assert not re.findall(r"<[^>]+\s(?:on\w+|style)=", document().decode().partition("<script>")[0])
