"""Configurations of kube-scheduler: the stock profile, and beside it the profile that asks our extender.

Extenders belong to the kube-scheduler process, not to a profile (the extender wire format in docs/contracts), so both
profiles' pods are sent; our extender answers neutrally for pods that belong to no AppGroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.cluster.pods import OUR_SCHEDULER

DEFAULT_PROFILE = "default-scheduler"


def build_config(
    *,
    extender_url: str | None = None,
    extender_timeout_s: float = 5.0,
    percentage_of_nodes_to_score: int = 100,
    profiles: Sequence[str] = (DEFAULT_PROFILE, OUR_SCHEDULER),
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration, by default with the profiles ``default-scheduler`` and ``network-aware-scheduler``.

    Args:
        extender_url: base of the extender's ``/filter`` and ``/prioritize``; ``None`` for no extender.
        extender_timeout_s: deadline of one request to it, seconds.
        percentage_of_nodes_to_score: 100, because an extender sees only the nodes that were sampled and a pod whose
            sampled nodes are all refused stays Pending although others would do.
        profiles: names by which pods choose it; two schedulers of one name place the same pods, each by its own rules.
    """
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": percentage_of_nodes_to_score,
        "profiles": [{"schedulerName": name} for name in profiles],
    }
    if extender_url is not None:
        config["extenders"] = [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                # The scheduler adds score x weight x 10 to a node's total; 5 as in manifests/scheduler.
                "weight": 5,
                "nodeCacheCapable": True,
                # Pods are placed without the extender while it does not answer.
                "ignorable": True,
                "httpTimeout": f"{extender_timeout_s:g}s",
            }
        ]
    return config
