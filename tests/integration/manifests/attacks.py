"""Sends dry-run requests for every field of an object.

A dry run goes through authentication, RBAC, validation and admission, and stores nothing. A changed field is read from the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError

AT_ONCE = 24
Json = dict[str, Any]


async def dry_run(
    client: Client, method: str, path: str, body: Any = None, content: str = MERGE_PATCH
) -> tuple[str, bytes]:
    """Send one request that stores nothing, again while the server is too busy.

    Returns:
        Status and text of the refusal, empty when it was let through; and the answer.
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


class Schemas:
    """The API's types, from the API server's own OpenAPI documents."""

    def __init__(self, document: Json) -> None:
        self._known: Json = document["components"]["schemas"]

    @classmethod
    async def of(cls, admin: Client, prefix: str) -> Schemas:
        """Schemas of one group and version, such as ``/api/v1``."""
        return cls(msgspec.json.decode(await admin.request("GET", f"/openapi/v3{prefix}")))

    def fields(self, name: str) -> Mapping[str, Json]:
        """Fields of a type, by its full name, with their schemas."""
        found: Mapping[str, Json] = self._known[name]["properties"]
        return found

    def value(self, schema: Json, old: Any, depth: int = 0) -> Any:
        """Some value of that schema that is not the old one."""
        for part in schema.get("allOf", ()):
            schema = {**part, **schema}
        if "$ref" in schema:
            schema = self._known[schema["$ref"].rpartition("/")[2]]
        kind = schema.get("type")
        if kind == "array":
            return [self.value(schema["items"], None, depth + 1)]
        if kind == "object":
            if "additionalProperties" in schema:
                return {"attack": self.value(schema["additionalProperties"], None, depth + 1)}
            wanted = schema.get("required") or list(schema.get("properties", {}))[: 2 if depth < 4 else 0]
            return {key: self.value(schema["properties"][key], None, depth + 1) for key in wanted}
        if kind == "boolean":
            return not old
        if kind in {"integer", "number"}:
            return 7 if old != 7 else 8
        if schema.get("format") == "date-time":
            return "2001-01-01T00:00:00Z"
        return "attack" if kind == "string" else "7"


async def changeable(client: Client, path: str, before: Json, schemas: Schemas, types: Mapping[str, str]) -> set[str]:
    """Which fields of an object a token can change by a patch.

    Args:
        client: with the stolen token.
        path: of the object or its subresource.
        before: the object.
        schemas: of its API group.
        types: section of the object (``metadata``, ``spec``, ``status``, or "" for itself) -> full name of its type.
    """
    limit, changed = asyncio.Semaphore(AT_ONCE), set()

    async def one(section: str, name: str, schema: Json) -> None:
        old = (before.get(section, {}) if section else before).get(name)
        value = schemas.value(schema, old)
        patch = {section: {name: value}} if section else {name: value}
        async with limit:
            refusal, answer = await dry_run(client, "PATCH", path, patch)
        if not refusal:
            after: Json = msgspec.json.decode(answer)
            if (after.get(section, {}) if section else after).get(name) != old:
                changed.add(f"{section}.{name}".lstrip("."))

    # The API server's own bookkeeping, and the sections themselves.
    skipped = {"managedFields", "resourceVersion", "generation", "metadata", "spec", "status", "apiVersion", "kind"}
    jobs = [
        one(section, name, schema)
        for section, type_name in types.items()
        for name, schema in schemas.fields(type_name).items()
        if name not in skipped
    ]
    await asyncio.gather(*jobs)
    return changed
