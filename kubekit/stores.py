"""Stores of the objects of one kind by key, with handlers for changes. A `kubekit.reflector.Reflector` is a store that a watch fills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Source = TypeVar("Source")
Handler = Callable[[str, T | None, T | None], None]


class Store(Generic[T_co]):
    """Objects by key, and handlers that are called for their changes. Subclasses fill it.

    Attributes:
        synced: set after the first complete list, and never cleared.
        ready: set when the store is synced, or when the API server does not serve the resource, so that a missing CRD blocks nothing.
        decode_error_by_key: the error of each malformed object, by its key.
    """

    def __init__(self, synced: asyncio.Event, ready: asyncio.Event) -> None:
        self.synced, self.ready = synced, ready
        self.decode_error_by_key: dict[str, str] = {}
        self._items: dict[str, Any] = {}
        self._handlers: list[Handler[Any]] = []

    @property
    def items(self) -> Mapping[str, T_co]:
        """The objects by key (``namespace/name`` or ``name``). The mapping may change whenever the caller awaits."""
        return self._items

    def get(self, key: str) -> T_co | None:
        """The object with this key; None if it is not in the store."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def subscribe(self, handler: Handler[T_co]) -> None:
        """Call ``handler(key, old, new)`` after each change; ``old`` is None for an addition, ``new`` for a deletion.

        A handler must not block or raise. It typically adds the key to a work queue.
        """
        self._handlers.append(handler)

    def _set(self, key: str, item: Any) -> None:
        """Store an object, or delete it if ``item`` is None, and call handlers if it changed."""
        old = self._items.pop(key, None) if item is None else self._items.get(key)
        if item is not None:
            self._items[key] = item
        if self._should_notify(old, item):
            for handler in self._handlers:
                handler(key, old, item)

    def _should_notify(self, old: Any, new: Any) -> bool:
        """Whether to call handlers: unless an object was absent and still is. Subclasses may compare versions."""
        return old is not None or new is not None


def subscribe_from_start(store: Store[T], handler: Handler[T]) -> None:
    """Call ``handler`` for each object of the store as for an addition, and after each change, as `Store.subscribe` does."""
    store.subscribe(handler)
    for key, item in store.items.items():
        handler(key, None, item)


class FilteredStore(Store[T]):
    """A store with some objects of another store. The watch and decode errors are in the source.

    Args:
        source: the store to filter.
        select: maps an object of the source to an object of this store, or to None to leave it out.
    """

    def __init__(self, source: Store[Source], select: Callable[[Source], T | None]) -> None:
        super().__init__(source.synced, source.ready)
        subscribe_from_start(source, lambda key, _, new: self._set(key, None if new is None else select(new)))
