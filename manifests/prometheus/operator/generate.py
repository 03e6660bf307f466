"""Writes prometheusrule.yaml: the groups of ../*.rules.yaml as one PrometheusRule for the Prometheus operator.

    python manifests/prometheus/operator/generate.py           writes it
    python manifests/prometheus/operator/generate.py --check   changes nothing and ends with 1 when it is not current

The plain files are the source, because promtool and every Prometheus without an operator read them as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SOURCES = ("recording.rules.yaml", "alerts.rules.yaml")
TARGET = HERE / "prometheusrule.yaml"
HEAD = (
    "# Written by generate.py from ../recording.rules.yaml and ../alerts.rules.yaml. Change those, then run it again.\n"
)


def build() -> str:
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
    return HEAD + yaml.safe_dump(rule, sort_keys=False, width=10_000, allow_unicode=True)


def main() -> int:
    """Write the file, or with ``--check`` compare."""
    if "--check" in sys.argv[1:]:
        current = TARGET.exists() and TARGET.read_text() == build()
        if not current:
            print(f"{TARGET} is not current: run {Path(__file__).name}", file=sys.stderr)
        return 0 if current else 1
    TARGET.write_text(build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
