"""Writes prometheusrule.yaml: the groups of ../*.rules.yaml as one PrometheusRule for the Prometheus operator.

    python manifests/prometheus/operator/generate.py           writes prometheusrule.yaml
    python manifests/prometheus/operator/generate.py --check   only compares, and exits with 1 if it is out of date

The rule files are the source, because promtool and a Prometheus without an operator read them directly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SOURCES = ("recording.rules.yaml", "alerts.rules.yaml")
TARGET = HERE / "prometheusrule.yaml"
HEADER = "# Written by generate.py from ../recording.rules.yaml and ../alerts.rules.yaml. Change those, then run generate.py.\n"


def build_rule() -> str:
    """The PrometheusRule as YAML."""
    groups: list[Any] = []
    for name in SOURCES:
        groups += yaml.safe_load((HERE.parent / name).read_text())["groups"]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "netaware",
            "namespace": "netaware-system",
            "labels": {"app.kubernetes.io/part-of": "netaware"},
        },
        "spec": {"groups": groups},
    }
    return HEADER + yaml.safe_dump(rule, sort_keys=False, width=10_000, allow_unicode=True)


def main() -> int:
    """Write the file; with ``--check``, compare it."""
    if "--check" in sys.argv[1:]:
        is_current = TARGET.exists() and TARGET.read_text() == build_rule()
        if not is_current:
            print(f"{TARGET} is out of date: run {Path(__file__).name}", file=sys.stderr)
        return 0 if is_current else 1
    TARGET.write_text(build_rule())
    return 0


if __name__ == "__main__":
    sys.exit(main())
