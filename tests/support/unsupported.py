"""Skips tests that need something that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from lab.errors import UnsupportedError

T = TypeVar("T")


def skip_if_unsupported(find: Callable[[], T]) -> T:
    """The result of ``find``; skips the test, with the reason, if it raises UnsupportedError."""
    try:
        return find()
    except UnsupportedError as error:
        pytest.skip(str(error))
