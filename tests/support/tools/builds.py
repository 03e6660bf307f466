"""Builds programs from Go modules that only tests and releases need, and finds the Prometheus operator's definitions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.build import (
    CONTROL_PLANE,
    Module,
    UpstreamModule,
    build_kubernetes_link_flags,
    find_go,
    find_or_build_binaries,
)

OLDEST_CONTROL_PLANE = Module(
    name="controlplane",
    folder=Path(__file__).parent / "controlplane-1.34",
    programs={name: package for name, package in CONTROL_PLANE.programs.items() if name.startswith("kube-")},
    version_module="k8s.io/kubernetes",
    link_flags=build_kubernetes_link_flags,
)
"""Programs of the oldest supported Kubernetes; etcd, kwok and kubectl are those of the newest."""
HELM = Module(
    name="helm",
    folder=Path(__file__).parent / "helm",
    programs={"helm": "helm.sh/helm/v4/cmd/helm"},
    version_module="helm.sh/helm/v4",
    link_flags=lambda version: f"-s -w -X helm.sh/helm/v4/internal/version.version={version}",
)


def _prometheus_flags(version: str) -> str:
    # Prometheus 3.14.0 is version v0.314.0 of the Go module: its major and minor share one number.
    minor, patch = version.lstrip("v").split(".")[1:3]
    release = f"{int(minor) // 100}.{int(minor) % 100}.{patch}"
    return f"-s -w -X github.com/prometheus/common/version.Version={release}"


# Only the service discovery of Kubernetes is built, which halves the build time. The Go module has no web interface.
PROMETHEUS = Module(
    name="prometheus",
    folder=Path(__file__).parent / "prometheus",
    programs={
        "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
        "promtool": "github.com/prometheus/prometheus/cmd/promtool",
    },
    version_module="github.com/prometheus/prometheus",
    link_flags=_prometheus_flags,
    tags="remove_all_sd,enable_kubernetes_sd",
)
PROMETHEUS_OPERATOR = UpstreamModule(
    name="prometheus-operator",
    programs={},
    path="github.com/prometheus-operator/prometheus-operator",
    version="v0.92.1",
    checksum="h1:rHWuFo6SVya4FBSCNg2DCzyc4xAv54zk3eDTzp5mQZc=",
    go_version=(1, 21),
)


def find_or_fetch_operator_definitions() -> list[Path]:
    """The CustomResourceDefinitions of the Prometheus operator, as its module publishes them. Raises BuildError."""
    source = PROMETHEUS_OPERATOR.source_folder(find_go(PROMETHEUS_OPERATOR.go_version))
    return sorted(source.glob("example/prometheus-operator-crd/*.yaml"))


def find_or_build_tool(module: Module) -> Path:
    """The file of the program that has its module's name; see `find_or_build_tools`."""
    return find_or_build_tools(module)[module.name]


def find_or_build_tools(module: Module) -> Mapping[str, Path]:
    """Paths of a module's programs: from PATH if it has all, else from the cache, else built. Raises BuildError."""
    on_path = {name: shutil.which(name) for name in module.programs}
    paths = {name: Path(path) for name, path in on_path.items() if path}
    return paths if len(paths) == len(on_path) else find_or_build_binaries(module).paths
