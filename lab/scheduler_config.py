"""Builds kube-scheduler's configuration with the default profile and ours.

An extender belongs to the process, not to a profile, so kube-scheduler also sends it pods of the default profile. Our extender accepts
every node for pods without an AppGroup.
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
    """Return a KubeSchedulerConfiguration, by default with the profiles ``default-scheduler`` and ``network-aware-scheduler``.

    No other running scheduler may have one of the names in ``profiles``. If ``percentage_of_nodes_to_score`` is below 100, the extender
    sees only a sample of the nodes; if it refuses all of them, the pod stays Pending.
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
