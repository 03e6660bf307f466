"""Finds netperf, or downloads the distribution's package into the user's cache; nothing is installed, and no root is needed.

netperf is in Debian 12's non-free and Ubuntu's multiverse, which most machines do not enable.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.debian import find_or_unpack_packages
from lab.errors import UnsupportedError
from lab.progress import Progress

# Components of Debian's and Ubuntu's archives; apt skips those that an archive does not have.
_COMPONENTS = ("main", "contrib", "non-free", "universe", "multiverse")


@dataclass(frozen=True)
class Netperf:
    """Paths of netperf and netserver.

    Attributes:
        netperf: the client.
        netserver: the server.
        env: variables that both need, such as LD_LIBRARY_PATH for an unpacked library; usually empty.
    """

    netperf: Path
    netserver: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def bin_dir(self) -> Path:
        """Directory to put on PATH so that other programs find both."""
        return self.netperf.parent


def find_or_fetch_netperf() -> Netperf:
    """Return netperf from PATH, from the cache, or from the distribution's mirror, in this order.

    Raises:
        UnsupportedError: it is not available; says why.
    """
    client, server = (shutil.which(name) for name in ("netperf", "netserver"))
    if client and server:
        return Netperf(Path(client), Path(server))
    programs = ("usr/bin/netperf", "usr/bin/netserver")
    tree = find_or_unpack_packages(
        "netperf", ["netperf"], programs=programs, components=_COMPONENTS, progress=Progress()
    )
    return Netperf(tree.root / programs[0], tree.root / programs[1], tree.library_environment)


def find_netperf_if_available() -> Netperf | None:
    """As `find_or_fetch_netperf`, but returns None and prints the reason on stderr if netperf is not available."""
    try:
        return find_or_fetch_netperf()
    except UnsupportedError as error:
        Progress().note(str(error))
        return None
