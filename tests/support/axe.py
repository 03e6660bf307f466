"""Finds axe-core, which checks the page's accessibility, or fetches the pinned version with npm into the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from lab.errors import UnsupportedError
from lab.paths import cache_dir

FETCH_TIMEOUT_S = 300.0
PINNED = Path(__file__).parent / "axe"
"""Folder whose lock file has the checksum that npm verifies."""
_SCRIPT = Path("node_modules/axe-core/axe.min.js")


def find_or_fetch_axe() -> Path:
    """Path of the script, from the cache or by npm; raises UnsupportedError if neither has it."""
    lock = PINNED / "package-lock.json"
    root = cache_dir() / f"axe-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if (root / _SCRIPT).exists():
        return root / _SCRIPT
    npm = shutil.which("npm")
    if npm is None:
        raise UnsupportedError("axe-core is fetched by npm, which is not on PATH: install the package npm")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch) / "axe"
        shutil.copytree(PINNED, home)
        argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(argv, cwd=home, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            raise UnsupportedError(f"axe-core could not be fetched: {error}: {error.stderr.decode()[-300:]}") from error
        # A parallel run may have created the folder already.
        with suppress(OSError):
            home.rename(root)
    return root / _SCRIPT
