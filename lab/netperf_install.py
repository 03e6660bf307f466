"""Finds netperf, or unpacks the distribution's package into the user's cache, without installing it and without root.

The package is in non-free of Debian 12 and in multiverse of Ubuntu, components that most machines do not enable.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.debian import find_or_unpack_packages
from lab.errors import UnsupportedError
from lab.progress import print_line

# Components of both distributions; apt skips components that an archive does not have.
_COMPONENTS = ("main", "contrib", "non-free", "universe", "multiverse")


@dataclass(frozen=True)
class Netperf:
    """Paths of netperf and netserver. Programs that run netperf need its folder on PATH.

    Attributes:
        env: environment variables that both need, such as LD_LIBRARY_PATH for an unpacked library; usually empty.
    """

    netperf: Path
    netserver: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_or_fetch_netperf() -> Netperf:
    """Return netperf from PATH, the cache, or the distribution's mirror, in this order. Raises UnsupportedError, which says why not."""
    client, server = (shutil.which(name) for name in ("netperf", "netserver"))
    if client and server:
        return Netperf(Path(client), Path(server))
    programs = ("usr/bin/netperf", "usr/bin/netserver")
    unpacked = find_or_unpack_packages("netperf", ["netperf"], programs=programs, components=_COMPONENTS)
    return Netperf(unpacked.root / programs[0], unpacked.root / programs[1], unpacked.library_environment)


def find_netperf_if_available() -> Netperf | None:
    """Return what `find_or_fetch_netperf` returns, or None, with the reason on stderr, if netperf is not available."""
    try:
        return find_or_fetch_netperf()
    except UnsupportedError as error:
        print_line(str(error))
        return None
