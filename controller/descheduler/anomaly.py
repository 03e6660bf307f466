"""Whether a node has been hot for long enough: one pure detector per node.

"5 consecutive" means the fifth round, and one normal round starts the count anew (docs/contracts, deliberate difference 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.descheduler.args import Anomaly


@dataclass(frozen=True, slots=True)
class Detector:
    """What is remembered of one node.

    Attributes:
        hot: found hot, and neither normal again nor expired.
        hot_since_s: when it was found hot, unix seconds.
        abnormal, normal: rounds in a row, up to now.
        seen_s: time of the newest round that knew the node's usage.
    """

    hot: bool = False
    hot_since_s: float = 0.0
    abnormal: int = 0
    normal: int = 0
    seen_s: float = 0.0


def mark(detector: Detector, *, over: bool, condition: Anomaly, now: float) -> Detector:
    """The detector after one more round in which the node was ``over`` its threshold, or was not."""
    if detector.hot and now - detector.hot_since_s > condition.timeout_s:
        detector = Detector(seen_s=detector.seen_s)
    if over:
        count = detector.abnormal + 1
        fresh = replace(detector, abnormal=count, normal=0, seen_s=now)
        if not detector.hot and count >= condition.abnormal:
            return replace(fresh, hot=True, hot_since_s=now)
        return fresh
    count = detector.normal + 1
    if detector.hot and count < condition.normal:
        return replace(detector, abnormal=0, normal=count, seen_s=now)
    return Detector(normal=count, seen_s=now)


def forget_unseen(detectors: Mapping[str, Detector], timeout_s: float, now: float) -> dict[str, Detector]:
    """Without the nodes whose usage no round of the last ``timeout_s`` knew; they start anew when they come back."""
    return {name: detector for name, detector in detectors.items() if now - detector.seen_s <= timeout_s}
