"""Unpacks Debian packages into the user's cache, without installing them and without root.

apt uses the machine's mirror and keys, with directories in the cache.
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

from lab.build import lock_build
from lab.errors import UnsupportedError
from lab.paths import cache_dir
from lab.progress import print_line

_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 120.0, 600.0
_TOOLS = ("apt-get", "dpkg", "ldd")
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True)
class UnpackedPackages:
    """Debian packages, unpacked below ``root``, a folder of the cache, instead of ``/``."""

    root: Path

    def find_program(self, name: str) -> Path | None:
        """Return the file of a program; None if the packages have no program of this name."""
        return next((path for f in _PROGRAM_FOLDERS if (path := self.root / f / name).exists()), None)

    @property
    def library_environment(self) -> dict[str, str]:
        """The variable LD_LIBRARY_PATH for the packages' libraries; empty if they have none."""
        files = (path for base in ("usr/lib", "lib") for path in (self.root / base).rglob("*.so*"))
        folders = sorted({str(path.parent) for path in files})
        return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables PATH and LD_LIBRARY_PATH for the packages' programs."""
        programs = [str(self.root / folder) for folder in _PROGRAM_FOLDERS]
        search_path = os.pathsep.join([os.environ.get("PATH", os.defpath), *programs])
        return {"PATH": search_path, **self.library_environment}

    def can_run(self, programs: Sequence[str]) -> bool:
        """Whether these files, relative to ``/``, exist and all libraries that they need are found."""
        paths = [self.root / program for program in programs]
        if not all(path.exists() for path in paths):
            return False
        argv, environment = ["ldd", *map(str, paths)], {**os.environ, **self.library_environment}
        result = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment)
        return "not found" not in result.stdout


def find_or_unpack_packages(
    name: str, packages: Sequence[str], *, programs: Sequence[str] = (), components: Sequence[str] = ("main",)
) -> UnpackedPackages:
    """Return packages of Debian or Ubuntu, from the folder ``name`` of the cache or the mirror. Prints progress on stderr.

    Dependencies that this machine lacks are unpacked too. ``programs`` are files of the packages that must run here, relative to ``/``.
    Raises UnsupportedError, which says what to install, if the packages cannot be downloaded or do not run here.
    """
    cached = UnpackedPackages(cache_dir() / "debian" / name)
    cached.root.parent.mkdir(parents=True, exist_ok=True)
    with lock_build(cached.root.with_name(f"{name}.lock"), f"the folder {cached.root}"):
        marker = cached.root / ".complete"
        is_complete = marker.exists() and marker.read_text().split() == list(packages)
        # A package of the machine, on which these depend, may have been removed since.
        if not is_complete or (programs and not cached.can_run(programs)):
            _fetch(cached, packages, programs, components)
    return cached


def _fetch(
    cached: UnpackedPackages, packages: Sequence[str], programs: Sequence[str], components: Sequence[str]
) -> None:
    names = ", ".join(packages)
    hint = f"install {names} (names of Debian's packages)"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise UnsupportedError(f"{missing[0]}, which downloads {names}, is missing: {hint}")
    print_line(f"fetching {names} from the distribution's mirror into {cached.root}")
    with tempfile.TemporaryDirectory(dir=cached.root.parent, prefix="fetching-") as scratch:
        try:
            unpacked = _download_and_unpack(Path(scratch), packages, components)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnsupportedError(f"{names} could not be fetched ({_describe_failure(error)}): {hint}") from error
        if programs and not unpacked.can_run(programs):
            raise UnsupportedError(f"{names} was fetched but does not run here: {hint}")
        (unpacked.root / ".complete").write_text("\n".join(packages))
        shutil.rmtree(cached.root, ignore_errors=True)
        unpacked.root.rename(cached.root)


def find_archives() -> list[tuple[str, str]]:
    """Return (mirror, suite) of each apt source of the running release: the release's suite and its updates, component ``main``.

    Raises OSError or subprocess.SubprocessError if apt or os-release is missing, or apt fails.
    """
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    targets = _run_command(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"], Path("/"))
    rows = {tuple(line.split()) for line in targets.splitlines()}
    suites = (codename, f"{codename}-updates")
    return sorted((row[0], row[1]) for row in rows if row[1:] in {(suite, "main") for suite in suites})


def _download_and_unpack(folder: Path, packages: Sequence[str], components: Sequence[str]) -> UnpackedPackages:
    """Download and unpack packages, and the dependencies that this machine lacks, below ``folder``."""
    for subfolder in ("state/lists/partial", "cache/archives/partial"):
        (folder / subfolder).mkdir(parents=True)
    source_list = folder / "private.list"
    source_list.write_text("".join(f"deb {uri} {suite} {' '.join(components)}\n" for uri, suite in find_archives()))
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": source_list,
        "Dir::Etc::SourceParts": "/dev/null",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
        "Acquire::Retries": "2",
        # apt that runs as root would switch to the user _apt, which cannot enter a private cache directory. Signatures are still checked.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _run_command([*apt, "update"], folder)
    simulated = _run_command(
        [*apt, "install", "--simulate", "--reinstall", "--no-install-recommends", *packages], folder
    )
    to_install = re.findall(r"^Inst (\S+)", simulated, re.MULTILINE)
    _run_command([*apt, "download", *to_install], folder, _DOWNLOAD_TIMEOUT_S)
    for package in sorted(folder.glob("*.deb")):
        _run_command(["dpkg", "-x", str(package), str(folder / "root")], folder)
    return UnpackedPackages(folder / "root")


def _run_command(argv: list[str], folder: Path, timeout_s: float = _TIMEOUT_S) -> str:
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, cwd=folder, env=env, timeout=timeout_s
    ).stdout


def _describe_failure(error: Exception) -> str:
    """Return the error as text, with apt's message if apt printed one."""
    if isinstance(error, subprocess.CalledProcessError):
        messages = [line for line in str(error.stderr).splitlines() if line.startswith("E:")] or [str(error)]
        return f"{error.cmd[0]}: {messages[0]!r}"
    return str(error)
