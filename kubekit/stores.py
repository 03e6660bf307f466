"""Objects of one kind by key, and who wants to know of changes: what a `kubekit.reflector.Reflector` holds, whole or in part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Whole = TypeVar("Whole")
Held_co = TypeVar("Held_co", covariant=True)
Handler = Callable[[str, T | None, T | None], None]


class Store(Protocol[Held_co]):
    """What can be asked of a store, whole or in part."""

    @property
    def synced(self) -> asyncio.Event:
        """Set after the first complete list."""
        ...

    @property
    def settled(self) -> asyncio.Event:
        """Set when synced, or when there is nothing to wait for."""
        ...

    @property
    def malformed(self) -> Mapping[str, str]:
        """Why objects could not be read, by key."""
        ...

    @property
    def items(self) -> Mapping[str, Held_co]:
        """The held objects by key."""
        ...

    def get(self, key: str) -> Held_co | None:
        """Return one object, or None."""
        ...

    def subscribe(self, handler: Handler[Held_co]) -> None:
        """Call ``handler(key, old, new)`` after each change."""
        ...

    def __iter__(self) -> Iterator[Held_co]: ...

    def __len__(self) -> int: ...


def subscribe_from_start(store: Store[T], handler: Handler[T]) -> None:
    """Call ``handler(key, None, new)`` for everything that a store holds, and then `Store.subscribe` it."""
    store.subscribe(handler)
    for key, held in store.items.items():
        handler(key, None, held)


class KeyedObjects(Generic[T]):
    """Objects by key, and who wants to know of changes."""

    def __init__(self) -> None:
        self._items: dict[str, T] = {}
        self._handlers: list[Handler[T]] = []

    @property
    def items(self) -> Mapping[str, T]:
        """The held objects by key (``namespace/name`` or ``name``). Changes under the caller's feet at every await."""
        return self._items

    def get(self, key: str) -> T | None:
        """Return one object, or None."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def subscribe(self, handler: Handler[T]) -> None:
        """Call ``handler(key, old, new)`` after each change; ``new`` is None for a deletion, ``old`` for an addition.

        A handler must be quick and must not raise: it only notes the key, typically in a work queue.
        """
        self._handlers.append(handler)

    def _notify(self, key: str, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(key, old, new)


class FilteredStore(KeyedObjects[T]):
    """A part of a store's objects, or what of them matters to somebody, as a store of its own that needs no watch.

    Args:
        whole: the store.
        select: the object as it is held here; None when it is no part of this.
    """

    def __init__(self, whole: Store[Whole], select: Callable[[Whole], T | None]) -> None:
        super().__init__()
        self._whole: Store[Any] = whole
        self._select: Callable[[Any], T | None] = select
        subscribe_from_start(whole, self._on_change)

    @property
    def synced(self) -> asyncio.Event:
        """Of the whole store."""
        return self._whole.synced

    @property
    def settled(self) -> asyncio.Event:
        """Of the whole store."""
        return self._whole.settled

    @property
    def malformed(self) -> Mapping[str, str]:
        """None: the whole store counts them."""
        return {}

    def _on_change(self, key: str, _: object, new: object | None) -> None:
        old, item = self._items.get(key), None if new is None else self._select(new)
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
        if old is not None or item is not None:
            self._notify(key, old, item)
