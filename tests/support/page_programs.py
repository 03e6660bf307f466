"""Finds Chromium and axe-core, which check the page, or puts them into the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lab.debian import find_or_unpack_packages
from lab.errors import UnsupportedError
from lab.paths import cache_dir

_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a font Chromium draws no text.
_CHROMIUM_PACKAGES = ("chromium", "fonts-dejavu-core", "fontconfig-config")
_CHROMIUM_PROGRAM = "usr/lib/chromium/chromium"
AXE_FOLDER = Path(__file__).parent / "axe"
"""Its lock file has the checksum that npm verifies."""
_AXE_SCRIPT = Path("node_modules/axe-core/axe.min.js")
_FETCH_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Chromium:
    """The path of Chromium, and environment variables that it needs."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_or_fetch_chromium() -> Chromium:
    """Chromium from PATH, the cache, or the distribution's packages; raises UnsupportedError if there is none."""
    path = next((path for name in _CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if path is not None:
        return Chromium(Path(path))
    tree = find_or_unpack_packages("chromium", _CHROMIUM_PACKAGES, programs=[_CHROMIUM_PROGRAM])
    return Chromium(
        tree.root / _CHROMIUM_PROGRAM, {**tree.library_environment, "FONTCONFIG_FILE": str(_font_settings(tree.root))}
    )


def _font_settings(root: Path) -> Path:
    """Write a fontconfig file for the unpacked fonts and those of the system; returns its path."""
    settings = root / "fonts.conf"
    folders = (root / "usr/share/fonts", Path("/usr/share/fonts"))
    listed = "".join(f"<dir>{folder}</dir>" for folder in folders)
    cache = f"<cachedir>{root / 'font-cache'}</cachedir>"
    configuration = f'<?xml version="1.0"?>\n<fontconfig>{listed}{cache}</fontconfig>\n'
    # Another worker's Chromium may read the file now.
    if not settings.exists() or settings.read_text() != configuration:
        settings.write_text(configuration)
    return settings


def find_or_fetch_axe() -> Path:
    """The pinned script of axe-core, from the cache or by npm; raises UnsupportedError if neither has it."""
    lock = AXE_FOLDER / "package-lock.json"
    root = cache_dir() / f"axe-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if (root / _AXE_SCRIPT).exists():
        return root / _AXE_SCRIPT
    npm = shutil.which("npm")
    if npm is None:
        raise UnsupportedError("axe-core is fetched by npm, which is not on PATH: install the package npm")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch) / "axe"
        shutil.copytree(AXE_FOLDER, home)
        argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(argv, cwd=home, check=True, capture_output=True, timeout=_FETCH_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            raise UnsupportedError(f"axe-core could not be fetched: {error}: {error.stderr.decode()[-300:]}") from error
        # A parallel run may have created the folder already.
        with suppress(OSError):
            home.rename(root)
    return root / _AXE_SCRIPT
