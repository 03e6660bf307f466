"""Splits documents into objects; documents may be Lists, lists of one kind and arrays, also nested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]


def objects_in(document: object, left_out: list[str]) -> Iterator[Document]:
    """The objects of a document, which may be one object, an array, a List, or a list of one kind such as NodeList.

    Items of a list of one kind get its kind and apiVersion if they have none, as in answers of the API server.

    Args:
        document: from a reader of YAML or JSON.
        left_out: list to which a message is added for each item that is no object; null is ignored.
    """
    if isinstance(document, list):
        for item in document:
            yield from objects_in(item, left_out)
    elif isinstance(document, dict):
        kind = document.get("kind")
        if isinstance(document.get("items"), list) and (not kind or str(kind).endswith("List")):
            type_meta = {"apiVersion": document.get("apiVersion"), "kind": str(kind or "").removesuffix("List")}
            for item in document["items"]:
                yield from objects_in(_with_kind(item, type_meta), left_out)
        else:
            yield document
    elif document is not None:
        left_out.append(f"left out: a {type(document).__name__} where an object should be")


def _with_kind(item: object, type_meta: Document) -> object:
    """The item with kind and apiVersion of its list if it has none; an item of another kind is unchanged."""
    kind = type_meta["kind"]
    if not isinstance(item, dict) or not kind or str(item.get("kind") or "") not in {"", kind}:
        return item
    missing = {name: text for name, text in type_meta.items() if text and not item.get(name)}
    return {**missing, **{k: v for k, v in item.items() if k not in missing}} if missing else item
