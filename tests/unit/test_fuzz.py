"""Readers of foreign input against input that is nearly right: each raises what it promises, or nothing.

Inputs are made from good ones by a seed, so that a failure repeats. ``make test`` reads a few; ``make test-all ARGS="-m fuzz"``
reads NETAWARE_FUZZ of each reader (a hundredth for those of YAML), by NETAWARE_FUZZ_SEED. What broke a reader is put into
tests/fuzz/corpus, which is read first.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.inputs import CORPUS, failure, folder_of, inputs_of, kept
from tests.fuzz.readers import READERS, SLOW

SMOKE, SLOW_SHARE = 300, 100
INPUTS, SEED = int(os.environ.get("NETAWARE_FUZZ", "10000")), os.environ.get("NETAWARE_FUZZ_SEED", "")


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
