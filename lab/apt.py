"""apt without touching the system: the machine's own mirror and keyring, private directories, nothing installed, no root.

What tests and the demo need and a machine does not have (netperf, Chromium) is unpacked into the user's cache this way.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/etc/apt")
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Source:
    """One apt repository entry: a mirror, its suites, and the keyring that signs it (empty: apt's trusted keys)."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


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


def with_components(sources: Iterable[Source], components: tuple[str, ...]) -> list[Source]:
    """The same mirrors, suites and keyrings, with these components instead of their own."""
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


def archives() -> list[Source]:
    """The entries that are the distribution's own archive: those that have `main` and the release's code name.

    Vendors' repositories have a `main` too, but their suites are not the plain code name with its -updates.
    """
    codename = os_release().get("VERSION_CODENAME", "")
    return [s for s in read_sources(SETTINGS) if "main" in s.components and codename in s.suites]


def os_release() -> dict[str, str]:
    """Fields of /etc/os-release; empty where there is no such file."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {k: v.strip().strip('"') for k, _, v in (line.partition("=") for line in lines)}


def private_apt(home: Path, sources: list[Source]) -> list[str]:
    """Directories and options that keep apt away from the system's own state."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (home / folder).mkdir(parents=True)
    stanzas = [
        f"Types: deb\nURIs: {s.uri}\nSuites: {' '.join(s.suites)}\nComponents: {' '.join(s.components)}\n"
        + (f"Signed-By: {s.signed_by}\n" if s.signed_by else "")
        for s in sources
    ]
    listing = home / "private.sources"
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


def run(argv: list[str], home: Path, timeout_s: float = TIMEOUT_S) -> str:
    """Run one of apt's or dpkg's commands in ``home`` and return what it printed.

    Raises:
        OSError: the command is not there.
        subprocess.SubprocessError: it failed, or took too long.
    """
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=home, env=env, timeout=timeout_s)
    return done.stdout


def reason(error: Exception) -> str:
    """The failure, in apt's own words if it printed any."""
    if isinstance(error, subprocess.CalledProcessError):
        said = [line for line in str(error.stderr).splitlines() if line.startswith("E:")] or [str(error)]
        return f"{error.cmd[0]} says {said[0]!r}"
    return str(error)
