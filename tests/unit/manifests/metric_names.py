"""The names of metrics that dashboards, rules and documents may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "manifests" / "prometheus"


def labels_by_metric() -> dict[str, set[str]]:
    """Series of the generated reference, with the suffixes of histograms, and their labels."""
    found: dict[str, set[str]] = {}
    reference = (ROOT / "docs" / "metrics.md").read_text()
    groups = dict(re.findall(r"\*(\w+)\* is `([^`]+)`", reference))
    for name, kind, text in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \| ([^|]*) \|", reference, re.MULTILINE):
        labels = set(re.findall(r"\w+", re.sub(r"\*(\w+)\*", lambda group: groups[group[1]], text)))
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {f"{name}{suffix}": labels | ({"le"} if suffix == "_bucket" else set()) for suffix in suffixes}
    return found


def exported_metrics() -> set[str]:
    """Series of the generated reference."""
    return set(labels_by_metric())


def rules(file: str) -> list[dict[str, Any]]:
    """The rules of a file of Prometheus rules."""
    return [rule for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"] for rule in group["rules"]]


def recorded_metrics() -> set[str]:
    """Names that recording rules write."""
    return {str(rule["record"]) for rule in rules("recording.rules.yaml")}
