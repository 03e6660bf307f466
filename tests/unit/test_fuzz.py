"""Readers of foreign input raise only their declared exceptions on mutations of valid input.

Mutations follow from a seed. ``make test`` reads a few; ``make test-all ARGS="-m fuzz"`` reads NETAWARE_FUZZ mutations for each reader
(a hundredth for YAML) with the seed NETAWARE_FUZZ_SEED. Inputs that broke a reader are in tests/fuzz/corpus, which is read first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.readers import DEEPLY_NESTED_JSON, READERS, SLOW_READERS

FEW_MUTATIONS, SLOW_SHARE = 300, 100
MANY_MUTATIONS, SEED = int(os.environ.get("NETAWARE_FUZZ", "10000")), os.environ.get("NETAWARE_FUZZ_SEED", "")

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
# Deep nesting, huge numbers, digits that are not ASCII, and characters of names, kernels and logs.
TOKENS = (
    DEEPLY_NESTED_JSON,
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


def mutate(rng: Random, text: str) -> str:
    """Valid input with one to three mutations, or truncated."""
    if not rng.randrange(20):
        return text[: rng.randint(0, len(text))]
    for _ in range(rng.randint(1, 3)):
        begin = rng.randint(0, len(text))
        end = min(len(text), begin + rng.choice((0, 1, 1, 4, 30)))
        characters = chr(rng.randrange(0xD000)), chr(rng.randrange(0x100))
        number = str(rng.randrange(-9, 1 << 70))
        piece = rng.choice((rng.choice(TOKENS), text[end : end + 9], *characters, number))
        text = text[:begin] + piece + text[end:]
    return text


def find_corpus_folder(name: str) -> Path:
    """Folder of the inputs that broke a reader."""
    return CORPUS / "".join(c if c.isalnum() else "-" for c in name.lower())


def read_corpus(name: str) -> list[str]:
    """Inputs that broke a reader."""
    return [path.read_bytes().decode("utf-8", "surrogatepass") for path in sorted(find_corpus_folder(name).glob("*"))]


def make_inputs(name: str, count: int, seed: str = "") -> Iterator[str]:
    """The corpus, inputs with `TOKENS`, then ``count`` mutations."""
    valid, rng = READERS[name][1], Random(f"{name}{seed}")
    tokens = (*TOKENS, *(valid.replace("1", token, 1) for token in TOKENS), valid[:-1] + "," + DEEPLY_NESTED_JSON[1:])
    mutations = (mutate(rng, valid) for _ in iter(int, 1))
    return chain(read_corpus(name), tokens, islice(mutations, count))


def find_failure(name: str, count: int) -> str:
    """The first undeclared exception of a reader; empty if there is none."""
    read, _, allowed = READERS[name]
    for text in make_inputs(name, count, SEED):
        try:
            read(text)
        except allowed:
            continue
        except Exception as error:
            return f"{type(error).__name__}: {error} for {text[:200]!r}"
    return ""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_only_its_declared_exceptions(name: str) -> None:
    read, valid, _ = READERS[name]
    assert read(valid) is not None
    if name not in SLOW_READERS:
        assert find_failure(name, FEW_MUTATIONS) == ""


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_only_its_declared_exceptions_on_many_inputs(name: str) -> None:
    count = MANY_MUTATIONS // SLOW_SHARE if name in SLOW_READERS else MANY_MUTATIONS
    assert find_failure(name, count) == ""


def test_every_input_of_the_corpus_belongs_to_a_reader_and_is_read() -> None:
    folders = {find_corpus_folder(name) for name in READERS}
    assert len(folders) == len(READERS)
    assert {path.parent for path in CORPUS.glob("*/*")} <= folders
    assert sum(len(read_corpus(name)) for name in READERS) == len(list(CORPUS.glob("*/*"))) > 0
