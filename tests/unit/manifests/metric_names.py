"""The names of metrics that dashboards, rules and documents may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "manifests" / "prometheus"


def labels_by_metric() -> dict[str, set[str]]:
    """Series of docs/metrics.md, with the suffixes of histograms -> labels. There, *pair* stands for labels listed as "*pair* is `a, b`"."""
    labels_by_series: dict[str, set[str]] = {}
    reference = (ROOT / "docs" / "metrics.md").read_text()
    abbreviations = dict(re.findall(r"\*(\w+)\* is `([^`]+)`", reference))
    for name, kind, text in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \| ([^|]*) \|", reference, re.MULTILINE):
        labels = set(re.findall(r"\w+", re.sub(r"\*(\w+)\*", lambda match: abbreviations[match[1]], text)))
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        labels_by_series |= {
            f"{name}{suffix}": labels | ({"le"} if suffix == "_bucket" else set()) for suffix in suffixes
        }
    return labels_by_series


def exported_metrics() -> set[str]:
    """Names of all series that the programs export."""
    return set(labels_by_metric())


def read_rules(file: str) -> list[dict[str, Any]]:
    """The rules of a file of Prometheus rules."""
    return [rule for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"] for rule in group["rules"]]


def recorded_metrics() -> set[str]:
    """Names that recording rules write."""
    return {str(rule["record"]) for rule in read_rules("recording.rules.yaml")}
