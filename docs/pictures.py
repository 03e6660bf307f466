"""Makes the pictures of docs/pictures from real runs, so that they show what the programs do and not what they once did.

    python docs/pictures.py              all of them
    python docs/pictures.py demo         the tables of `make demo`, as SVG
    python docs/pictures.py page         the page in Chromium, over a lab with the Online Boutique placed by both schedulers
    python docs/pictures.py page --every --to /tmp/look    every view, light and dark, wide and narrow: to look over

Needs what `make demo` needs, and Chromium for the page.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.cluster.crds import APPGROUPS  # noqa: E402
from kubekit.client import Client  # noqa: E402
from kubekit.wire import DEPLOYMENTS, NAMESPACES, Object  # noqa: E402
from lab.boutique import load_application  # noqa: E402
from lab.cluster import Lab  # noqa: E402
from lab.demo import COMPONENTS, POD_CPU  # noqa: E402
from lab.installation import install  # noqa: E402
from lab.topology import load_topology  # noqa: E402
from tests.support.browser import Tab, open_tab  # noqa: E402
from tests.support.chromium import find_or_fetch_chromium  # noqa: E402

HOME = ROOT / "docs" / "pictures"
LARGEST_BYTES = 300_000
VIEWS = ("now", "matrix", "groups")
IN_DOCS = ("matrix", "groups")
SCHEMES = ("light", "dark")
WIDE, NARROW, HEIGHT = 1200, 400, 720
SCALE = 1.0
PLACED_S, ROUNDS_S = 90.0, 40.0
BY_SCHEDULER = {"shop": "network-aware-scheduler", "shop-default": "default-scheduler"}


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="PICTURE", help="demo or page; both by default")
    parser.add_argument("--to", type=Path, default=HOME, metavar="FOLDER", help="where to write (docs/pictures)")
    parser.add_argument(
        "--every", action="store_true", help="of the page every view, also narrow, not only the documented"
    )
    args = parser.parse_args(arguments)
    unknown = set(args.which) - {"demo", "page"}
    if unknown:
        parser.error(f"there is no picture {', '.join(sorted(unknown))}")
    if not args.which or "demo" in args.which:
        command = [sys.executable, "-m", "lab", "demo", "--name", "pictures", "--picture", str(args.to / "demo.svg")]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    if not args.which or "page" in args.which:
        asyncio.run(_page(args.to, every=args.every))
    return 0


async def _page(folder: Path, *, every: bool) -> None:
    chromium = await asyncio.to_thread(find_or_fetch_chromium)
    with tempfile.TemporaryDirectory() as state:
        async with Lab.start(
            load_topology("four-zones"), name="pictures", components=COMPONENTS, folder=Path(state)
        ) as lab:
            installed = await install(lab)
            async with Client(lab.client_config) as client, open_tab(chromium, width=WIDE, height=HEIGHT) as tab:
                await tab.open(f"{installed.controller_url}/")
                await tab.wait_for("state.page !== null && !state.page.matrix.p50.includes(null)", PLACED_S)
                for namespace, scheduler in BY_SCHEDULER.items():
                    await _deploy(client, namespace, scheduler)
                await tab.wait_for(
                    f"state.page.groups.filter((g) => g.running === g.members).length === {len(BY_SCHEDULER)}", PLACED_S
                )
                # A few rounds more, for the line of a pair's p50 over time.
                await asyncio.sleep(ROUNDS_S)
                await _shoot(tab, folder, VIEWS if every else IN_DOCS, (WIDE, NARROW) if every else (WIDE,))
            installed.check_running()


async def _deploy(client: Client, namespace: str, scheduler: str) -> None:
    """The Online Boutique by one scheduler."""
    application = load_application(scheduler=scheduler, cpu=POD_CPU)
    await client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
    await client.create(APPGROUPS, application.group, Object, namespace=namespace)
    for deployment in application.deployments.values():
        await client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)


async def _shoot(tab: Tab, folder: Path, views: Sequence[str], widths: Sequence[int]) -> None:
    """One picture per view, scheme and width; what the browser complained about ends the run."""
    for width in widths:
        await tab.resize(width, HEIGHT, scale=SCALE)
        for scheme in SCHEMES:
            await tab.set_color_scheme(scheme)
            for view in views:
                await tab.evaluate(f"showTab({view!r})")
                await tab.evaluate("selectPair(state.positions.get('z3'), state.positions.get('z1'))")
                path = folder / f"page-{view}-{scheme}{'-narrow' if width == NARROW else ''}.png"
                await tab.screenshot(path)
                if width == WIDE and path.stat().st_size > LARGEST_BYTES:
                    raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {LARGEST_BYTES}")
                print(f"{path} {path.stat().st_size} bytes", file=sys.stderr)
    if tab.problems:
        raise SystemExit(f"the browser complains: {tab.problems}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
