"""Readers of foreign input against input that is nearly right: each raises what it promises, or nothing.

Inputs are made from good ones by a seed, so that a failure repeats. ``make test`` reads a few; ``make test-all ARGS="-m fuzz"``
reads NETAWARE_FUZZ of each reader (a hundredth for those of YAML), by NETAWARE_FUZZ_SEED. What broke a reader is put into
tests/fuzz/corpus, which is read first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz.readers import DEEP, READERS, SLOW

SMOKE, SLOW_SHARE = 300, 100
INPUTS, SEED = int(os.environ.get("NETAWARE_FUZZ", "10000")), os.environ.get("NETAWARE_FUZZ_SEED", "")

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
# Depth, numbers beyond all bounds, digits that are no ASCII, what a name, a kernel or a log may hold.
TOKENS = (
    DEEP,
    "9" * 5000,
    "1e999999999",
    "-0",
    "NaN",
    "1e-400",
    "\u00b2",
    "\u0663",
    "\0",
    "",
    "null",
    "[]",
    "{}",
    '"',
    "\U0001f600",
    ":",
    "\0\0",
    "\xff\xff\xff\xff",
    "\x04\0",
)


def mutated(chance: Random, text: str) -> str:
    """A good input with one to three faults, or its beginning alone."""
    if not chance.randrange(20):
        return text[: chance.randint(0, len(text))]
    for _ in range(chance.randint(1, 3)):
        begin = chance.randint(0, len(text))
        end = min(len(text), begin + chance.choice((0, 1, 1, 4, 30)))
        piece: Any = chance.choice(
            (
                chance.choice(TOKENS),
                text[end : end + 9],
                chr(chance.randrange(0xD000)),
                chr(chance.randrange(0x100)),
                str(chance.randrange(-9, 1 << 70)),
            )
        )
        text = text[:begin] + piece + text[end:]
    return text


def folder_of(name: str) -> Path:
    """Where inputs lie that broke a reader."""
    return CORPUS / "".join(c if c.isalnum() else "-" for c in name.lower())


def kept(name: str) -> list[str]:
    """Inputs that broke a reader once."""
    return [path.read_bytes().decode("utf-8", "surrogatepass") for path in sorted(folder_of(name).glob("*"))]


def inputs_of(name: str, count: int, seed: str = "") -> Iterator[str]:
    """What was kept, what is known to break others, then ``count`` inputs made by the seed."""
    good, chance = READERS[name][1], Random(f"{name}{seed}")
    tokens = (*TOKENS, *(good.replace("1", token, 1) for token in TOKENS), good[:-1] + "," + DEEP[1:])
    made = (mutated(chance, good) for _ in iter(int, 1))
    return chain(kept(name), tokens, islice(made, count))


def failure(name: str, text: str) -> str:
    """How the reader breaks what it promises; empty when it does not."""
    read, _, allowed = READERS[name]
    try:
        read(text)
    except allowed:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error} for {text[:200]!r}"
    return ""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_what_it_promises_or_nothing(name: str) -> None:
    read, good, _ = READERS[name]
    assert read(good) is not None
    if name not in SLOW:
        assert what_breaks(name, SMOKE) == ""


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_what_it_promises_or_nothing_on_many_inputs(name: str) -> None:
    assert what_breaks(name, INPUTS // SLOW_SHARE if name in SLOW else INPUTS) == ""


def what_breaks(name: str, count: int) -> str:
    """The first failure; empty when there is none."""
    return next((found for text in inputs_of(name, count, SEED) if (found := failure(name, text))), "")


def test_every_kept_input_belongs_to_a_reader_and_is_read() -> None:
    folders = {folder_of(name) for name in READERS}
    assert len(folders) == len(READERS)
    assert {path.parent for path in CORPUS.glob("*/*")} <= folders
    assert sum(len(kept(name)) for name in READERS) == len(list(CORPUS.glob("*/*"))) > 0
