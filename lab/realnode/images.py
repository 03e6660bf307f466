"""The images that the lab's registry serves, created without a container engine.

The store is a folder: ``blobs/<digest>`` and ``tags/<registry>/<repository>/<tag>``, a file with a manifest's digest.
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

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
"""Go's name of this machine's architecture, which Kubernetes and images use."""


@dataclass(frozen=True)
class ImageReference:
    """A complete name of an image, such as ``docker.io/library/netaware-agent:0.1.0``."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Parse a name as containerd does: the default registry is ``docker.io``, with the default folder ``library``."""
        path, _, tag = text.rpartition(":") if ":" in text.rpartition("/")[2] else (text, "", "latest")
        first, slash, rest = path.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return cls(first, rest, tag)
        return cls("docker.io", path if slash else f"library/{path}", tag)


class ImageStore:
    """The images of one lab."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True, exist_ok=True)

    def blob_path(self, digest: str) -> Path:
        """Path of a blob. Raises ValueError for an invalid digest."""
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
            raise ValueError(f"{digest!r} is no sha256 digest")
        return self.folder / "blobs" / value

    def tag_path(self, reference: ImageReference) -> Path:
        """Path of the file with the digest of the name's manifest."""
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
            layer.add(program, arcname=entrypoint.lstrip("/"))
        data = buffer.getvalue()
        layer_digest = self._put(data)
        config = {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": [entrypoint], "User": "0:0"},
        }
        encoded = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": self._put(encoded), "size": len(encoded)},
            "layers": [{"mediaType": _LAYER, "digest": layer_digest, "size": len(data)}],
        }
        self._put_tag(name, self._put(json.dumps(manifest).encode()))

    def add_oci_layout(self, name: str, layout: Path) -> None:
        """Add the image of an OCI image layout, as `buildah push oci:FOLDER` writes it; blobs are linked, not copied."""
        index = json.loads((layout / "index.json").read_text())
        digest = str(index["manifests"][0]["digest"])
        for blob in (layout / "blobs" / "sha256").iterdir():
            target = self.folder / "blobs" / blob.name
            if not target.exists():
                target.symlink_to(blob)
        self._put_tag(name, digest)

    def _put(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        write_atomically(self.blob_path(digest), data)
        return digest

    def _put_tag(self, name: str, digest: str) -> None:
        write_atomically(self.tag_path(ImageReference.parse(name)), digest.encode())
