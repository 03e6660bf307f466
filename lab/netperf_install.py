"""Finds netperf, or takes the distribution's own package into the user's cache without touching the system.

netperf is not redistributed by everybody (Debian 12 keeps it in non-free), so most machines have no candidate for
`apt-get install netperf`. apt can be pointed at private directories: the machine's own mirror and keyring, one more
component, nothing installed, no root needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab import apt
from lab.places import cache_dir

# Where each distribution keeps netperf and what it needs, by ID in os-release.
_COMPONENTS = {"debian": ("main", "contrib", "non-free"), "ubuntu": ("main", "universe", "multiverse")}
_PROGRAMS = ("netperf", "netserver")


@dataclass(frozen=True)
class Netperf:
    """Where netperf is.

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


@dataclass(frozen=True)
class Missing:
    """netperf cannot be had here; ``reason`` says why, in a sentence a user can act on."""

    reason: str


def find_or_fetch(environ: Mapping[str, str] = os.environ, etc_apt: Path = Path("/etc/apt")) -> Netperf | Missing:
    """Return netperf from PATH, from the cache, or from the distribution's mirror, in this order."""
    found = _on_path(environ)
    if found is not None:
        return found
    root = cache_dir(environ) / "netperf"
    cached = _unpacked(root)
    if cached is not None:
        return cached
    for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-query"):
        if shutil.which(tool, path=environ.get("PATH")) is None:
            return Missing(f"netperf is not on PATH and {tool} is not here to fetch it: install the package netperf")
    distribution = _distribution()
    if distribution not in _COMPONENTS:
        return Missing(
            f"netperf is not on PATH and {distribution or 'this system'} is not Debian or Ubuntu: install it"
        )
    sources = [s for s in apt.read_sources(etc_apt) if apt.is_archive(s)]
    if not sources:
        return Missing(f"netperf is not on PATH and {etc_apt} names no {distribution} archive to fetch it from")
    return _fetch(root, apt.widen(sources, _COMPONENTS[distribution]))


def _distribution() -> str:
    release = apt.os_release()
    known = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((name for name in known if name in _COMPONENTS), known[0])


def _on_path(environ: Mapping[str, str]) -> Netperf | None:
    client, server = (shutil.which(name, path=environ.get("PATH")) for name in _PROGRAMS)
    return Netperf(Path(client), Path(server)) if client and server else None


def _unpacked(root: Path) -> Netperf | None:
    """What an earlier fetch left in the cache, if it still runs here."""
    client, server = (root / "usr" / "bin" / name for name in _PROGRAMS)
    if not (client.exists() and server.exists()):
        return None
    folders = sorted({str(path.parent) for path in (root / "usr" / "lib").rglob("*.so*")})
    env = {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}
    found = Netperf(client, server, env)
    return found if not _missing_libraries(found) else None


def _missing_libraries(found: Netperf) -> list[str]:
    argv = ["ldd", str(found.netperf), str(found.netserver)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **found.env})
    return re.findall(r"(\S+) => not found", done.stdout)


def _fetch(root: Path, sources: list[apt.Source]) -> Netperf | Missing:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch)
        options = apt.private_apt(home, sources)
        try:
            apt.run(["apt-get", *options, "update"], home)
            packages = ["netperf", *_absent_dependencies(options, home)]
            apt.run(["apt-get", *options, "download", *packages], home)
            unpacked = home / "root"
            for package in sorted(home.glob("*.deb")):
                apt.run(["dpkg", "-x", str(package), str(unpacked)], home)
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(f"netperf is not on PATH and could not be fetched: {apt.reason(error)}")
        found = _unpacked(unpacked)
        if found is None:
            return Missing("netperf was fetched but does not run here: a library it needs is missing")
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
    return _unpacked(root) or Missing(f"netperf was unpacked into {root} and is gone again")


def _absent_dependencies(options: list[str], home: Path) -> list[str]:
    """Direct dependencies of netperf that this machine does not have installed."""
    text = apt.run(["apt-cache", *options, "depends", "--no-recommends", "--no-suggests", "netperf"], home)
    names = re.findall(r"^\s*\|?(?:Pre)?Depends: ([a-z0-9.+-]+)", text, re.MULTILINE)
    absent = []
    for name in dict.fromkeys(names):
        argv = ["dpkg-query", "-W", "-f", "${Status}", name]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if "install ok installed" not in done.stdout:
            absent.append(name)
    return absent
