"""The names of metrics that dashboards, rules and documents may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "manifests" / "prometheus"


def read_labels_by_series() -> dict[str, set[str]]:
    """Read docs/metrics.md: name of each exported series, with the suffix of a histogram -> labels.

    In the document, *pair* stands for the labels that the sentence "*pair* is `a, b`" lists.
    """
    labels_by_series: dict[str, set[str]] = {}
    reference = (ROOT / "docs" / "metrics.md").read_text()
    labels_by_abbreviation = dict(re.findall(r"\*(\w+)\* is `([^`]+)`", reference))
    for name, kind, label_cell in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \| ([^|]*) \|", reference, re.MULTILINE):
        full_label_cell = re.sub(r"\*(\w+)\*", lambda match: labels_by_abbreviation[match[1]], label_cell)
        labels = set(re.findall(r"\w+", full_label_cell))
        if kind == "histogram":
            labels_by_series |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            labels_by_series[name] = labels
    return labels_by_series


def read_rules(file: str) -> list[dict[str, Any]]:
    """The rules of all groups of a file in `PROMETHEUS`."""
    groups = yaml.safe_load((PROMETHEUS / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def list_recorded_series() -> set[str]:
    return {str(rule["record"]) for rule in read_rules("recording.rules.yaml")}
