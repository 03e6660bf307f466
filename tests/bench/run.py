"""Run every ``bench_*.py`` beside this file and hold the figures against their budgets.

Each has a function ``measure() -> Figures``. Budgets that depend on the machine are ratios within one run. Exit code 1
when a budget is broken.
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
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("only", nargs="*", help="names of benches, such as scheduler or agent; all by default")
    args = parser.parse_args()
    figures: Figures = {}
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
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
            print(f"{name:58} {figure['value']:>12.6g} {figure['unit']:10} budget {figure['budget']:12} {mark}")
            if figure["reference"]:
                print(f"{'':4}{figure['reference']}")
    return 0 if all(figure["ok"] is not False for figure in figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
