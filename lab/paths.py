"""Paths of the lab: built programs in the user's cache, running labs in the user's state directory.

Both follow the XDG base directory rules, so that tests and users can move them with XDG_CACHE_HOME and XDG_STATE_HOME.
"""

from __future__ import annotations

import os
from pathlib import Path

LOGS = "logs"
"""Folder of the programs' logs below a lab's state directory."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by renaming a complete one, so that no reader sees a part of it. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.rename(path)


def _xdg_folder(variable: str, fallback: str) -> Path:
    # XDG's rules: ignore a relative path.
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else Path.home() / fallback


def cache_dir() -> Path:
    """Directory of built and downloaded programs; safe to delete at any time."""
    return _xdg_folder("XDG_CACHE_HOME", ".cache") / "netaware"


def labs_dir() -> Path:
    """Directory that holds one state directory per lab."""
    return _xdg_folder("XDG_STATE_HOME", ".local/state") / "netaware" / "labs"
