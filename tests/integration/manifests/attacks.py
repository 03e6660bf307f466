"""Sends dry-run requests for every field of an object; they pass authentication, RBAC, validation and admission."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import PODS

MAX_CONCURRENT_REQUESTS = 24
Json = dict[str, Any]


async def dry_run(
    client: Client, method: str, path: str, body: Any = None, content: str = MERGE_PATCH
) -> tuple[str, bytes]:
    """Send a request that stores nothing, and repeat it while the server is too busy.

    Returns:
        Status and message of the refusal, empty if it was allowed; and the response.
    """
    query = "" if method == "GET" else "?dryRun=All"
    kind = content if method == "PATCH" else "application/json"
    while True:
        try:
            return "", await client.request(method, path + query, body=body, content_type=kind)
        except ApiError as error:
            if error.status != 429:
                return f"{error.status} {error.message}", b""
        await asyncio.sleep(0.2)


async def dry_run_pod(client: Client, namespace: str, pod: Json) -> tuple[str, bytes]:
    """Create a pod as `dry_run`, after its namespace has got a service account."""
    while True:
        refusal, response = await dry_run(client, "POST", PODS.path(namespace), pod)
        if "service account" not in refusal:
            return refusal, response
        await asyncio.sleep(0.1)


class Schemas:
    """Types of one API group and version, from the API server's OpenAPI document."""

    def __init__(self, document: Json) -> None:
        self._schema_by_type: Json = document["components"]["schemas"]

    @classmethod
    async def read(cls, admin: Client, prefix: str) -> Schemas:
        """Schemas of one group and version, such as ``/api/v1``."""
        return cls(msgspec.json.decode(await admin.request("GET", f"/openapi/v3{prefix}")))

    def fields(self, name: str) -> Mapping[str, Json]:
        """Schemas of a type's fields; ``name`` is its full name."""
        fields: Mapping[str, Json] = self._schema_by_type[name]["properties"]
        return fields

    def make_other_value(self, schema: Json, old: Any, depth: int = 0) -> Any:
        """Return a value that a schema allows and that differs from ``old``."""
        for part in schema.get("allOf", ()):
            schema = {**part, **schema}
        if "$ref" in schema:
            schema = self._schema_by_type[schema["$ref"].rpartition("/")[2]]
        kind = schema.get("type")
        if kind == "array":
            return [self.make_other_value(schema["items"], None, depth + 1)]
        if kind == "object":
            if "additionalProperties" in schema:
                return {"attack": self.make_other_value(schema["additionalProperties"], None, depth + 1)}
            required = schema.get("required") or list(schema.get("properties", {}))[: 2 if depth < 4 else 0]
            return {key: self.make_other_value(schema["properties"][key], None, depth + 1) for key in required}
        if kind == "boolean":
            return not old
        if kind in {"integer", "number"}:
            return 7 if old != 7 else 8
        if schema.get("format") == "date-time":
            return "2001-01-01T00:00:00Z"
        return "attack" if kind == "string" else "7"


async def find_patchable_fields(
    client: Client, path: str, before: Json, schemas: Schemas, types: Mapping[str, str]
) -> set[str]:
    """Find the fields of an object that a token can change by a patch.

    Args:
        client: has the stolen token.
        path: of the object or its subresource.
        before: the object.
        schemas: of its API group.
        types: full name of the type of a section: ``metadata``, ``spec``, ``status``, or "" for the object.
    """
    limiter, changed_fields = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS), set()

    async def try_field(section: str, name: str, schema: Json) -> None:
        old = (before.get(section, {}) if section else before).get(name)
        other_value = schemas.make_other_value(schema, old)
        patch = {section: {name: other_value}} if section else {name: other_value}
        async with limiter:
            refusal, response = await dry_run(client, "PATCH", path, patch)
        if not refusal:
            after: Json = msgspec.json.decode(response)
            if (after.get(section, {}) if section else after).get(name) != old:
                changed_fields.add(f"{section}.{name}".lstrip("."))

    # The API server sets these itself, or they are the sections.
    skipped = {"managedFields", "resourceVersion", "generation", "metadata", "spec", "status", "apiVersion", "kind"}
    attempts = [
        try_field(section, name, schema)
        for section, type_name in types.items()
        for name, schema in schemas.fields(type_name).items()
        if name not in skipped
    ]
    await asyncio.gather(*attempts)
    return changed_fields
