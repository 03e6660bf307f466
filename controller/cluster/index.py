"""The base class of indexes, which watch events update and threads read as copies."""

from __future__ import annotations

import copy
from typing import Any, Self


class Index:
    """An index that can be copied for use in a thread."""

    def copy(self) -> Self:
        """A copy with its own lists, dicts and nested indexes; other objects are shared."""
        duplicate = copy.copy(self)
        vars(duplicate).update({name: _copy_containers(value) for name, value in vars(self).items()})
        return duplicate


def _copy_containers(value: Any) -> Any:
    if isinstance(value, Index | list):
        return value.copy()
    if not isinstance(value, dict):
        return value
    duplicate = value.copy()  # Keeps the type: a Counter, or a defaultdict.
    duplicate.update({key: _copy_containers(item) for key, item in value.items() if isinstance(item, dict)})
    return duplicate
