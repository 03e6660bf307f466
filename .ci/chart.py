"""Packs the Helm chart for a registry.

    python .ci/chart.py --registry ghcr.io/team --digests DIR --to DIR

The packed chart names images of that registry, by digest where DIR/<program>.json gives one, which is what
`docker buildx build --metadata-file` writes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.tools.builds import HELM, find_or_build_tool

CHART = Path(__file__).resolve().parents[1] / "manifests" / "helm" / "netaware"


def main() -> int:
    """Pack it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", default="", metavar="HOST/TEAM")
    parser.add_argument("--digests", type=Path, default=Path("dist"), metavar="DIR")
    parser.add_argument("--to", type=Path, default=Path("dist"), metavar="DIR")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / "netaware"
        shutil.copytree(CHART, chart)
        values = chart / "values.yaml"
        text = values.read_text()
        for program in ("agent", "controller"):
            name = f"netaware-{program}"
            told = arguments.digests / f"{program}.json"
            digest = json.loads(told.read_text())["containerimage.digest"] if told.exists() else ""
            repository = f"{arguments.registry}/{name}" if arguments.registry else name
            before = f'{program}: {{repository: {name}, tag: "", digest: ""}}'
            if before not in text:
                print(f"{values}: no line {before}", file=sys.stderr)
                return 1
            text = text.replace(before, f'{program}: {{repository: {repository}, tag: "", digest: "{digest}"}}')
        values.write_text(text)
        arguments.to.mkdir(parents=True, exist_ok=True)
        command = [str(find_or_build_tool(HELM)), "package", str(chart), "--destination", str(arguments.to)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
