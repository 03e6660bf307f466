"""Readers of foreign input against input that is nearly right: each raises what it promises, or nothing.

Inputs are made from good ones by a seed, so that a failure repeats; `make fuzz` makes a hundred times as many, and keeps what
broke a reader in tests/fuzz/corpus, which is read first here.
"""

from __future__ import annotations

import pytest

from tests.fuzz.inputs import CORPUS, failure, folder_of, inputs_of, kept
from tests.fuzz.readers import READERS, SLOW

INPUTS, SLOW_INPUTS = 10_000, 100


@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_what_it_promises_or_nothing(name: str) -> None:
    read, good, _ = READERS[name]
    assert read(good) is not None
    broken = filter(None, (failure(name, text) for text in inputs_of(name, SLOW_INPUTS if name in SLOW else INPUTS)))
    assert next(broken, "") == ""


def test_every_kept_input_belongs_to_a_reader_and_is_read() -> None:
    folders = {folder_of(name) for name in READERS}
    assert len(folders) == len(READERS)
    assert {path.parent for path in CORPUS.glob("*/*")} <= folders
    assert sum(len(kept(name)) for name in READERS) == len(list(CORPUS.glob("*/*"))) > 0
