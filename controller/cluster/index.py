"""The base of indexes that watch events update, and that threads read as copies."""

from __future__ import annotations

import copy
from typing import Any, Self


class Index:
    """An index that can be copied for a thread."""

    def copy(self) -> Self:
        """A copy with its own containers and indexes, however deep; the objects in them are shared."""
        made = copy.copy(self)
        vars(made).update({name: _copied(value) for name, value in vars(self).items()})
        return made


def _copied(value: Any) -> Any:
    if isinstance(value, Index | list):
        return value.copy()
    if not isinstance(value, dict):
        return value
    made = value.copy()  # Keeps the type: a Counter, or a defaultdict.
    made.update({key: _copied(item) for key, item in value.items() if isinstance(item, dict)})
    return made
