"""Parsing Python in tests.

CPython before 3.11.9 keeps one count of depth for all parsing. A finaliser that the collector runs in the middle of a parse, and whose
warning is put into words with a traceback, parses as well, and then the outer parse ends with "AST constructor recursion depth
mismatch" (SystemError).
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nothing_collected() -> Iterator[None]:
    """The collector rests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def parsed(path: Path) -> ast.Module:
    """A module's tree."""
    with nothing_collected():
        return ast.parse(path.read_text())
