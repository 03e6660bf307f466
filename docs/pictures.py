"""Writes the pictures of docs/pictures from runs in a lab.

    python docs/pictures.py              all pictures
    python docs/pictures.py demo         the tables of `make demo`, as SVG
    python docs/pictures.py page         the page in Chromium, for a lab with the Online Boutique placed by both schedulers

Needs root, and Chromium for the page.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.cluster.crds import APPGROUPS  # noqa: E402
from kubekit.client import Client  # noqa: E402
from kubekit.wire import DEPLOYMENTS, NAMESPACES, Object  # noqa: E402
from lab.boutique import load_application  # noqa: E402
from lab.cluster import Lab  # noqa: E402
from lab.demo import COMPONENTS, POD_CPU, run_demo  # noqa: E402
from lab.installation import install  # noqa: E402
from lab.report import print_report  # noqa: E402
from lab.topology import load_topology  # noqa: E402
from tests.support.browser import Tab, open_tab  # noqa: E402
from tests.support.page_programs import find_or_fetch_chromium  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 300_000
VIEWS = ("matrix", "groups")
COLOR_SCHEMES = ("light", "dark")
WIDTH, HEIGHT, SCALE = 1200, 720, 1.0
DEMO_COLUMNS = 96
PLACEMENT_TIMEOUT_S, HISTORY_S = 90.0, 40.0
SCHEDULER_BY_NAMESPACE = {"shop": "network-aware-scheduler", "shop-default": "default-scheduler"}


def main(arguments: Sequence[str]) -> int:
    """Write the pictures that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="demo or page; both by default")
    parser.add_argument("--to", type=Path, default=PICTURES, metavar="FOLDER", help="where to write (docs/pictures)")
    args = parser.parse_args(arguments)
    unknown = set(args.pictures) - {"demo", "page"}
    if unknown:
        parser.error(f"there is no picture {', '.join(sorted(unknown))}")
    args.to.mkdir(parents=True, exist_ok=True)
    if not args.pictures or "demo" in args.pictures:
        asyncio.run(_write_demo_picture(args.to))
    if not args.pictures or "page" in args.pictures:
        asyncio.run(_write_page_pictures(args.to))
    return 0


async def _write_demo_picture(folder: Path) -> None:
    topology = load_topology("four-zones")
    report = await run_demo(topology, name="pictures", placement="extender", print_progress=print)
    console = Console(record=True, width=DEMO_COLUMNS, file=io.StringIO())
    print_report(console, report, {node.name: node.zone for node in topology.nodes})
    # Without the fonts that a browser would fetch from a public server.
    svg_format = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    (folder / "demo.svg").write_text(console.export_svg(title="make demo", code_format=svg_format))


async def _write_page_pictures(folder: Path) -> None:
    chromium = await asyncio.to_thread(find_or_fetch_chromium)
    with tempfile.TemporaryDirectory() as state:
        async with Lab.start(
            load_topology("four-zones"), name="pictures", components=COMPONENTS, folder=Path(state)
        ) as lab:
            installation = await install(lab)
            async with Client(lab.client_config) as client, open_tab(chromium, width=WIDTH, height=HEIGHT) as tab:
                await tab.page.goto(f"{installation.controller_url}/")
                await tab.wait_for(
                    "state.page !== null && !state.page.matrix.p50Us.includes(null)", PLACEMENT_TIMEOUT_S
                )
                for namespace, scheduler in SCHEDULER_BY_NAMESPACE.items():
                    await _deploy(client, namespace, scheduler)
                await tab.wait_for(
                    f"state.page.groups.filter((g) => g.runningPods === g.numMembers).length === {len(SCHEDULER_BY_NAMESPACE)}",
                    PLACEMENT_TIMEOUT_S,
                )
                # More rounds of probes, for the chart of a pair's p50 over time.
                await asyncio.sleep(HISTORY_S)
                await _save_screenshots(tab, folder)
            lab.programs.check_running()


async def _deploy(client: Client, namespace: str, scheduler: str) -> None:
    """Create the Online Boutique in a namespace, for one scheduler."""
    application = load_application(scheduler=scheduler, cpu=POD_CPU)
    await client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
    await client.create(APPGROUPS, application.group, Object, namespace=namespace)
    for deployment in application.deployments.values():
        await client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)


async def _save_screenshots(tab: Tab, folder: Path) -> None:
    """Save a picture for each view and colour scheme. Raises SystemExit if one is too large or the browser reports problems."""
    await tab.resize(WIDTH, HEIGHT, scale=SCALE)
    for scheme in COLOR_SCHEMES:
        await tab.set_color_scheme(scheme)
        for view in VIEWS:
            await tab.evaluate(f"showTab({view!r})")
            await tab.evaluate("selectPair(state.positions.get('z3'), state.positions.get('z1'))")
            path = folder / f"page-{view}-{scheme}.png"
            await tab.page.screenshot(path=path, full_page=True)
            if path.stat().st_size > MAX_BYTES:
                raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MAX_BYTES}")
    if tab.problems:
        raise SystemExit(f"the browser reports problems: {tab.problems}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
