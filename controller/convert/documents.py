"""Splits documents into objects: Lists, lists of one kind, arrays, nested in each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]


def objects_in(document: object, left_out: list[str]) -> Iterator[Document]:
    """The objects of a document, which may be one object, an array, a List, or a list of one kind such as NodeList.

    Items of a list of one kind get its kind and apiVersion if they have none, as items from the API server.

    Args:
        document: as a reader of YAML or JSON gives it.
        left_out: gets a message for each item that is no object; null is ignored.
    """
    if isinstance(document, list):
        for item in document:
            yield from objects_in(item, left_out)
    elif isinstance(document, dict):
        kind = document.get("kind")
        if isinstance(document.get("items"), list) and (not kind or str(kind).endswith("List")):
            head = {"apiVersion": document.get("apiVersion"), "kind": str(kind or "").removesuffix("List")}
            for item in document["items"]:
                yield from objects_in(_headed(item, head), left_out)
        else:
            yield document
    elif document is not None:
        left_out.append(f"left out: a {type(document).__name__} where an object should be")


def _headed(item: object, head: Document) -> object:
    """An item that says its kind, or leaves that to its list."""
    if not isinstance(item, dict) or not head["kind"] or str(item.get("kind") or "") not in {"", head["kind"]}:
        return item
    missing = {name: text for name, text in head.items() if text and not item.get(name)}
    return {**missing, **{k: v for k, v in item.items() if k not in missing}} if missing else item
