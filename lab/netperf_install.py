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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.places import cache_dir

_APT_TIMEOUT_S = 120.0
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
class Source:
    """One apt repository entry: a mirror, its suites, and the keyring that signs it (empty: apt's trusted keys)."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


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
    sources = [s for s in read_sources(etc_apt) if _is_archive(s)]
    if not sources:
        return Missing(f"netperf is not on PATH and {etc_apt} names no {distribution} archive to fetch it from")
    return _fetch(root, widen(sources, _COMPONENTS[distribution]))


def read_sources(etc_apt: Path) -> list[Source]:
    """All enabled binary-package entries of sources.list and sources.list.d, in one-line and deb822 style."""
    found: list[Source] = []
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    for file in files:
        try:
            text = file.read_text()
        except OSError:
            continue
        if file.suffix == ".sources":
            found += _deb822(text)
        elif file.suffix == ".list":
            found += _one_line(text)
    return found


def widen(sources: Iterable[Source], components: tuple[str, ...]) -> list[Source]:
    """The same mirrors, suites and keyrings, with every component that may hold netperf."""
    return [Source(s.uri, s.suites, components, s.signed_by) for s in sources]


def _one_line(text: str) -> list[Source]:
    found = []
    for line in text.splitlines():
        match = re.match(
            r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<rest>[^#]+)", line
        )
        if match:
            signed = re.search(r"signed-by=(\S+)", match["options"] or "")
            key = signed[1] if signed else ""
            found.append(Source(match["uri"], (match["suite"],), tuple(match["rest"].split()), key))
    return found


def _deb822(text: str) -> list[Source]:
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        pairs = (line.partition(":") for line in lines if ":" in line and not line[:1].isspace())
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false"}:
            continue
        suites, components = tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split())
        # An inline key block has no path; apt's trusted keys then have to do.
        key = fields.get("signed-by", "")
        signed_by = key if key.startswith("/") else ""
        found += [Source(uri, suites, components, signed_by) for uri in fields.get("uris", "").split()]
    return found


def _is_archive(source: Source) -> bool:
    """Whether the entry is the distribution's own archive: the one that has `main` and the release's code name.

    Vendors' repositories have a `main` too, but their suites are not the plain code name with its -updates.
    """
    codename = _os_release().get("VERSION_CODENAME", "")
    return "main" in source.components and any(suite == codename for suite in source.suites)


def _distribution() -> str:
    release = _os_release()
    known = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((name for name in known if name in _COMPONENTS), known[0])


def _os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {k: v.strip().strip('"') for k, _, v in (line.partition("=") for line in lines)}


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


def _fetch(root: Path, sources: list[Source]) -> Netperf | Missing:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch)
        options = _private_apt(home, sources)
        try:
            _apt(["apt-get", *options, "update"], home)
            packages = ["netperf", *_absent_dependencies(options, home)]
            _apt(["apt-get", *options, "download", *packages], home)
            unpacked = home / "root"
            for package in sorted(home.glob("*.deb")):
                _apt(["dpkg", "-x", str(package), str(unpacked)], home)
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(f"netperf is not on PATH and could not be fetched: {_reason(error)}")
        found = _unpacked(unpacked)
        if found is None:
            return Missing("netperf was fetched but does not run here: a library it needs is missing")
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
    return _unpacked(root) or Missing(f"netperf was unpacked into {root} and is gone again")


def _private_apt(home: Path, sources: list[Source]) -> list[str]:
    """Directories and options that keep apt away from the system's own state."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (home / folder).mkdir(parents=True)
    stanzas = [
        f"Types: deb\nURIs: {s.uri}\nSuites: {' '.join(s.suites)}\nComponents: {' '.join(s.components)}\n"
        + (f"Signed-By: {s.signed_by}\n" if s.signed_by else "")
        for s in sources
    ]
    listing = home / "netperf.sources"
    listing.write_text("\n".join(stanzas))
    settings = {
        "Dir::State": home / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": home / "cache",
        "Dir::Etc::SourceList": listing,
        "Dir::Etc::SourceParts": "/dev/null",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
        "Acquire::Retries": "2",
        # apt drops to the user _apt, which cannot enter a private cache directory; signatures are checked either way.
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _absent_dependencies(options: list[str], home: Path) -> list[str]:
    """Direct dependencies of netperf that this machine does not have installed."""
    text = _apt(["apt-cache", *options, "depends", "--no-recommends", "--no-suggests", "netperf"], home)
    names = re.findall(r"^\s*\|?(?:Pre)?Depends: ([a-z0-9.+-]+)", text, re.MULTILINE)
    absent = []
    for name in dict.fromkeys(names):
        argv = ["dpkg-query", "-W", "-f", "${Status}", name]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if "install ok installed" not in done.stdout:
            absent.append(name)
    return absent


def _apt(argv: list[str], home: Path) -> str:
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=home, env=env, timeout=_APT_TIMEOUT_S)
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = [line for line in str(error.stderr).splitlines() if line.startswith("E:")] or [str(error)]
        return f"{error.cmd[0]} says {said[0]!r}"
    return str(error)
