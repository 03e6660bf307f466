"""Whom the controller tells of that waits at a gate, when, and how often."""

from __future__ import annotations

from controller.cluster.pods import GroupPod
from controller.scheduler.gating.pod_events import MOST_AT_ONCE, PATIENCE_S, PLAN_PATIENCE_S, WaitingEvents
from controller.scheduler.gating.release import PENDING
from kubekit.wire import ObjectMeta, format_time

NOW_S = 1_800_000_000.0
CART = "workload cart comes first, and its pod cart-1 is not bound yet"


def pod(name: str, *, age_s: float = 10.0) -> GroupPod:
    created = format_time(NOW_S - age_s)
    return GroupPod(metadata=ObjectMeta(name=name, namespace="web", creation_timestamp=created))


def test_a_pod_that_waits_is_told_of_once_with_what_it_waits_for() -> None:
    news = WaitingEvents()
    told, again_s = news.of([pod("front")], {"web/front": CART}, NOW_S)
    assert [(p.metadata.name, text) for p, text in told] == [("front", f"it waits at its gate: {CART}")]
    assert again_s is None
    assert news.of([pod("front")], {"web/front": CART}, NOW_S + 600) == ([], None)


def test_a_pod_that_came_just_now_is_left_alone_until_somebody_would_ask() -> None:
    news = WaitingEvents()
    told, again_s = news.of([pod("front", age_s=2)], {"web/front": CART}, NOW_S)
    assert (told, again_s) == ([], PATIENCE_S - 2)
    told, _ = news.of([pod("front", age_s=2)], {"web/front": CART}, NOW_S + 3)
    assert len(told) == 1


def test_a_plan_that_is_being_made_is_told_of_only_when_it_does_not_come() -> None:
    news = WaitingEvents()
    told, again_s = news.of([pod("front")], {"web/front": PENDING}, NOW_S)
    assert (told, again_s) == ([], PLAN_PATIENCE_S - 10)
    told, _ = news.of([pod("front")], {"web/front": CART}, NOW_S + 1)
    assert [text for _, text in told] == [f"it waits at its gate: {CART}"]
    told, _ = news.of([pod("cart")], {"web/cart": PENDING}, NOW_S + PLAN_PATIENCE_S)
    assert len(told) == 1


def test_a_group_of_thousands_is_told_of_some_at_a_time() -> None:
    news = WaitingEvents()
    pods = [pod(f"p{i}") for i in range(MOST_AT_ONCE + 5)]
    waiting = {p.metadata.key: CART for p in pods}
    first, again_s = news.of(pods, waiting, NOW_S)
    assert (len(first), again_s) == (MOST_AT_ONCE, 1.0)
    second, again_s = news.of(pods, waiting, NOW_S + 1)
    assert (len(second), again_s) == (5, None)


def test_who_went_and_waits_again_is_told_of_anew() -> None:
    news = WaitingEvents()
    news.of([pod("front")], {"web/front": CART}, NOW_S)
    news.of([pod("front")], {}, NOW_S + 1)
    assert len(news.of([pod("front")], {"web/front": CART}, NOW_S + 2)[0]) == 1
