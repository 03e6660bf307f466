"""Writes the Grafana dashboards as JSON, each from a module below dashboards/.

python manifests/grafana/generate.py           writes *.json
python manifests/grafana/generate.py --check   only compares, and exits with 1 if a file is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dashboards.agents import AGENTS
from dashboards.appgroups import APPGROUPS
from dashboards.bandwidth import BANDWIDTH
from dashboards.descheduler import DESCHEDULER
from dashboards.latency import LATENCY
from dashboards.panels import encode

HERE = Path(__file__).resolve().parent
DASHBOARDS = (LATENCY, APPGROUPS, BANDWIDTH, AGENTS, DESCHEDULER)


def main() -> int:
    """Write the files; with ``--check``, compare them."""
    outdated = []
    for dashboard in DASHBOARDS:
        path = HERE / f"{dashboard.uid.removeprefix('netaware-')}.json"
        text = json.dumps(encode(dashboard), indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            outdated.append(path.name)
    if outdated:
        print(f"out of date: {', '.join(outdated)}; run {Path(__file__).name}", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
