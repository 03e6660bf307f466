"""Writes the topologies that come from tables of others or from a rule; see README.md beside it.

python lab/topologies/generate.py           writes them
python lab/topologies/generate.py --check   changes nothing and ends with 1 when a file is not current
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TABLE = HERE / "data" / "zones-2024.yaml"
CONTINENTS = ("frankfurt", "dallas", "tokyo", "sydney")
NEAR_ZONES_US = {
    ("a", "b"): 130, ("b", "c"): 200, ("a", "c"): 310, ("c", "d"): 450, ("b", "d"): 600, ("a", "d"): 760,
    ("d", "e"): 1300, ("c", "e"): 1700, ("b", "e"): 1950, ("a", "e"): 2160,
}  # fmt: skip
"""The ends of the range as documented, 0.13 and 2.16 ms; what lies between is spread so that each differs by a tenth or more."""
JITTER = 0.02
EARTH_KM, KM_PER_MS, DETOUR = 6371.0, 200.0, 1.5


def ms(value: float) -> str:
    """As topology files spell a delay."""
    return f"{round(value * 1000)}us"


def link(a: str, b: str, rtt_ms: float, jitter: float = JITTER) -> str:
    """One line of ``links`` or ``regionLinks``."""
    return f"  - {{between: [{a}, {b}], rtt: {ms(rtt_ms)}, jitter: {ms(rtt_ms * jitter)}}}"


def head(name: str, description: str, comment: str, same_zone_us: int = 90) -> list[str]:
    """The fields that come first."""
    return [
        *(f"# {line}" for line in [*comment.splitlines(), "Written by generate.py; do not edit."]),
        f"name: {name}",
        f"description: {description}",
        "nodeDefaults: {cpu: 4, memory: 16Gi, pods: 110, nic: 1G}",
        f"sameZone: {{rtt: {same_zone_us}us, jitter: 5us}}",
        "regions:",
    ]


def region_lines(name: str, zones: Iterable[str], nodes_per_zone: int) -> list[str]:
    """One entry of ``regions``; nodes are named after their zone."""
    lines = [f"  - name: {name}", "    zones:"]
    for zone in zones:
        nodes = ", ".join(f"{{name: {zone}{chr(ord('a') + i)}}}" for i in range(nodes_per_zone))
        lines.append(f"      - {{name: {zone}, nodes: [{nodes}]}}")
    return lines


def between_regions(table: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Round trips between regions in ms; the table has each from both ends, a millisecond or two apart: their mean."""
    names = table["regions"]
    rows = table["between_regions"]
    return {(a, b): (rows[a][j] + rows[b][i]) / 2 for i, a in enumerate(names) for j, b in enumerate(names) if i < j}


def planet(table: Mapping[str, Any]) -> str:
    """All ten regions with three zones each."""
    lines = head("planet", "10 regions, 30 zones, 30 nodes, 0.63 to 329 ms apart", "Thirty zones of one provider.")
    for region in table["regions"]:
        lines += region_lines(region, [f"{region}-{n}" for n in (1, 2, 3)], 1)
    lines.append("links:")
    for region in table["regions"]:
        for (a, b), rtt_ms in zip(((1, 2), (1, 3), (2, 3)), table["zones"][region], strict=True):
            lines.append(link(f"{region}-{a}", f"{region}-{b}", rtt_ms))
    lines.append("regionLinks:")
    lines += [link(a, b, rtt_ms) for (a, b), rtt_ms in between_regions(table).items()]
    return "\n".join(lines) + "\n"


def continents(table: Mapping[str, Any]) -> str:
    """One zone of each of four continents."""
    lines = head(
        "continents", "4 regions, 4 zones, 8 nodes, 117 to 260 ms apart", "Four zones of `planet`, two nodes each."
    )
    for region in CONTINENTS:
        lines += region_lines(region, [f"{region}-1"], 2)
    lines.append("regionLinks:")
    pairs = between_regions(table).items()
    lines += [link(a, b, rtt_ms) for (a, b), rtt_ms in pairs if a in CONTINENTS and b in CONTINENTS]
    return "\n".join(lines) + "\n"


def cloud_region() -> str:
    """Five zones of one region."""
    comment = (
        "Five zones of one region, as far apart as zones of one region are: networkCost is 2 for nine of ten pairs."
    )
    lines = head("cloud-region", "1 region, 5 zones, 10 nodes, 0.13 to 2.16 ms apart", comment, 70)
    lines += region_lines("near", [f"near-{name}" for name in "abcde"], 2)
    lines.append("links:")
    lines += [link(f"near-{a}", f"near-{b}", us / 1000) for (a, b), us in NEAR_ZONES_US.items()]
    return "\n".join(lines) + "\n"


def hundred_zones() -> str:
    """Twenty regions of five zones, strewn over the globe: made up, light in fibre by a detour."""
    rng = random.Random(2024)
    spots = {f"r{i:02}": (math.asin(rng.uniform(-0.8, 0.8)), rng.uniform(-math.pi, math.pi)) for i in range(20)}
    lines = head("hundred-zones", "20 regions, 100 zones, 100 nodes (made up)", "Made up: see generate.py.")
    for region in spots:
        lines += region_lines(region, [f"{region}-z{n}" for n in range(1, 6)], 1)
    lines.append("regionLinks:")
    names = list(spots)
    lines += [link(name, name, rng.uniform(0.5, 2.5)) for name in names]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            (lat, lon), (to_lat, to_lon) = spots[a], spots[b]
            cosine = math.sin(lat) * math.sin(to_lat) + math.cos(lat) * math.cos(to_lat) * math.cos(lon - to_lon)
            distance_km = EARTH_KM * math.acos(max(-1.0, min(1.0, cosine)))
            lines.append(link(a, b, 1 + 2 * DETOUR * distance_km / KM_PER_MS))
    return "\n".join(lines) + "\n"


def topologies() -> dict[str, str]:
    """File name -> what it should hold."""
    table = yaml.safe_load(TABLE.read_text())
    return {
        "planet.yaml": planet(table),
        "continents.yaml": continents(table),
        "cloud-region.yaml": cloud_region(),
        "hundred-zones.yaml": hundred_zones(),
    }


def main() -> int:
    """Entry point."""
    stale = [name for name, text in topologies().items() if _read(HERE / name) != text]
    if "--check" in sys.argv[1:]:
        print(f"not current: {', '.join(stale)}" if stale else "all current")
        return 1 if stale else 0
    for name in stale:
        (HERE / name).write_text(topologies()[name])
    return 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
