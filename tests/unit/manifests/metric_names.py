"""The names of metrics that dashboards, rules and documents may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "manifests" / "prometheus"


def exported_metrics() -> set[str]:
    """Families of the generated reference, with the suffixes of histograms."""
    found: set[str] = set()
    reference = (ROOT / "docs" / "metrics.md").read_text()
    for name, kind in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \|", reference, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found


def rules(file: str) -> list[dict[str, Any]]:
    """The rules of a file of Prometheus rules."""
    return [rule for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"] for rule in group["rules"]]


def recorded_metrics() -> set[str]:
    """Names that recording rules write."""
    return {str(rule["record"]) for rule in rules("recording.rules.yaml")}
