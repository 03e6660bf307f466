"""Finds the compiled library of the search, or compiles it if the wheel or image does not contain it.

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
PACKAGED_LIBRARY = SOURCES / "libsearch.so"
"""The compiled library in a wheel."""
_COMPILER_FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")
COMPILE_TIMEOUT_S = 300.0


def compile_library(target: Path) -> None:
    """Compile the sources to a file, which appears atomically.

    Raises:
        OSError: there is no C compiler, or it failed; the message names the fix.
    """
    command = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled = Path(folder) / target.name
        files = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        command += [*_COMPILER_FLAGS, *files, "-o", str(compiled), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        except FileNotFoundError as error:
            msg = f"the planner's search is written in C and {command[0]!r} was not found: install gcc, or netaware's wheel"
            raise OSError(msg) from error
        except subprocess.TimeoutExpired as error:
            msg = f"the planner's search did not compile within {COMPILE_TIMEOUT_S:g} s: set CC to another C compiler"
            raise OSError(msg) from error
        except subprocess.CalledProcessError as error:
            output = f"{shlex.join(error.cmd)}: {error.stderr.strip()[:2000]}"
            msg = f"the planner's search did not compile, set CC to another C compiler: {output}"
            raise OSError(msg) from error
        compiled.replace(target)


def library_path() -> Path:
    """The packaged library, else the library in the user's cache, which is compiled if there is none of the same sources.

    Raises:
        OSError: the compilation failed.
    """
    if PACKAGED_LIBRARY.exists():
        return PACKAGED_LIBRARY
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netaware"
    target = cache / f"search-{_digest_sources()}.so"
    if not target.exists():
        compile_library(target)
    return target


def _digest_sources() -> str:
    digest = hashlib.sha256(" ".join(_COMPILER_FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
