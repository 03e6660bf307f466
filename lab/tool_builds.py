"""What only tests and releases need, from Go modules: Helm and actionlint, built; the Prometheus operator's definitions, as published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.build import Binary, Module, UpstreamModule, find_or_build, find_or_fetch_sources
from lab.progress import Progress

HELM = Module(
    name="helm",
    folder=Path(__file__).parent / "helm",
    binaries=(Binary("helm", "helm.sh/helm/v4/cmd/helm", 90),),
    pins="helm.sh/helm/v4",
    link_flags=lambda version: f"-s -w -X helm.sh/helm/v4/internal/version.version={version}",
)
ACTIONLINT = Module(
    name="actionlint",
    folder=Path(__file__).parent / "actionlint",
    binaries=(Binary("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", 8),),
    pins="github.com/rhysd/actionlint",
    link_flags=lambda version: f"-s -w -X github.com/rhysd/actionlint.version={version.lstrip('v')}",
)
PROMETHEUS_OPERATOR = UpstreamModule(
    name="prometheus-operator",
    binaries=(),
    path="github.com/prometheus-operator/prometheus-operator",
    version="v0.92.1",
    checksum="h1:rHWuFo6SVya4FBSCNg2DCzyc4xAv54zk3eDTzp5mQZc=",
    go_version=(1, 21),
)


def find_or_fetch_operator_definitions(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The CustomResourceDefinitions of the Prometheus operator, as its module publishes them. Raises BuildError."""
    folder = find_or_fetch_sources(PROMETHEUS_OPERATOR, environ) / "example" / "prometheus-operator-crd"
    return sorted(folder.glob("*.yaml"))


def find_or_build_tool(
    module: Module, progress: Progress | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """The file of a module's one program: from PATH, else from the cache, else built.

    Args:
        module: `HELM` or `ACTIONLINT`.
        progress: as for `find_or_build`.
        environ: read for PATH and the XDG directories, and passed on to Go.

    Raises:
        BuildError: a build failed, or no usable Go could be found or installed.
    """
    on_path = shutil.which(module.name, path=environ.get("PATH"))
    return Path(on_path) if on_path else find_or_build(progress, environ, module)[module.name]
