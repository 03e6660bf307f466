"""``python -m lab.realnode.registry FOLDER HOST:PORT``: the read-only registry that real nodes pull from.

It serves the lab's image store (`lab.realnode.images`) in place of every other registry. It implements the pull part of the OCI
Distribution Specification 1.1.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from kubekit import logs
from kubekit.runtime import run_program
from lab.realnode.images import MANIFEST, ImageReference, ImageStore

_DEFAULT_REGISTRY = "docker.io"


class Registry:
    """Request handlers of the registry; images may be added to the store meanwhile."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def application(self) -> web.Application:
        """The routes of the specification."""
        app = web.Application()
        app.router.add_get("/v2/", self._version)
        app.router.add_get("/v2/{repository:.+}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{repository:.+}/blobs/{digest}", self._blob)
        return app

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        reference = request.match_info["reference"]
        if ":" in reference:
            return self._file(reference, MANIFEST)
        # In ns, containerd names the registry of the image, for which this one is the mirror.
        registry = request.query.get("ns", _DEFAULT_REGISTRY)
        tag = self._store.tag_path(ImageReference(registry, request.match_info["repository"], reference))
        if not tag.resolve().is_relative_to(self._store.folder.resolve() / "tags") or not tag.is_file():
            return _error(
                "MANIFEST_UNKNOWN", f"this lab has no image {registry}/{request.match_info['repository']}:{reference}"
            )
        return self._file(tag.read_text(), MANIFEST)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        return self._file(request.match_info["digest"], "application/octet-stream")

    def _file(self, digest: str, media_type: str) -> web.StreamResponse:
        try:
            path = self._store.blob_path(digest)
        except ValueError as error:
            return _error("DIGEST_INVALID", str(error))
        if not path.is_file():
            return _error("BLOB_UNKNOWN", digest)
        return web.FileResponse(path, headers={"Content-Type": media_type, "Docker-Content-Digest": digest})


def _error(code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=404)


async def serve(folder: Path, host: str, port: int) -> None:
    """Serve until cancelled."""
    runner = web.AppRunner(Registry(ImageStore(folder)).application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main(argv: list[str]) -> int:
    """Run until SIGTERM; return 2 on wrong usage."""
    host, _, port = argv[-1].rpartition(":") if len(argv) == 2 else ("", "", "")
    if not host or not port.isdecimal():
        print("usage: python -m lab.realnode.registry FOLDER HOST:PORT", file=sys.stderr)
        return 2
    logs.configure(level="warning")
    return run_program(lambda: serve(Path(argv[0]), host.strip("[]"), int(port)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
