"""Pods outside a group decide where its pods may go: one answer of the leader and of ``simulate --offline``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.leader import NOISY, ZONE, Both

WORKLOAD = {"appgroup.diktyo.x-k8s.io.workload": "P1"}


def term(labels: dict[str, str], key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key, **more}


def required(kind: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


NOBODY: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("spec", "foreign", "zones"),
    [
        (required("podAntiAffinity", term(NOISY)), [("n00", NOBODY), ("n02", NOBODY)], {"z1"}),
        (required("podAffinity", term(NOISY)), [("n02", NOBODY)], {"z2"}),
        (
            NOBODY,
            [
                ("n00", required("podAntiAffinity", term(WORKLOAD))),
                ("n02", required("podAntiAffinity", term(WORKLOAD))),
                ("n01", NOBODY),
                ("n04", NOBODY),
            ],
            {"z1"},
        ),
        (required("podAffinity", term(NOISY)), [], set()),
        (required("podAntiAffinity", term(NOISY)), [(f"n0{i}", NOBODY) for i in range(3)], set()),
    ],
)
async def test_required_affinity_with_foreign_pods_in_either_direction(
    spec: Any, foreign: Any, zones: set[str]
) -> None:
    both = Both()
    for node, theirs in foreign:
        both.add_foreign(node, theirs)
    assert await both.zones(spec) == zones


async def test_foreign_pods_count_by_their_namespace() -> None:
    both = Both()
    both.add_foreign("n00", NOBODY, "elsewhere")
    both.add_foreign("n01", NOBODY)
    assert "z1" not in await both.zones(required("podAntiAffinity", term(NOISY), term(NOISY, namespaces=["elsewhere"])))


async def test_a_plan_is_made_anew_when_a_foreign_pod_comes_into_its_way() -> None:
    both = Both()
    both.add_foreign("n00", NOBODY)
    both.add_foreign("n02", NOBODY)
    assert await both.zones(required("podAntiAffinity", term(NOISY))) == {"z1"}
    both.fleet.take_pod("d/foreign-n02", None, None)
    both.add_foreign("n01", NOBODY)
    both.now += 60
    assert both.plans.look("d/g", both.of("d/g")).pending
    await both.plans.make("d/g")
    moved = both.plans.look("d/g", both.of("d/g")).plan
    assert moved is not None
    assert moved.targets["d/p1"].zone == "z2"
