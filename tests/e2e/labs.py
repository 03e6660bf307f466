"""Starts a lab with our programs, in a temporary state directory."""

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


class InstalledLab(NamedTuple):
    """A lab, our programs in it, and the administrator's client."""

    lab: Lab
    installation: Installation
    client: Client


@asynccontextmanager
async def installed_lab(name: str, topology: str = "four-zones", **options: Any) -> AsyncIterator[InstalledLab]:
    """Start a lab and install our programs, with the options of `lab.installation.install`."""
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load_topology(topology), name=name, components=COMPONENTS, folder=Path(folder)) as lab:
            installation = await install(lab, **options)
            async with Client(lab.client_config) as client:
                yield InstalledLab(lab, installation, client)
