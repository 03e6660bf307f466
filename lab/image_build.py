"""Builds our images from the repository's Dockerfiles with buildah in chroot isolation, which needs no container engine.

Only the base image differs from that of a release: without a registry ``python:3.13-slim-trixie`` cannot be pulled, so a Debian 13 with
Python 3.13, made by debootstrap, gets this name. This machine's mirror, certificates and pip settings are in this base image only.
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
from lab.network import find_missing_privilege
from lab.paths import cache_dir
from lab.progress import print_line
from netperf import contract

_ROOT = Path(__file__).parents[1]
_BASE_IMAGE = "docker.io/library/python:3.13-slim-trixie"
_SUITE = "trixie"
_BUILD_TOOLS = ("buildah", "debootstrap")
_BASE_PACKAGES = ("python3", "python3-pip", "python-is-python3", "ca-certificates")
# Folders that a slim image does not have.
_REMOVED_FOLDERS = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
]
_BASE_SETTINGS = "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_SYSTEM_CERTS=1"
_CERTIFICATES = "usr/local/share/ca-certificates"
# Mounts the tools' packages over /usr in a mount namespace, because buildah starts itself again without LD_LIBRARY_PATH. The kernel
# removes the mount with the last process of a build.
_WITH_TOOLS = 'mount -t overlay netaware-lab -o "lowerdir=$1/usr:/usr" /usr && shift && exec "$@"'
# Number of builds of an image that the cache keeps.
_MAX_BUILDS = 4


@dataclass(frozen=True)
class ImageRecipe:
    """How one of our images is built.

    Attributes:
        name: name of the image in the manifests, without a tag.
        dockerfile: path of the Dockerfile, relative to the folder.
        folder: folder of the build's context.
    """

    name: str
    dockerfile: str
    folder: Path

    @property
    def sources(self) -> tuple[str, ...]:
        """Files and folders that the build copies: the sources of the Dockerfile's COPY lines."""
        lines = [line.split() for line in (self.folder / self.dockerfile).read_text().splitlines()]
        copy_lines = [line[1:-1] for line in lines if line[:1] == ["COPY"] and not line[1].startswith("--from")]
        return tuple(source.rstrip("/") for sources in copy_lines for source in sources)


AGENT = ImageRecipe(contract.AGENT, "Dockerfile.agent", _ROOT)
CONTROLLER = ImageRecipe(contract.CONTROLLER, "Dockerfile.controller", _ROOT)
IMAGE_TAG = "0.0.0"
"""The images' tag in the manifests, and of a build without git."""


def find_or_build_image(recipe: ImageRecipe) -> Path:
    """Return the image's OCI layout, from the cache or built; a build needs root and the Internet. Prints progress on stderr.

    Raises BuildError if a build fails, and UnsupportedError, which says what is missing, if this machine cannot build.
    """
    cache = cache_dir() / "images"
    layout = cache / f"{recipe.name}-{IMAGE_TAG}-{fingerprint_recipe(recipe)}"
    if (layout / "index.json").exists():
        os.utime(layout)
        return layout
    if find_missing_privilege():
        raise UnsupportedError(f"building images needs root: {recipe.name} is not in {cache}")
    cache.mkdir(parents=True, exist_ok=True)
    with lock_build(cache / "lock", "images"):
        if not (layout / "index.json").exists():
            _Builder(cache).build(recipe, layout)
            _remove_old_builds(cache, recipe.name)
    return layout


def fingerprint_recipe(recipe: ImageRecipe) -> str:
    """Return twelve hex digits that change with every file that the build reads."""
    digest = hashlib.sha256()
    for path in _list_source_files(recipe):
        digest.update(f"{path.relative_to(recipe.folder)}\0{path.stat().st_mode}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _list_source_files(recipe: ImageRecipe) -> Iterator[Path]:
    for source in (recipe.dockerfile, *recipe.sources):
        path = recipe.folder / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _remove_old_builds(cache: Path, name: str) -> None:
    newest_first = sorted(cache.glob(f"{name}-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in newest_first[_MAX_BUILDS:]:
        shutil.rmtree(folder, ignore_errors=True)


class _Builder:
    """Runs buildah with its storage below the cache."""

    def __init__(self, cache: Path) -> None:
        self._cache, self._log = cache, cache / "build.log"
        self._tools: UnpackedPackages = find_or_unpack_packages("images", _BUILD_TOOLS)
        settings = cache / "settings"
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

    def build(self, recipe: ImageRecipe, layout: Path) -> None:
        """Build the image, after its base image if that is missing; write the OCI layout."""
        self._build_base()
        name = f"docker.io/library/{recipe.name}:{IMAGE_TAG}"
        print_line(f"building {recipe.name}:{IMAGE_TAG}")
        with _build_context(recipe) as context:
            options = [self._policy, "--layers", "--pull-never", f"--build-arg=VERSION={IMAGE_TAG}", "-t", name]
            self._run_buildah("bud", *options, "-f", str(context / recipe.dockerfile), str(context))
            draft = layout.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            self._run_buildah("push", self._policy, name, f"oci:{draft}:{IMAGE_TAG}")
            shutil.rmtree(layout, ignore_errors=True)
            draft.rename(layout)

    def _build_base(self) -> None:
        marker = self._cache / "base"
        description = f"{_BASE_IMAGE} {_SUITE} {' '.join((*_BASE_PACKAGES, *_REMOVED_FOLDERS))} {_BASE_SETTINGS}"
        if marker.exists() and marker.read_text() == description:
            return
        print_line(f"a Debian 13 by debootstrap replaces {_BASE_IMAGE}, once")
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            tree = Path(scratch) / "root"
            keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
            options = [f"--keyring={keyring}"] if keyring.exists() else []
            options.append(f"--include={','.join(_BASE_PACKAGES)}")
            self._run_with_tools(
                "debootstrap", ["debootstrap", "--variant=minbase", *options, _SUITE, str(tree), *_find_mirror()]
            )
            _copy_machine_settings(tree)
            self._run_with_tools("update-ca-certificates", ["chroot", str(tree), "update-ca-certificates"])
            for folder in _REMOVED_FOLDERS:
                shutil.rmtree(tree / folder, ignore_errors=True)
                (tree / folder).mkdir()
            (Path(scratch) / "Dockerfile").write_text(f"FROM scratch\nCOPY root/ /\nENV {_BASE_SETTINGS}\n")
            self._run_buildah("bud", self._policy, "-t", _BASE_IMAGE, "-f", f"{scratch}/Dockerfile", scratch)
        marker.write_text(description)

    def _run_buildah(self, verb: str, *arguments: str) -> None:
        storage = [f"--root={self._cache / 'storage'}", f"--runroot={self._cache / 'run'}"]
        self._run_with_tools(f"buildah {verb}", ["buildah", *storage, verb, *arguments])

    def _run_with_tools(self, step: str, argv: list[str]) -> None:
        wrapped = ["unshare", "--mount", "--", "sh", "-c", _WITH_TOOLS, "sh", str(self._tools.root), *argv]
        run_step(step, wrapped, self._cache, log=self._log, env=self._env)


def _find_mirror() -> list[str]:
    """Return the machine's mirror if the machine runs Debian, else nothing, for debootstrap's default."""
    is_debian = platform.freedesktop_os_release().get("ID") == "debian"
    return [uri for uri, _ in find_archives()][:1] if is_debian else []


def _copy_machine_settings(tree: Path) -> None:
    """Copy the settings with which this machine reaches package indexes into the base image."""
    for marker in tree.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        # The shipped base image lets pip install into its Python.
        marker.unlink()
    for name in ("etc/resolv.conf", "etc/pip.conf"):
        if (source := Path("/") / name).exists():
            shutil.copy(source, tree / name)
    for file in (Path("/") / _CERTIFICATES).glob("*.crt"):
        shutil.copy(file, tree / _CERTIFICATES / file.name)


@contextmanager
def _build_context(recipe: ImageRecipe) -> Iterator[Path]:
    """Yield a copy of the build's context with only the files that the build reads."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in _list_source_files(recipe):
            target = Path(scratch) / file.relative_to(recipe.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        yield Path(scratch)
