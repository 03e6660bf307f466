"""Directories of built programs and of running labs, by the XDG rules: XDG_CACHE_HOME and XDG_STATE_HOME move them."""

from __future__ import annotations

import os
from pathlib import Path

LOGS = "logs"
"""Folder of the programs' logs below a lab's state directory."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by a rename, so that no reader sees a part of it. Creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.rename(path)


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
