"""Configurations of kube-scheduler with the default profile and ours.

Extenders belong to the kube-scheduler process, not to a profile (docs/contracts, section 7), so pods of both profiles are sent; our
extender has no opinion about pods without an AppGroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.cluster.pods import OUR_SCHEDULER

DEFAULT_PROFILE = "default-scheduler"


def build_scheduler_config(
    *,
    extender_url: str | None = None,
    extender_timeout_s: float = 5.0,
    percentage_of_nodes_to_score: int = 100,
    profiles: Sequence[str] = (DEFAULT_PROFILE, OUR_SCHEDULER),
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration, by default with the profiles ``default-scheduler`` and ``network-aware-scheduler``.

    Args:
        extender_url: base URL of the extender; None for no extender.
        extender_timeout_s: deadline of a request to the extender, seconds.
        percentage_of_nodes_to_score: 100, because the extender sees only sampled nodes; if it refuses them all, the pod stays Pending.
        profiles: scheduler names; no other running scheduler may have one of them.
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
