"""Finds Chromium, or takes the distribution's own packages into the user's cache without touching the system.

The page is tried in a real browser. A test run must not install a desktop's worth of libraries into somebody's system, so
what is missing is unpacked beside our other programs and found by way of LD_LIBRARY_PATH.
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
from lab.netperf_install import Missing
from lab.places import cache_dir

DOWNLOAD_TIMEOUT_S = 600.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A font with the signs that the page uses; without any font Chromium draws nothing at all.
_PACKAGES = ("chromium", "fonts-dejavu-core", "fontconfig-config")
_INSIDE = Path("usr/lib/chromium/chromium")


@dataclass(frozen=True)
class Chromium:
    """Where Chromium is, and variables that it needs; usually none."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_or_fetch(environ: Mapping[str, str] = os.environ, etc_apt: Path = Path("/etc/apt")) -> Chromium | Missing:
    """Return Chromium from PATH, from the cache, or from the distribution's mirror, in this order."""
    found = next((path for name in _NAMES if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if found is not None:
        return Chromium(Path(found))
    root = cache_dir(environ) / "chromium"
    cached = _unpacked(root)
    if cached is not None:
        return cached
    for tool in ("apt-get", "dpkg", "ldd"):
        if shutil.which(tool, path=environ.get("PATH")) is None:
            return Missing(f"Chromium is not on PATH and {tool} is not here to fetch it: install the package chromium")
    if apt.os_release().get("ID") != "debian":
        # Ubuntu's package only installs a snap.
        return Missing("Chromium is not on PATH and only Debian has it as a package: install a Chromium or Chrome")
    sources = [source for source in apt.read_sources(etc_apt) if apt.is_archive(source)]
    if not sources:
        return Missing(f"Chromium is not on PATH and {etc_apt} names no Debian archive to fetch it from")
    return _fetch(root, sources)


def _fetch(root: Path, sources: list[apt.Source]) -> Chromium | Missing:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch)
        options = apt.private_apt(home, sources)
        try:
            apt.run(["apt-get", *options, "update"], home)
            wanted = apt.run(
                ["apt-get", *options, "install", "--simulate", "--reinstall", "--no-install-recommends", *_PACKAGES],
                home,
            )
            names = re.findall(r"^Inst (\S+)", wanted, re.MULTILINE)
            apt.run(["apt-get", *options, "download", *names], home, DOWNLOAD_TIMEOUT_S)
            unpacked = home / "root"
            for package in sorted(home.glob("*.deb")):
                apt.run(["dpkg", "-x", str(package), str(unpacked)], home)
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(f"Chromium is not on PATH and could not be fetched: {apt.reason(error)}")
        if _unpacked(unpacked) is None:
            return Missing("Chromium was fetched but does not run here: a library it needs is missing")
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
    return _unpacked(root) or Missing(f"Chromium was unpacked into {root} and is gone again")


def _unpacked(root: Path) -> Chromium | None:
    """What an earlier fetch left in the cache, if it still runs here."""
    binary = root / _INSIDE
    if not binary.exists():
        return None
    folders = sorted({str(path.parent) for base in ("usr/lib", "lib") for path in (root / base).rglob("*.so*")})
    env = {"LD_LIBRARY_PATH": ":".join(folders), "FONTCONFIG_FILE": str(_font_settings(root))}
    argv = ["ldd", str(binary)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **env})
    return Chromium(binary, env) if "not found" not in done.stdout else None


def _font_settings(root: Path) -> Path:
    """A fontconfig file that knows the unpacked fonts and the system's."""
    settings = root / "fonts.conf"
    if not settings.exists():
        folders = (root / "usr/share/fonts", Path("/usr/share/fonts"))
        listed = "".join(f"<dir>{folder}</dir>" for folder in folders)
        cache = f"<cachedir>{root / 'font-cache'}</cachedir>"
        settings.write_text(f'<?xml version="1.0"?>\n<fontconfig>{listed}{cache}</fontconfig>\n')
    return settings
