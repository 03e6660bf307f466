"""Finds or builds Prometheus and promtool, so that rules and alerts are tried on the program that will run them.

The Go module lab/prometheus pins the version. Of the service discoveries only Kubernetes' is built in, which halves the
build; the web interface is not part of the Go module and not needed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.build import Binaries, Binary, Module, find_or_build
from lab.progress import Progress


def _link_flags(version: str) -> str:
    # Prometheus 3.14.0 is version v0.314.0 of the Go module: its major and minor share one number.
    minor, patch = version.lstrip("v").split(".")[1:3]
    release = f"{int(minor) // 100}.{int(minor) % 100}.{patch}"
    return f"-s -w -X github.com/prometheus/common/version.Version={release}"


PROMETHEUS = Module(
    name="prometheus",
    folder=Path(__file__).parent / "prometheus",
    binaries=(
        Binary("prometheus", "github.com/prometheus/prometheus/cmd/prometheus", 110),
        Binary("promtool", "github.com/prometheus/prometheus/cmd/promtool", 5),
    ),
    pins="github.com/prometheus/prometheus",
    link_flags=_link_flags,
    tags="remove_all_sd,enable_kubernetes_sd",
)


def find_or_build_prometheus(
    progress: Progress | None = None, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Path]:
    """The files of ``prometheus`` and ``promtool``: both from PATH when both are there, else from the cache, else built.

    Args:
        progress: as for `find_or_build`.
        environ: read for PATH and the XDG directories, and passed on to Go.

    Raises:
        BuildError: a build failed, or no usable Go could be found or installed.
    """
    on_path = {p.name: shutil.which(p.name, path=environ.get("PATH")) for p in PROMETHEUS.binaries}
    if all(on_path.values()):
        return {name: Path(path) for name, path in on_path.items() if path}
    built: Binaries = find_or_build(progress, environ, PROMETHEUS)
    return built.paths
