"""Debian packages unpacked into the user's cache: what a lab needs and a machine does not have, without touching the system.

The machine's own mirror and keyring are used, in private directories (lab.apt); neither root nor an installation is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab import apt
from lab.errors import UnsupportedError
from lab.paths import cache_dir
from lab.progress import Progress

T = TypeVar("T")

DOWNLOAD_TIMEOUT_S = 600.0
_TOOLS = ("apt-get", "dpkg", "ldd")
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True)
class Missing:
    """A package that cannot be had here; ``reason`` explains why."""

    reason: str


@dataclass(frozen=True)
class Unpacked:
    """Packages below a folder of the cache, as they would be below ``/``."""

    root: Path

    def program(self, name: str) -> Path | None:
        """The file of a program, ``None`` when the packages have none of this name."""
        return next((path for f in _PROGRAM_FOLDERS if (path := self.root / f / name).exists()), None)

    @property
    def libraries(self) -> dict[str, str]:
        """The variable by which programs find the packages' libraries; empty when they have none."""
        found = (path for base in ("usr/lib", "lib") for path in (self.root / base).rglob("*.so*"))
        folders = sorted({str(path.parent) for path in found})
        return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}

    def environment(self) -> dict[str, str]:
        """Variables by which the programs and their libraries are found."""
        programs = [str(self.root / folder) for folder in _PROGRAM_FOLDERS]
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), *programs])
        return {"PATH": search, **self.libraries}

    def runs(self, *programs: Path) -> bool:
        """Whether these of its programs are there and find every library that they need."""
        if not all(program.exists() for program in programs):
            return False
        argv = ["ldd", *map(str, programs)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **self.libraries})
        return "not found" not in done.stdout


def missing_tool() -> str | None:
    """The first missing command that fetching packages needs."""
    return next((tool for tool in _TOOLS if shutil.which(tool) is None), None)


def find_or_unpack(name: str, packages: Sequence[str], *, progress: Progress | None = None) -> Unpacked:
    """The packages and those that they need, from the cache or from the distribution's mirror.

    Args:
        name: of the folder in the cache.
        packages: of Debian or Ubuntu.
        progress: told that something is fetched.

    Raises:
        UnsupportedError: they cannot be had here; says what to install.
    """
    root = cache_dir() / "debian" / name
    complete = root / ".complete"
    if complete.exists() and complete.read_text().split() == list(packages):
        return Unpacked(root)
    hint = f"install {', '.join(packages)} (names of Debian's packages)"
    if tool := missing_tool():
        raise UnsupportedError(f"{tool} is not here to fetch {', '.join(packages)}: {hint}")
    sources = apt.archives()
    if not sources:
        raise UnsupportedError(f"{apt.SETTINGS} names no archive of this distribution to fetch from: {hint}")
    if progress is not None:
        progress.note(f"fetching {', '.join(packages)} from the distribution's mirror into {root}")

    def mark(tree: Path) -> bool:
        (tree / ".complete").write_text("\n".join(packages))
        return True

    try:
        _fetch(root, packages, sources, mark)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(f"{', '.join(packages)} could not be fetched ({apt.reason(error)}): {hint}") from error
    return Unpacked(root)


def fetch_program(
    name: str, root: Path, packages: Sequence[str], sources: list[apt.Source], find: Callable[[Path], T | None]
) -> T | Missing:
    """Fetch a program that is not on PATH.

    Args:
        name: how people call it.
        root: where its packages are unpacked.
        packages: that it is in.
        sources: where they come from.
        find: the program below a folder, ``None`` when it is not there or does not run.
    """
    try:
        if not _fetch(root, packages, sources, lambda tree: find(tree) is not None):
            return Missing(f"{name} was fetched but does not run here: a library it needs is missing")
    except (OSError, subprocess.SubprocessError) as error:
        return Missing(f"{name} is not on PATH and could not be fetched: {apt.reason(error)}")
    return find(root) or Missing(f"{name} was unpacked into {root} and is gone again")


def _fetch(root: Path, packages: Sequence[str], sources: list[apt.Source], accept: Callable[[Path], bool]) -> bool:
    """Unpack packages, and those that they need, into ``root``, unless ``accept`` refuses what has been unpacked."""
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
        if not accept(unpacked):
            return False
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
    return True
