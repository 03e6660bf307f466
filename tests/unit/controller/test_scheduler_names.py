"""Lists of node names read all at once mean what JSON says they mean, or are left to the ordinary way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.scheduler.extender.wire import NameTable

NAMES = st.text("abcdefgh0123456789.-", min_size=1, max_size=40)


@given(
    known=st.lists(NAMES, unique=True, max_size=40),
    picks=st.lists(st.integers(0, 1000), max_size=60),
    others=st.lists(NAMES, max_size=1),
)
def test_every_known_name_gets_its_own_number_and_a_list_with_another_is_left_to_the_ordinary_way(
    known: list[str], picks: list[int], others: list[str]
) -> None:
    asked = ([known[i % len(known)] for i in picks] if known else []) + others
    found = NameTable(known).numbers(json.dumps(asked, separators=(",", ":")).encode())
    if set(asked) <= set(known):
        assert found is not None
        assert [known[i] for i in found.tolist()] == asked
    else:
        assert found is None


@given(st.binary(max_size=60))
def test_whatever_comes_is_either_a_plain_list_of_known_names_or_nothing(raw: bytes) -> None:
    known = ["a", "b", "node-1"]
    found = NameTable(known).numbers(raw)
    if found is not None:
        assert json.loads(raw) == [known[i] for i in found.tolist()]


@pytest.mark.parametrize(
    "raw",
    [
        b'["a", "b"]',
        b' ["a"]',
        b'["a"] ',
        b'["a","b",]',
        b'["a""b"]',
        b'["a";"b"]',
        b'["a":"b"]',
        b'["a\\u0062"]',
        b'["a","b"',
        b'["]',
        b'[""]',
        b'["a\0"]',
        b"",
        b"null",
        b"[1]",
        b'{"a":"b"}',
        b'["aa"]',
    ],
)
def test_anything_else_is_not_read(raw: bytes) -> None:
    assert NameTable(["a", "b"]).numbers(raw) is None


def test_names_that_differ_only_beyond_the_first_words_are_told_apart() -> None:
    known = [f"ip-10-0-12-{i}.eu-central-1.compute.internal" for i in range(300)]
    raw = json.dumps(known[::-1], separators=(",", ":")).encode()
    found = NameTable(known).numbers(raw)
    assert found is not None
    assert found.tolist() == list(range(299, -1, -1))
