"""Compiles the placement search into wheels. An editable install compiles it at its first use; the agent's image does not contain it.

CC may name a cross compiler: the wheel's platform is that of the compiled library. NETAWARE_PURE=1 builds a wheel for any platform,
without the library.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACEMENT = Path("controller/scheduler/placement")
# manylinux_2_17 is the oldest platform tag that installers know for both processors.
_OLDEST_GLIBC_MINOR = 17
# e_machine in the header of an ELF file -> processor.
_PROCESSORS = {62: "x86_64", 183: "aarch64"}


def build_platform_tag(library: bytes) -> str:
    """Return the platform tag (PEP 600) of a library that needs only glibc: its processor, and its newest glibc symbol."""
    processor = _PROCESSORS.get(int.from_bytes(library[18:20], "little"))
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    if library[:4] != b"\x7fELF" or processor is None or not minors:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"manylinux_2_{max(_OLDEST_GLIBC_MINOR, *minors)}_{processor}"


class SearchHook(BuildHookInterface):
    """Hook of hatchling, see https://hatch.pypa.io/latest/plugins/build-hook/custom/."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library into the wheel, and tag the wheel with the library's platform and any Python 3."""
        script = Path(self.root) / _PLACEMENT / "native_library.py"
        if version == "editable" or not script.exists() or os.environ.get("NETAWARE_PURE"):
            return
        spec = importlib.util.spec_from_file_location("compile_search", script)
        if spec is None or spec.loader is None:
            msg = f"cannot load {script}"
            raise ImportError(msg)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / module.PACKAGED_LIBRARY.name
        module.compile_library(library)
        build_data["force_include"][str(library)] = str(_PLACEMENT / "native" / library.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build_platform_tag(library.read_bytes())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the compiled library, which is now in the wheel."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
