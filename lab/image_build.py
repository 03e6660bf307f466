"""Builds our images from the repository's Dockerfiles with buildah in chroot isolation, so without a container engine's daemon.

Only the base image differs from the shipped one: ``python:3.13-slim-trixie`` cannot be pulled without a registry, so a Debian 13 made
by debootstrap, with Debian's Python 3.13, gets its name. This base, and no Dockerfile, contains this machine's mirror, certificates
and settings of pip.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.build import lock_build, run_step
from lab.debian import UnpackedPackages, find_archives, find_or_unpack_packages
from lab.errors import UnsupportedError
from lab.network import find_missing_privileges
from lab.paths import cache_dir
from lab.progress import Progress
from netperf import contract

ROOT = Path(__file__).parents[1]
BASE = "docker.io/library/python:3.13-slim-trixie"
STAND_IN = "a Debian 13 by debootstrap stands in for the pull of python:3.13-slim-trixie"
SUITE = "trixie"
_BUILD_TOOLS = ("buildah", "debootstrap")
_BASE_PACKAGES = ("python3", "python3-pip", "python-is-python3", "ca-certificates")
# Folders that slim images do not have.
_REMOVED_FOLDERS = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_BASE_SETTINGS = "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_SYSTEM_CERTS=1"
_CERTIFICATES = "usr/local/share/ca-certificates"
# Overlays /usr with the tools' packages, in a mount namespace: buildah runs itself without LD_LIBRARY_PATH. A build that is killed
# leaves no mount.
_WITH_TOOLS = 'mount -t overlay netaware-lab -o "lowerdir=$1/usr:/usr" /usr && shift && exec "$@"'
# Builds of an image that the cache keeps, newest first.
_MAX_BUILDS = 4


@dataclass(frozen=True)
class Recipe:
    """One of our images.

    Attributes:
        name: name of the image in the manifests, without a tag.
        dockerfile: path of the Dockerfile, relative to the folder.
        folder: the build's context.
    """

    name: str
    dockerfile: str
    folder: Path

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that the build copies: the sources of its COPY lines."""
        lines = [line.split() for line in (self.folder / self.dockerfile).read_text().splitlines()]
        copied = [line[1:-1] for line in lines if line[:1] == ["COPY"] and not line[1].startswith("--from")]
        return tuple(source.rstrip("/") for sources in copied for source in sources)


AGENT = Recipe(contract.AGENT, "Dockerfile.agent", ROOT)
CONTROLLER = Recipe(contract.CONTROLLER, "Dockerfile.controller", ROOT)
IMAGE_TAG = "0.0.0"
"""The images' tag in the manifests, and of a build without git."""


def find_or_build_image(recipe: Recipe) -> Path:
    """The image as an OCI layout, from the cache or built; a build needs root and the Internet. Prints progress on stderr.

    Raises:
        UnsupportedError: this machine lacks something.
        BuildError: a build failed.
    """
    home = cache_dir() / "images"
    layout = home / f"{recipe.name}-{IMAGE_TAG}-{fingerprint(recipe)}"
    if (layout / "index.json").exists():
        os.utime(layout)
        return layout
    if find_missing_privileges():
        raise UnsupportedError(f"building images needs root: {recipe.name} is not in {home}")
    home.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    with lock_build(home / "lock", progress, "images"):
        if not (layout / "index.json").exists():
            _Builder(home, progress).build(recipe, layout)
            _remove_old_builds(home, recipe.name)
    return layout


def fingerprint(recipe: Recipe) -> str:
    """Twelve hex digits that change with every file that the build reads."""
    digest = hashlib.sha256()
    for path in _source_files(recipe):
        digest.update(f"{path.relative_to(recipe.folder)}\0{path.stat().st_mode}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _source_files(recipe: Recipe) -> Iterator[Path]:
    for source in (recipe.dockerfile, *recipe.sources):
        path = recipe.folder / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _remove_old_builds(home: Path, name: str) -> None:
    built = sorted(home.glob(f"{name}-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in built[_MAX_BUILDS:]:
        shutil.rmtree(folder, ignore_errors=True)


class _Builder:
    """Runs buildah with a storage of its own, below the cache."""

    def __init__(self, home: Path, progress: Progress) -> None:
        self._home, self._progress = home, progress
        self._log = home / "build.log"
        self._tools: UnpackedPackages = find_or_unpack_packages("images", _BUILD_TOOLS, progress=progress)
        settings = home / "settings"
        settings.mkdir(exist_ok=True)
        (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (settings / "registries.conf").write_text("")
        self._env = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "overlay",
            "CONTAINERS_REGISTRIES_CONF": str(settings / "registries.conf"),
        }
        self._policy = f"--signature-policy={settings / 'policy.json'}"

    def build(self, recipe: Recipe, layout: Path) -> None:
        """Build the image, and before it the base if it is missing; write the OCI layout."""
        self._build_base()
        name = f"docker.io/library/{recipe.name}:{IMAGE_TAG}"
        with self._step(f"building {recipe.name}:{IMAGE_TAG}"), _build_context(recipe) as context:
            options = [self._policy, "--layers", "--pull-never", f"--build-arg=VERSION={IMAGE_TAG}", "-t", name]
            self._buildah("bud", *options, "-f", str(context / recipe.dockerfile), str(context))
            draft = layout.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            self._buildah("push", self._policy, name, f"oci:{draft}:{IMAGE_TAG}")
            shutil.rmtree(layout, ignore_errors=True)
            draft.rename(layout)

    def _build_base(self) -> None:
        marker = self._home / "base"
        recipe = f"{BASE} {SUITE} {' '.join((*_BASE_PACKAGES, *_REMOVED_FOLDERS))} {_BASE_SETTINGS}"
        if marker.exists() and marker.read_text() == recipe:
            return
        self._progress.note(f"{STAND_IN}, once")
        with self._step("debootstrap of Debian 13"), tempfile.TemporaryDirectory(dir=self._home) as scratch:
            tree = Path(scratch) / "root"
            keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
            options = [f"--keyring={keyring}"] if keyring.exists() else []
            options.append(f"--include={','.join(_BASE_PACKAGES)}")
            self._run(["debootstrap", "--variant=minbase", *options, SUITE, str(tree), *_mirror()])
            _copy_machine_settings(tree)
            self._run(["chroot", str(tree), "update-ca-certificates"])
            for folder in _REMOVED_FOLDERS:
                shutil.rmtree(tree / folder, ignore_errors=True)
                (tree / folder).mkdir()
            (Path(scratch) / "Dockerfile").write_text(f"FROM scratch\nCOPY root/ /\nENV {_BASE_SETTINGS}\n")
            self._buildah("bud", self._policy, "-t", BASE, "-f", f"{scratch}/Dockerfile", scratch)
        marker.write_text(recipe)

    def _buildah(self, verb: str, *arguments: str) -> None:
        storage = [f"--root={self._home / 'storage'}", f"--runroot={self._home / 'run'}"]
        self._run(["buildah", *storage, verb, *arguments])

    def _run(self, argv: list[str]) -> None:
        wrapped = ["unshare", "--mount", "--", "sh", "-c", _WITH_TOOLS, "sh", str(self._tools.root), *argv]
        with self._log.open("ab") as output:
            run_step(wrapped, self._home, output, log=self._log, progress=self._progress, env=self._env)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        self._progress.begin(what)
        yield
        self._progress.end()


def _mirror() -> list[str]:
    """The machine's mirror if the machine runs Debian; empty for debootstrap's default."""
    is_debian = platform.freedesktop_os_release().get("ID") == "debian"
    return [uri for uri, _ in find_archives()][:1] if is_debian else []


def _copy_machine_settings(tree: Path) -> None:
    """Copy settings with which this machine reaches package indexes."""
    for marker in tree.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        # In the replaced image pip may install into Python.
        marker.unlink()
    for name in ("etc/resolv.conf", "etc/pip.conf"):
        if (source := Path("/") / name).exists():
            shutil.copy(source, tree / name)
    certificates = Path("/") / _CERTIFICATES
    for file in certificates.glob("*.crt") if certificates.is_dir() else ():
        shutil.copy(file, tree / _CERTIFICATES / file.name)


@contextmanager
def _build_context(recipe: Recipe) -> Iterator[Path]:
    """A copy of the build's context with only the files that the build reads, as in a fresh clone."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in _source_files(recipe):
            target = Path(scratch) / file.relative_to(recipe.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        yield Path(scratch)
