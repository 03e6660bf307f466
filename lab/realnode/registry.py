"""``python -m lab.realnode.registry FOLDER HOST:PORT``: the read-only registry that real nodes pull from.

It serves the lab's image store (`lab.realnode.images`) in place of all other registries, by the pull part of the OCI Distribution
Specification 1.1.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from kubekit import logs
from kubekit.runtime import run_program
from lab.realnode.images import DEFAULT_REGISTRY, MANIFEST_TYPE, ImageReference, ImageStore


class Registry:
    """Answers requests for images of a store. Each request reads the store's folder, so images may be added meanwhile."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def build_application(self) -> web.Application:
        """Return the application with the routes of the specification."""
        app = web.Application()
        app.router.add_get("/v2/", self._serve_version)
        app.router.add_get("/v2/{repository:.+}/manifests/{reference}", self._serve_manifest)
        app.router.add_get("/v2/{repository:.+}/blobs/{digest}", self._serve_blob)
        return app

    async def _serve_version(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _serve_manifest(self, request: web.Request) -> web.StreamResponse:
        reference = request.match_info["reference"]
        if ":" in reference:
            return self._build_file_response(reference, MANIFEST_TYPE)
        # This registry is the mirror of all registries; ``ns`` names the one that containerd asks for.
        registry = request.query.get("ns", DEFAULT_REGISTRY)
        tag_file = self._store.tag_path(ImageReference(registry, request.match_info["repository"], reference))
        # A tag of ``..`` would leave the folder.
        if not tag_file.resolve().is_relative_to(self._store.folder.resolve() / "tags") or not tag_file.is_file():
            return _build_error_response(
                "MANIFEST_UNKNOWN", f"this lab has no image {registry}/{request.match_info['repository']}:{reference}"
            )
        return self._build_file_response(tag_file.read_text(), MANIFEST_TYPE)

    async def _serve_blob(self, request: web.Request) -> web.StreamResponse:
        return self._build_file_response(request.match_info["digest"], "application/octet-stream")

    def _build_file_response(self, digest: str, media_type: str) -> web.StreamResponse:
        try:
            path = self._store.blob_path(digest)
        except ValueError as error:
            return _build_error_response("DIGEST_INVALID", str(error))
        if not path.is_file():
            return _build_error_response("BLOB_UNKNOWN", digest)
        return web.FileResponse(path, headers={"Content-Type": media_type, "Docker-Content-Digest": digest})


def _build_error_response(code: str, message: str) -> web.Response:
    return web.json_response({"errors": [{"code": code, "message": message}]}, status=404)


async def serve_registry(folder: Path, host: str, port: int) -> None:
    """Serve until cancelled."""
    runner = web.AppRunner(Registry(ImageStore(folder)).build_application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main(folder: str, address: str) -> int:
    """Run until SIGTERM."""
    host, _, port = address.rpartition(":")
    logs.configure(level="warning")
    return run_program(lambda: serve_registry(Path(folder), host, int(port)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
