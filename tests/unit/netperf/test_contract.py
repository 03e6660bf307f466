"""What programs say to each other is written down once."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from netperf import contract
from netperf.contract import MAX_ANNOTATION_BYTES, Announcement, encode_announcement, read_announcement

ROOT = Path(__file__).parents[3]
NAMES = {
    text
    for name, value in vars(contract).items()
    if name.isupper()
    for text in (value if isinstance(value, tuple) else (value,))
    if isinstance(text, str) and text != contract.PASSPHRASE_KEY
}


def test_no_name_of_the_contract_is_spelt_out_anywhere_else() -> None:
    # A type has to be spelt out.
    spelt = re.compile(r'(?<!Literal\[)"(?:' + "|".join(map(re.escape, sorted(NAMES))) + ')"')
    again = {
        str(path.relative_to(ROOT)): found
        for package in ("agent", "controller", "netperf", "kubekit", "lab")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "contract.py" and (found := spelt.findall(path.read_text()))
    }
    assert again == {}


def test_an_announcement_is_read_whatever_is_missing_or_new_in_it() -> None:
    assert read_announcement('{"address":"10.0.0.1","port":12865,"later":1}') == Announcement("10.0.0.1", 12865)
    large = encode_announcement(Announcement(address="x" * MAX_ANNOTATION_BYTES))
    assert [read_announcement(text) for text in ("", "{", "[]", '{"port":"x"}', large)] == [None] * 5


def test_an_announcement_names_a_problem_where_it_fits() -> None:
    here = Announcement("10.0.0.1", 12865, "1.2.3", "netperf", "the probing secret has 5 bytes")
    assert read_announcement(encode_announcement(here)) == here
    for long in ("\n" * 500, "x" * 400, "ä" * 2000):
        found = read_announcement(encode_announcement(replace(here, problem=long)))
        assert found is not None
        assert found.problem
        assert long.startswith(found.problem)
