"""Conditions keep their time while their status stays, and pods of an outdated template are found."""

from __future__ import annotations

from kubekit.conditions import find_condition, make_condition, merge_conditions
from kubekit.owners import find_outdated_pod_keys
from kubekit.wire import ObjectMeta, OwnerReference


def test_transition_times_change_only_with_the_status_and_other_conditions_stay() -> None:
    foreign = merge_conditions(None, [make_condition("Foreign", holds=None, reason="Theirs")], 0)
    created = merge_conditions(foreign, [make_condition("A", holds=True, reason="R")], 0)
    reworded = merge_conditions(created, [make_condition("A", holds=True, reason="R", message="new words")], 60)
    changed = merge_conditions(reworded, [make_condition("A", holds=False, reason="Cycle")], 120)
    assert created[0].last_transition_time == reworded[0].last_transition_time == "1970-01-01T00:00:00Z"
    assert reworded[0].message == "new words"
    assert changed[0].last_transition_time == "1970-01-01T00:02:00Z"
    assert merge_conditions(changed, [make_condition("A", holds=False, reason="Cycle")], 999) == changed
    assert changed[1] == foreign[0]
    assert changed[1].status == "Unknown"
    assert find_condition(changed, "Absent") is None


def test_the_last_template_is_current_if_two_rollouts_start_within_a_second() -> None:
    pods = [
        ObjectMeta(
            name=name,
            namespace="n",
            creation_timestamp="2026-11-25T20:32:04Z",
            labels={"pod-template-hash": revision},
            owner_references=[OwnerReference(kind="ReplicaSet", name=f"db-{revision}", uid=revision, controller=True)],
        )
        for name, revision in (("old-1", "aaa"), ("old-2", "aaa"), ("new-1", "bbb"))
    ]
    assert find_outdated_pod_keys(pods) == {"n/old-1", "n/old-2"}
