"""Writes the Grafana dashboards as JSON; each is a list of rows of panels, in a module of its own below dashboards/.

python manifests/grafana/generate.py           writes *.json
python manifests/grafana/generate.py --check   changes nothing and ends with 1 when one of them is not current
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
    """Write the files, or with ``--check`` compare."""
    stale = []
    for dashboard in DASHBOARDS:
        path = HERE / f"{dashboard.uid.removeprefix('netaware-')}.json"
        text = json.dumps(encode(dashboard), indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        print(f"not current: {', '.join(stale)}; run {Path(__file__).name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
