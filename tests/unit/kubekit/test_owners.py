"""Which pods a rollout is about to replace."""

from __future__ import annotations

from kubekit.owners import outdated
from kubekit.wire import ObjectMeta, OwnerReference


def test_of_two_rollouts_within_a_second_the_template_seen_last_is_the_present_one() -> None:
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
    assert outdated(pods) == {"n/old-1", "n/old-2"}
