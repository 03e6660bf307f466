"""The first value of a type may be read by several threads at once: msgspec builds what it knows of a type when it is first decoded, and
a thread that meets it half built ends the process (docs/adr/0126).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import parsed

ROOT = Path(__file__).parents[3]
PRODUCT = ("kubekit", "netperf", "agent", "controller")


def test_decoders_are_created_at_import() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:100]}"
        for room in PRODUCT
        for path in sorted((ROOT / room).rglob("*.py"))
        for call in _decoding_in_functions(parsed(path))
    ]
    assert not found, "make a decoder beside the class, `_decode_x = msgspec.json.Decoder(X).decode`:\n" + "\n".join(
        found
    )


def _decoding_in_functions(tree: ast.Module) -> Iterator[ast.Call]:
    """``msgspec.json.decode(..., type=X)`` of a type that is written there; who is given the type answers for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode":
            for keyword in node.keywords:
                parameter = isinstance(keyword.value, ast.Name) and keyword.value.id.lstrip("_")[0].islower()
                if keyword.arg == "type" and not parameter:
                    yield node
