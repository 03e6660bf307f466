"""A lab with our programs installed, in a state directory of its own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kubekit.client import Client
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.installation import Installation, install
from lab.topology import load_topology


class Running(NamedTuple):
    """The lab, what was installed in it, and its administrator."""

    lab: Lab
    installed: Installation
    client: Client


@asynccontextmanager
async def installed_lab(name: str, topology: str = "four-zones", **options: Any) -> AsyncIterator[Running]:
    """Start the lab and install, with the options of `lab.installation.install`."""
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load_topology(topology), name=name, components=COMPONENTS, folder=Path(folder)) as lab:
            installed = await install(lab, **options)
            async with Client(lab.client_config) as client:
                yield Running(lab, installed, client)
