"""Compiles the search library if the wheel or image does not contain it.

Standard library only: `hatch_build.py` loads this file by its path, before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
PACKAGED = SOURCES / "libsearch.so"
"""The compiled library in a wheel."""
_FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")
_TIMEOUT_S = 300.0


def compile_library(target: Path) -> None:
    """Compile to a file, which appears atomically.

    Raises:
        OSError: there is no C compiler, or it failed; the message says what to do.
    """
    command = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled = Path(folder) / target.name
        files = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        try:
            subprocess.run(
                [*command, *_FLAGS, *files, "-o", str(compiled), "-lm"],
                check=True,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        except FileNotFoundError as error:
            msg = f"the planner's search is written in C and {command[0]!r} was not found: install gcc, or netaware's wheel for this platform"
            raise OSError(msg) from error
        except subprocess.CalledProcessError as error:
            msg = f"the planner's search did not compile: {shlex.join(error.cmd)}: {error.stderr.strip()[:2000]}"
            raise OSError(msg) from error
        compiled.replace(target)


def library_path() -> Path:
    """The packaged library, else the library of the same sources in the user's cache, which is compiled if it is missing.

    Raises:
        OSError: the compilation failed.
    """
    if PACKAGED.exists():
        return PACKAGED
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netaware"
    target = cache / f"search-{_digest()}.so"
    if not target.exists():
        compile_library(target)
    return target


def _digest() -> str:
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
