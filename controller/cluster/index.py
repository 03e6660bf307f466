"""The base class of indexes. Watch events update an index; threads read a copy of it."""

from __future__ import annotations

import copy
from typing import Any, Self


class Index:
    """An index that can be copied for use in a thread."""

    def copy(self) -> Self:
        """A copy for a thread: attributes that are lists, dicts or indexes are copied, and so are dicts within dicts.

        All other objects are shared, such as a list within a dict. So updates must replace them, not change them.
        """
        duplicate = copy.copy(self)
        vars(duplicate).update({name: _copy_containers(value) for name, value in vars(self).items()})
        return duplicate


def _copy_containers(value: Any) -> Any:
    if isinstance(value, Index | list):
        return value.copy()
    if not isinstance(value, dict):
        return value
    duplicate = value.copy()  # Keeps the type: a Counter, or a defaultdict.
    duplicate.update({key: _copy_containers(inner) for key, inner in value.items() if isinstance(inner, dict)})
    return duplicate
