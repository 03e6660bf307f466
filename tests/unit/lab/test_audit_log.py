"""The reader that tests of replicas and of rights share."""

import json
from pathlib import Path

import pytest

from tests.support.audit_log import audit_events


def test_a_line_that_the_server_is_writing_is_left_for_the_next_reading(tmp_path: Path) -> None:
    log, line = tmp_path / "audit.log", json.dumps({"verb": "patch"})
    log.write_text(f"{line}\n{line[:9]}")
    assert audit_events(log) == [{"verb": "patch"}]
    log.write_text(f"{line}\n{line}\n")
    assert len(audit_events(log)) == 2


def test_a_complete_line_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text('{"verb": \n{}\n')
    with pytest.raises(json.JSONDecodeError):
        audit_events(log)
