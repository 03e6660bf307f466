"""Pauses garbage collections while Python is parsed.

CPython before 3.11.9 has one recursion depth for all parsers. If a finalizer runs during a parse and its warning is formatted with a
traceback, which parses too, the outer parse fails with "AST constructor recursion depth mismatch" (SystemError).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
