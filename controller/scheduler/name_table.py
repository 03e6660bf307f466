"""A JSON list of node names, read as numbers of known nodes, all names at once.

Looking up ten thousand names one by one takes longer than everything else the extender does for a pod. Here a list is taken
apart at its quotes, names are compared eight bytes at a time, and a table of hashes finds their numbers; every hit is verified
byte by byte. A list with spaces, escapes or unknown names is left to the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_QUOTE, _COMMA = ord('"'), ord(",")
_WORD = 8
# Of a word, the bytes that still belong to a name that ends within it; little-endian.
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WORD)] + [2**64 - 1], np.uint64)
_LARGEST = 256
"""Names may have 253 characters; longer ones are unknown anyway."""

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]


class NameTable:
    """Numbers of known names: the place in the sequence given, counted from 0."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        self._lengths = np.array([len(name) for name in encoded], np.int64)
        longest = int(self._lengths.max(initial=1))
        self._count = -(-longest // _WORD)
        rng = np.random.default_rng(0)
        self._factors = rng.integers(1, 2**63, self._count, np.uint64) * np.uint64(2) + np.uint64(1)
        flat = b"".join(name.ljust(self._count * _WORD, b"\0") for name in encoded)
        self._words = np.frombuffer(flat, np.dtype("<u8")).reshape(len(encoded), self._count)
        self._bits = max(int(len(encoded) * 8).bit_length(), 4)
        hashes = (self._words * self._factors).sum(axis=1, dtype=np.uint64)
        slots = self._slots(hashes)
        self._first = np.full(1 << self._bits, -1, np.int64)
        self._next = np.full(len(encoded), -1, np.int64)
        for number, slot in enumerate(slots.tolist()):
            self._next[number] = self._first[slot]
            self._first[slot] = number

    def _slots(self, hashes: Words) -> Ints:
        return (hashes >> np.uint64(64 - self._bits)).astype(np.int64)

    def numbers(self, raw: bytes) -> Ints | None:
        """Numbers of the names of a JSON list, in its order; None when it is not a plain list of known names."""
        if raw == b"[]":
            return np.zeros(0, np.int64)
        bounds = _bounds(raw)
        if bounds is None:
            return None
        begins, lengths = bounds
        if int(lengths.max()) > min(self._count * _WORD, _LARGEST):
            return None
        columns = self._columns(raw, begins, lengths)
        hashes = np.zeros(len(begins), np.uint64)
        for column, factor in zip(columns, self._factors, strict=True):
            hashes += column * factor
        return self._find(columns, lengths, self._slots(hashes))

    def _columns(self, raw: bytes, begins: Ints, lengths: Ints) -> list[Words]:
        """[word][name] eight bytes each, zeros after a name's end."""
        padded = raw + b"\0" * (self._count * _WORD)
        # A view of eight bytes at every offset: names begin anywhere.
        everywhere = np.ndarray((len(padded) - _WORD + 1,), np.dtype("<u8"), padded, strides=(1,))
        columns = []
        for i in range(self._count):
            left = np.clip(lengths - i * _WORD, 0, _WORD)
            columns.append(everywhere[begins + i * _WORD] & _MASKS[left])
        return columns

    def _find(self, columns: Sequence[Words], lengths: Ints, slots: Ints) -> Ints | None:
        found = self._first[slots]
        if (found < 0).any():
            return None
        wrong = np.flatnonzero(~self._same(columns, lengths, found, slice(None)))
        while len(wrong):
            found[wrong] = self._next[found[wrong]]
            if (found[wrong] < 0).any():
                return None
            wrong = wrong[~self._same(columns, lengths, found, wrong)]
        return found

    def _same(self, columns: Sequence[Words], lengths: Ints, found: Ints, which: slice | Ints) -> NDArray[np.bool_]:
        numbers = found[which]
        same: NDArray[np.bool_] = self._lengths[numbers] == lengths[which]
        for i, column in enumerate(columns):
            same &= self._words[numbers, i] == column[which]
        return same


def _bounds(raw: bytes) -> tuple[Ints, Ints] | None:
    """Where names begin and how long they are, in a list without spaces and escapes; None for any other."""
    data = np.frombuffer(raw, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    plain = (
        len(quotes) >= 2
        and not len(quotes) % 2
        and raw.startswith(b'["')
        and raw.endswith(b'"]')
        and quotes[-1] == len(raw) - 2
        and b"\\" not in raw
    )
    if not plain:
        return None
    begins, ends = quotes[::2] + 1, quotes[1::2]
    if (begins[1:] != ends[:-1] + 3).any() or (data[ends[:-1] + 1] != _COMMA).any():
        return None
    return begins, ends - begins
