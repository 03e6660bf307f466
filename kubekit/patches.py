"""Builds JSON pointers and the operations of JSON patches (RFC 6902)."""

from __future__ import annotations

from typing import Any, TypedDict


class Operation(TypedDict, total=False):
    """One operation of a JSON patch."""

    op: str
    path: str
    value: Any


def pointer(*parts: str | int) -> str:
    """JSON pointer (RFC 6901): ``pointer("status", "capacity", "a/b")`` is ``/status/capacity/a~1b``."""
    return "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in parts)


def add(path: str, value: object) -> Operation:
    """Add or overwrite a member of an object, or insert into a list (``-`` appends). The parent must exist."""
    return Operation(op="add", path=path, value=value)


def remove(path: str) -> Operation:
    """Remove a member; the API server refuses the patch if the member is missing."""
    return Operation(op="remove", path=path)


def replace(path: str, value: object) -> Operation:
    """Overwrite a member that exists."""
    return Operation(op="replace", path=path, value=value)


def test(path: str, value: object) -> Operation:
    """Make the whole patch fail unless the member exists and has this value."""
    return Operation(op="test", path=path, value=value)
