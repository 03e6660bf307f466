"""Debian packages unpacked into the user's cache: what a lab needs and a machine does not have, without touching the system.

The machine's own mirror and keyring are used, in private directories (lab.apt); neither root nor an installation is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import apt
from lab.errors import UnsupportedError
from lab.places import cache_dir
from lab.progress import Progress

DOWNLOAD_TIMEOUT_S = 600.0
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True)
class Unpacked:
    """Packages below a folder of the cache, as they would be below ``/``."""

    root: Path

    def program(self, name: str) -> Path | None:
        """The file of a program, ``None`` when the packages have none of this name."""
        return next((path for f in _PROGRAM_FOLDERS if (path := self.root / f / name).exists()), None)

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables by which the programs and their libraries are found."""
        folders = sorted(
            {str(path.parent) for base in ("usr/lib", "lib") for path in (self.root / base).rglob("*.so*")}
        )
        programs = [str(self.root / folder) for folder in _PROGRAM_FOLDERS]
        search = os.pathsep.join([environ.get("PATH", os.defpath), *programs])
        return {"PATH": search, **({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})}


def find_or_unpack(
    name: str,
    packages: Sequence[str],
    *,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    etc_apt: Path = Path("/etc/apt"),
) -> Unpacked:
    """The packages and those that they need, from the cache or from the distribution's mirror.

    Args:
        name: of the folder in the cache.
        packages: of Debian or Ubuntu.
        progress: told that something is fetched.
        environ: read for PATH and the XDG directories.
        etc_apt: where apt's sources are.

    Raises:
        UnsupportedError: they cannot be had here; says what to install.
    """
    root = cache_dir(environ) / "debian" / name
    complete = root / ".complete"
    if complete.exists() and complete.read_text().split() == list(packages):
        return Unpacked(root)
    hint = f"install {', '.join(packages)} (names of Debian's packages)"
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool, path=environ.get("PATH")) is None:
            raise UnsupportedError(f"{tool} is not here to fetch {', '.join(packages)}: {hint}")
    sources = [source for source in apt.read_sources(etc_apt) if apt.is_archive(source)]
    if not sources:
        raise UnsupportedError(f"{etc_apt} names no archive of this distribution to fetch from: {hint}")
    if progress is not None:
        progress.note(f"fetching {', '.join(packages)} from the distribution's mirror into {root}")
    try:
        _fetch(root, packages, sources)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(f"{', '.join(packages)} could not be fetched ({apt.reason(error)}): {hint}") from error
    return Unpacked(root)


def _fetch(root: Path, packages: Sequence[str], sources: list[apt.Source]) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch)
        options = apt.private_apt(home, sources)
        apt.run(["apt-get", *options, "update"], home)
        simulate = ["install", "--simulate", "--reinstall", "--no-install-recommends", *packages]
        wanted = apt.run(["apt-get", *options, *simulate], home)
        names = re.findall(r"^Inst (\S+)", wanted, re.MULTILINE)
        apt.run(["apt-get", *options, "download", *names], home, DOWNLOAD_TIMEOUT_S)
        unpacked = home / "root"
        for package in sorted(home.glob("*.deb")):
            apt.run(["dpkg", "-x", str(package), str(unpacked)], home)
        (unpacked / ".complete").write_text("\n".join(packages))
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
