"""Makes inputs that are nearly right, by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.readers import DEEP, READERS

CORPUS = Path(__file__).with_name("corpus")
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
