"""Parses Python without garbage collections.

CPython before 3.11.9 has one recursion depth for all parsers. If a finalizer runs during a parse and its warning is formatted with a
traceback, which parses too, the outer parse fails with "AST constructor recursion depth mismatch" (SystemError).
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause automatic garbage collections during the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_module(path: Path) -> ast.Module:
    with paused_garbage_collection():
        return ast.parse(path.read_text())
