"""Splits YAML or JSON documents into objects. Documents may be Lists, lists of one kind and arrays, also nested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]


def split_document(document: object, problems: list[str]) -> Iterator[Document]:
    """Yields the objects of a document, which may be one object, an array, a List, or a list of one kind such as NodeList.

    Items of a list of one kind get the list's kind and apiVersion if they have none, as in answers of the API server. ``problems`` gets
    a message for each item that is not an object; null is ignored.
    """
    if isinstance(document, list):
        for item in document:
            yield from split_document(item, problems)
    elif isinstance(document, dict):
        kind = document.get("kind")
        if isinstance(document.get("items"), list) and (not kind or str(kind).endswith("List")):
            type_meta = {"apiVersion": document.get("apiVersion"), "kind": str(kind or "").removesuffix("List")}
            for item in document["items"]:
                yield from split_document(_with_type_meta(item, type_meta), problems)
        else:
            yield document
    elif document is not None:
        problems.append(f"left out: {type(document).__name__} instead of an object")


def _with_type_meta(item: object, type_meta: Document) -> object:
    """The item with kind and apiVersion of its list if it has none; an item of another kind is unchanged."""
    kind = type_meta["kind"]
    if not isinstance(item, dict) or not kind or str(item.get("kind") or "") not in {"", kind}:
        return item
    added = {name: text for name, text in type_meta.items() if text and not item.get(name)}
    return added | {name: value for name, value in item.items() if name not in added} if added else item
