"""Run every ``bench_*.py`` beside this file and hold the figures against their budgets.

Each exposes ``measure() -> {name: {"value", "unit", "budget", "ok", "reference"}}``. Budgets that depend on the machine are
ratios within one run. Exit code 1 when a budget is broken.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.figures import Figures


def main() -> int:
    """Entry point of ``make bench``."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("only", nargs="*", help="names of benches, such as scheduler or agent; all by default")
    args = parser.parse_args()
    here = Path(__file__).parent
    figures: Figures = {}
    for path in sorted(here.glob("bench_*.py")):
        name = path.stem.removeprefix("bench_")
        if args.only and name not in args.only:
            continue
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        figures |= importlib.import_module(f"tests.bench.{path.stem}").measure()
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, figure in figures.items():
            mark = "" if figure["ok"] is None else "ok" if figure["ok"] else "OVER"
            value = f"{figure['value']:.6g}" if isinstance(figure["value"], float) else str(figure["value"])
            print(f"{name:58} {value:>12} {figure['unit']!s:10} budget {figure['budget']!s:12} {mark}")
            if figure.get("reference"):
                print(f"{'':4}{figure['reference']}")
    return 0 if all(f["ok"] is not False for f in figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
