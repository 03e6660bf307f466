"""Unpacks Debian packages that a lab needs into the user's cache; nothing is installed, and no root is needed.

apt uses the machine's own mirror and keys, and private directories.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import UnsupportedError
from lab.paths import cache_dir
from lab.progress import Progress

_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 120.0, 600.0
_TOOLS = ("apt-get", "dpkg", "ldd")
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True)
class UnpackedPackages:
    """Packages whose files are below ``root``, a folder of the cache, instead of ``/``."""

    root: Path

    def find_program(self, name: str) -> Path | None:
        """The file of a program; None if the packages have no program of this name."""
        return next((path for f in _PROGRAM_FOLDERS if (path := self.root / f / name).exists()), None)

    @property
    def library_environment(self) -> dict[str, str]:
        """LD_LIBRARY_PATH for the packages' libraries; empty without libraries."""
        files = (path for base in ("usr/lib", "lib") for path in (self.root / base).rglob("*.so*"))
        folders = sorted({str(path.parent) for path in files})
        return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}

    @property
    def environment(self) -> dict[str, str]:
        """PATH and LD_LIBRARY_PATH for the packages' programs."""
        programs = [str(self.root / folder) for folder in _PROGRAM_FOLDERS]
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), *programs])
        return {"PATH": search, **self.library_environment}

    def can_run(self, programs: Sequence[str]) -> bool:
        """Whether these files exist and all libraries that they need are found."""
        paths = [self.root / program for program in programs]
        if not all(path.exists() for path in paths):
            return False
        argv, environment = ["ldd", *map(str, paths)], {**os.environ, **self.library_environment}
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment)
        return "not found" not in done.stdout


def find_or_unpack_packages(
    name: str,
    packages: Sequence[str],
    *,
    programs: Sequence[str] = (),
    components: Sequence[str] = ("main",),
    progress: Progress | None = None,
) -> UnpackedPackages:
    """The packages and their dependencies, from the cache or from the distribution's mirror.

    Args:
        name: name of the folder in the cache.
        packages: names of packages of Debian or Ubuntu.
        programs: files of the packages that must run here, relative to ``/``.
        components: components of the archive.
        progress: prints what is downloaded.

    Raises:
        UnsupportedError: they cannot be downloaded, or do not run here; says what to install.
    """
    root, names = cache_dir() / "debian" / name, ", ".join(packages)
    complete = root / ".complete"
    if complete.exists() and complete.read_text().split() == list(packages):
        return UnpackedPackages(root)
    hint = f"install {names} (names of Debian's packages)"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise UnsupportedError(f"{missing[0]}, which downloads {names}, is missing: {hint}")
    if progress is not None:
        progress.note(f"fetching {names} from the distribution's mirror into {root}")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        try:
            unpacked = _fetch(Path(scratch), packages, components)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnsupportedError(f"{names} could not be fetched ({_describe_failure(error)}): {hint}") from error
        if programs and not unpacked.can_run(programs):
            raise UnsupportedError(f"{names} was fetched but does not run here: {hint}")
        (unpacked.root / ".complete").write_text("\n".join(packages))
        shutil.rmtree(root, ignore_errors=True)
        unpacked.root.rename(root)
    return UnpackedPackages(root)


def find_archives() -> list[tuple[str, str]]:
    """Mirror and suite of each source of the distribution's own archive (component `main`, suite of the release), as apt lists them.

    Raises:
        OSError: apt or os-release is missing.
        subprocess.SubprocessError: apt failed.
    """
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = _run(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"], Path("/"))
    rows = {tuple(line.split()) for line in listed.splitlines()}
    suites = (codename, f"{codename}-updates")
    return sorted((row[0], row[1]) for row in rows if row[1:] in {(suite, "main") for suite in suites})


def _fetch(home: Path, packages: Sequence[str], components: Sequence[str]) -> UnpackedPackages:
    """Download and unpack packages and their dependencies below ``home``."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (home / folder).mkdir(parents=True)
    listing = home / "private.list"
    listing.write_text("".join(f"deb {uri} {suite} {' '.join(components)}\n" for uri, suite in find_archives()))
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
    apt = ["apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _run([*apt, "update"], home)
    simulated = _run([*apt, "install", "--simulate", "--reinstall", "--no-install-recommends", *packages], home)
    to_install = re.findall(r"^Inst (\S+)", simulated, re.MULTILINE)
    _run([*apt, "download", *to_install], home, _DOWNLOAD_TIMEOUT_S)
    for package in sorted(home.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(home / "root")], home)
    return UnpackedPackages(home / "root")


def _run(argv: list[str], folder: Path, timeout_s: float = _TIMEOUT_S) -> str:
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=folder, env=env, timeout=timeout_s)
    return done.stdout


def _describe_failure(error: Exception) -> str:
    """The error as text, with apt's own message if it printed one."""
    if isinstance(error, subprocess.CalledProcessError):
        messages = [line for line in str(error.stderr).splitlines() if line.startswith("E:")] or [str(error)]
        return f"{error.cmd[0]}: {messages[0]!r}"
    return str(error)
