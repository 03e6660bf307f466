"""Announcements of other versions are decoded, malformed ones are refused, and all fit into their annotation."""

from __future__ import annotations

from msgspec.structs import replace

from netperf.contract import MAX_ANNOTATION_BYTES, Announcement, decode_announcement, encode_announcement


def test_announcements_of_other_versions_are_decoded() -> None:
    assert decode_announcement('{"address":"10.0.0.1","port":12865,"later":1}') == Announcement("10.0.0.1", 12865)


def test_malformed_announcements_are_refused() -> None:
    too_large = encode_announcement(Announcement(address="x" * MAX_ANNOTATION_BYTES))
    for malformed in ("", "{", "[]", '{"port":"x"}', too_large):
        assert decode_announcement(malformed) is None, malformed


def test_the_problem_in_an_announcement_is_cut_to_the_annotations_limit() -> None:
    announcement = Announcement("10.0.0.1", 12865, "1.2.3", "netperf", "the probing passphrase has 5 bytes")
    assert decode_announcement(encode_announcement(announcement)) == announcement
    for long_problem in ("\n" * 500, "x" * 400, "ä" * 2000):
        decoded = decode_announcement(encode_announcement(replace(announcement, problem=long_problem)))
        assert decoded is not None
        assert decoded.problem
        assert long_problem.startswith(decoded.problem)
