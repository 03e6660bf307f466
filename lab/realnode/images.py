"""The images that the lab's registry serves, created without a container engine.

The store is a folder of blobs, ``blobs/<digest>``, and of files with a manifest's digest, ``tags/<registry>/<repository>/<tag>``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lab.paths import write_atomically

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
DEFAULT_REGISTRY = "docker.io"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
"""This machine's architecture, as Kubernetes and image manifests name it."""


@dataclass(frozen=True)
class ImageReference:
    """A complete name of an image, such as ``docker.io/library/netaware-agent:0.1.0``."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Parse a name as containerd does: without a registry it is in ``docker.io``, and there, without a slash, in ``library``."""
        path, _, tag = text.rpartition(":") if ":" in text.rpartition("/")[2] else (text, "", "latest")
        first, slash, rest = path.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return cls(first, rest, tag)
        return cls(DEFAULT_REGISTRY, path if slash else f"library/{path}", tag)


class ImageStore:
    """The images of one lab."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True, exist_ok=True)

    def blob_path(self, digest: str) -> Path:
        """Return the path of a blob. Raises ValueError for an invalid digest."""
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
            raise ValueError(f"{digest!r} is not a sha256 digest")
        return self.folder / "blobs" / value

    def tag_path(self, reference: ImageReference) -> Path:
        """Return the path of the file with the digest of the image's manifest."""
        return self.folder / "tags" / reference.registry / reference.repository / reference.tag

    def add_program(self, name: str, program: Path) -> None:
        """Add an image of one static program, which runs as root."""
        entrypoint = f"/usr/local/bin/{program.name}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as layer:
            for folder in ("tmp", "etc"):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                layer.addfile(entry)
            layer.add(program, arcname=entrypoint.lstrip("/"))  # containerd creates its folders
        layer_data = buffer.getvalue()
        layer_digest = self._write_blob(layer_data)
        config = {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": [entrypoint], "User": "0:0"},
        }
        config_data = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": _CONFIG_TYPE, "digest": self._write_blob(config_data), "size": len(config_data)},
            "layers": [{"mediaType": _LAYER_TYPE, "digest": layer_digest, "size": len(layer_data)}],
        }
        self._write_tag(name, self._write_blob(json.dumps(manifest).encode()))

    def add_oci_layout(self, name: str, layout: Path) -> None:
        """Add the image of an OCI image layout, as `buildah push oci:FOLDER` writes it; blobs are linked, not copied."""
        index = json.loads((layout / "index.json").read_text())
        digest = str(index["manifests"][0]["digest"])
        for blob in (layout / "blobs" / "sha256").iterdir():
            target = self.folder / "blobs" / blob.name
            if not target.exists():
                target.unlink(missing_ok=True)  # a link into a build that was removed
                target.symlink_to(blob)
        self._write_tag(name, digest)

    def _write_blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        write_atomically(self.blob_path(digest), data)
        return digest

    def _write_tag(self, name: str, digest: str) -> None:
        write_atomically(self.tag_path(ImageReference.parse(name)), digest.encode())
