"""Compiles the planner's search into wheels. An editable install compiles it at its first use; the agent's image has no planner.

CC may name a cross compiler: the wheel is for the platform of what was compiled. NETAWARE_PURE=1 makes a wheel for any platform, without it.
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

_PLAN = Path("controller/scheduler/placement")
# e_machine of ELF files.
_MACHINES = {62: "x86_64", 183: "aarch64"}


def platform_of(library: bytes) -> str:
    """The platform tag of a library that needs nothing but glibc: its processor, and the newest glibc symbol that it uses (PEP 600)."""
    machine = _MACHINES.get(int.from_bytes(library[18:20], "little"))
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    if library[:4] != b"\x7fELF" or machine is None or not minors:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"manylinux_2_{max(17, *minors)}_{machine}"


class SearchHook(BuildHookInterface):
    """See https://hatch.pypa.io/latest/plugins/build-hook/custom/."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as made for that platform; any Python 3 will do."""
        script = Path(self.root) / _PLAN / "native_library.py"
        if version == "editable" or not script.exists() or os.environ.get("NETAWARE_PURE"):
            return
        spec = importlib.util.spec_from_file_location("compile_search", script)
        if spec is None or spec.loader is None:
            msg = f"cannot load {script}"
            raise ImportError(msg)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._folder = tempfile.TemporaryDirectory()
        made = Path(self._folder.name) / module.PACKAGED_LIBRARY.name
        module.compile_library(made)
        build_data["force_include"][str(made)] = str(_PLAN / "native" / made.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(made.read_bytes())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The compiled file is in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
