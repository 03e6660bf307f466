"""Finds netperf, or takes the distribution's own package into the user's cache without touching the system.

netperf is not redistributed by everybody (Debian 12 keeps it in non-free), so most machines have no candidate for
`apt-get install netperf`. apt can be pointed at private directories: the machine's own mirror and keyring, one more
component, nothing installed, no root needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab import apt, debian
from lab.debian import Missing, Unpacked
from lab.paths import cache_dir

# Where each distribution keeps netperf and what it needs, by ID in os-release.
_COMPONENTS = {"debian": ("main", "contrib", "non-free"), "ubuntu": ("main", "universe", "multiverse")}
_PROGRAMS = ("netperf", "netserver")


@dataclass(frozen=True)
class Netperf:
    """Paths of netperf and netserver.

    Attributes:
        netperf: the client.
        netserver: the server.
        env: variables that both need, for example LD_LIBRARY_PATH when a library came with them; usually empty.
    """

    netperf: Path
    netserver: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def bin_dir(self) -> Path:
        """Directory to put on PATH so that other programs find both."""
        return self.netperf.parent


def find_or_fetch() -> Netperf | Missing:
    """Return netperf from PATH, from the cache, or from the distribution's mirror, in this order."""
    found = _on_path()
    if found is not None:
        return found
    root = cache_dir() / "netperf"
    cached = _unpacked(root)
    if cached is not None:
        return cached
    if tool := debian.missing_tool():
        return Missing(f"netperf is not on PATH and {tool} is not here to fetch it: install the package netperf")
    distribution = _distribution()
    if distribution not in _COMPONENTS:
        return Missing(
            f"netperf is not on PATH and {distribution or 'this system'} is not Debian or Ubuntu: install it"
        )
    sources = apt.archives()
    if not sources:
        return Missing(f"netperf is not on PATH and {apt.SETTINGS} names no {distribution} archive to fetch it from")
    sources = apt.with_components(sources, _COMPONENTS[distribution])
    return debian.fetch_program("netperf", root, ("netperf",), sources, _unpacked)


def _distribution() -> str:
    release = apt.os_release()
    known = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((name for name in known if name in _COMPONENTS), known[0])


def _on_path() -> Netperf | None:
    client, server = (shutil.which(name) for name in _PROGRAMS)
    return Netperf(Path(client), Path(server)) if client and server else None


def _unpacked(root: Path) -> Netperf | None:
    """The unpacked netperf in a folder, if it runs here."""
    tree = Unpacked(root)
    client, server = (root / "usr" / "bin" / name for name in _PROGRAMS)
    return Netperf(client, server, tree.libraries) if tree.runs(client, server) else None
