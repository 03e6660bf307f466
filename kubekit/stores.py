"""Stores: the objects of one kind by key, with handlers for changes. `kubekit.reflector.Reflector` is filled by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Source = TypeVar("Source")
Item_co = TypeVar("Item_co", covariant=True)
Handler = Callable[[str, T | None, T | None], None]


class Store(Protocol[Item_co]):
    """The read side of every store, filtered or not."""

    @property
    def synced(self) -> asyncio.Event:
        """Set after the first complete list."""
        ...

    @property
    def ready(self) -> asyncio.Event:
        """Set when synced, or when the API server does not serve the resource."""
        ...

    @property
    def malformed(self) -> Mapping[str, str]:
        """Objects that could not be decoded: key -> reason."""
        ...

    @property
    def items(self) -> Mapping[str, Item_co]:
        """The objects by key."""
        ...

    def get(self, key: str) -> Item_co | None:
        """One object; None if it is not in the store."""
        ...

    def subscribe(self, handler: Handler[Item_co]) -> None:
        """Call ``handler(key, old, new)`` after each change."""
        ...

    def __iter__(self) -> Iterator[Item_co]: ...

    def __len__(self) -> int: ...


def subscribe_from_start(store: Store[T], handler: Handler[T]) -> None:
    """`Store.subscribe`, then call ``handler(key, None, new)`` for each object of the store."""
    store.subscribe(handler)
    for key, item in store.items.items():
        handler(key, None, item)


class KeyedObjects(Generic[T]):
    """Objects by key, and the handlers of their changes."""

    def __init__(self) -> None:
        self._items: dict[str, T] = {}
        self._handlers: list[Handler[T]] = []

    @property
    def items(self) -> Mapping[str, T]:
        """The objects by key (``namespace/name`` or ``name``). The mapping may change at every await of the caller."""
        return self._items

    def get(self, key: str) -> T | None:
        """One object; None if it is not in the store."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def subscribe(self, handler: Handler[T]) -> None:
        """Call ``handler(key, old, new)`` after each change; ``new`` is None for a deletion, ``old`` for an addition.

        A handler must not block or raise. It typically adds the key to a work queue.
        """
        self._handlers.append(handler)

    def _notify(self, key: str, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(key, old, new)


class FilteredStore(KeyedObjects[T]):
    """A store that is derived from another store, without a watch.

    Args:
        source: the store to filter.
        select: maps an object of the source to that of this store; None leaves it out.
    """

    def __init__(self, source: Store[Source], select: Callable[[Source], T | None]) -> None:
        super().__init__()
        self._source: Store[Any] = source
        self._select: Callable[[Any], T | None] = select
        subscribe_from_start(source, self._on_change)

    @property
    def synced(self) -> asyncio.Event:
        """As of the source."""
        return self._source.synced

    @property
    def ready(self) -> asyncio.Event:
        """As of the source."""
        return self._source.ready

    @property
    def malformed(self) -> Mapping[str, str]:
        """Empty: the source reports them."""
        return {}

    def _on_change(self, key: str, _: object, new: object | None) -> None:
        old, item = self._items.get(key), None if new is None else self._select(new)
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
        if old is not None or item is not None:
            self._notify(key, old, item)
