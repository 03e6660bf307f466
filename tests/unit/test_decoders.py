"""Decoders are created at import, before threads exist.

msgspec builds the data of a type when it first decodes it, and a second thread that decodes the type meanwhile ends
the process (docs/adr/0126).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.parsing import paused_garbage_collection

ROOT = Path(__file__).parents[2]
PACKAGES = ("kubekit", "netperf", "agent", "controller")


def find_decode_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls of ``msgspec.json.decode(..., type=X)``, unless the type is a parameter of the function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode":
            for keyword in node.keywords:
                is_parameter = isinstance(keyword.value, ast.Name) and keyword.value.id.lstrip("_")[0].islower()
                if keyword.arg == "type" and not is_parameter:
                    yield node


def test_decoders_are_created_at_import() -> None:
    with paused_garbage_collection():
        calls = [
            f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:100]}"
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
            for call in find_decode_calls(ast.parse(path.read_text()))
        ]
    fix = "make a decoder beside the class, `_decode_x = msgspec.json.Decoder(X).decode`"
    assert not calls, "\n".join([fix, *calls])
