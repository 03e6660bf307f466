"""Paths of a lab's files and of built programs, by the XDG rules; and functions that write files.

XDG_CACHE_HOME and XDG_STATE_HOME move the directories.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kubekit.errors import ConfigError

LOGS_FOLDER = "logs"
"""Name of the folder of the programs' logs below a lab's state directory."""
_LAB_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?\Z")


@dataclass(frozen=True)
class LabPaths:
    """Paths of a lab's files.

    Attributes:
        state_dir: folder of certificates, data and logs; exists while the lab runs, or after it was killed.
    """

    name: str
    state_dir: Path

    @property
    def lock(self) -> Path:
        """File that is locked while the lab runs, with its process id."""
        return self.state_dir.with_suffix(".lock")

    @property
    def description(self) -> Path:
        """File with the output of `up --json`, written when the lab is up."""
        return self.state_dir / "lab.json"

    @property
    def logs(self) -> Path:
        """Folder of its programs' logs, each ``NAME.log``."""
        return self.state_dir / LOGS_FOLDER

    @property
    def wan_socket(self) -> Path:
        """Unix socket that controls the emulated network (lab.wan.control)."""
        return self.state_dir / "wan.sock"

    @property
    def supervisor_log(self) -> Path:
        """Output of the lab's own process if it runs in the background."""
        return self.state_dir.with_suffix(".log")

    @property
    def kept_logs(self) -> Path:
        """Folder of the programs' logs of a failed lab."""
        return self.state_dir.with_suffix(".logs")


def lab_paths(name: str, folder: Path | None = None) -> LabPaths:
    """Return the paths of a lab below ``folder``, by default `labs_dir`. Raises ConfigError if the name is not valid."""
    if not _LAB_NAME.match(name):
        raise ConfigError("--name", f"{name!r} is not a valid name", "lower-case letters, digits and -, up to 32")
    return LabPaths(name, (folder or labs_dir()) / name)


def _xdg_folder(variable: str, fallback: str) -> Path:
    # XDG's rules say to ignore a relative path.
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else Path.home() / fallback


def cache_dir() -> Path:
    """Directory of built and downloaded programs; safe to delete at any time."""
    return _xdg_folder("XDG_CACHE_HOME", ".cache") / "netaware"


def labs_dir() -> Path:
    """Directory that holds one state directory per lab."""
    return _xdg_folder("XDG_STATE_HOME", ".local/state") / "netaware" / "labs"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by a rename, so that no reader sees a part of it. Creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.rename(path)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.chmod(0o600)  # An existing file kept its mode.
    path.write_text(text)
